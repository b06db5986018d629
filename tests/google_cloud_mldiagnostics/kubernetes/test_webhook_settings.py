"""The settings of the webhook, and the name of the cluster that it finds by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from google_cloud_mldiagnostics._kubernetes.policy import policy_documents
from google_cloud_mldiagnostics._kubernetes.webhook.cluster import cluster_name
from google_cloud_mldiagnostics._kubernetes.webhook.server import WebhookSettings
from ml_diagnostics_testing.faults import Hang
from ml_diagnostics_testing.metadata import MetadataServer

from ...waiting import bound_port

CLUSTER = "projects/example.com:p/locations/us-central2/clusters/c"


def test_a_cluster_that_is_set_is_not_asked_for() -> None:
    assert cluster_name(CLUSTER, {"GCE_METADATA_HOST": "127.0.0.1:1"}) == CLUSTER
    assert cluster_name("", {"NO_GCE_CHECK": "true"}) == ""


def test_the_metadata_server_of_gke_names_the_cluster() -> None:
    attributes = {"cluster-name": "c", "cluster-location": "us-central2"}
    with MetadataServer(project="example.com:p", attributes=attributes) as server:
        assert cluster_name("", server.environment()) == CLUSTER


@pytest.mark.parametrize("attributes", [{}, {"cluster-name": "c"}, {"cluster-name": 'c"$(A)', "cluster-location": "l"}])
def test_a_machine_outside_gke_has_no_cluster_nor_one_of_a_name_that_is_not_valid(attributes: dict[str, str]) -> None:
    with MetadataServer(attributes=attributes) as server:
        assert cluster_name("", server.environment()) == ""


def test_without_a_metadata_server_the_cluster_is_not_known() -> None:
    with bound_port() as port:
        assert cluster_name("", {"GCE_METADATA_HOST": f"127.0.0.1:{port}"}) == ""


def test_all_values_of_the_metadata_server_have_one_second_together() -> None:
    times = iter([0.0, 0.3, 0.6, 0.95])
    attributes = {"cluster-name": "c", "cluster-location": "l"}
    with MetadataServer(attributes=attributes) as server:
        server.faults.script([None, None, Hang()], on="metadata")
        assert cluster_name("", server.environment(), clock=lambda: next(times)) == ""
    assert next(times, None) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"certificate": Path("a")}, "both a certificate and its key"),
        ({"cluster": "c"}, "projects/P/locations/L/clusters/C, got 'c'"),
        ({"cluster": 'projects/p/locations/l/clusters/"$(A)'}, "projects/P"),
        ({"stand_down": "always"}, "'auto' or 'never', got 'always'"),
    ],
)
def test_settings_that_are_not_valid_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        WebhookSettings(**settings)


def test_a_policy_for_a_cluster_of_another_format_is_an_error() -> None:
    with pytest.raises(ValueError, match="projects/P/locations/L/clusters/C, got 'c'"):
        policy_documents("c")
