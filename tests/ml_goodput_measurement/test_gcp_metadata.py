"""The machine's metadata: correct on Google Cloud, and None at once everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from ml_diagnostics_common.credentials.instance_metadata import instance_metadata
from ml_diagnostics_testing.faults import Hang, Reset, Status
from ml_diagnostics_testing.http_server import Request, Response
from ml_diagnostics_testing.metadata import MetadataServer
from ml_goodput_measurement import goodput_utils
from ml_goodput_measurement._export import gcp_metadata
from ml_goodput_measurement.exceptions import MetadataError
from ml_goodput_measurement.goodput_utils import (
    get_accelerator_type,
    get_cluster_name,
    get_gcp_metadata,
    get_gcp_project_id,
    get_node_zone,
)

from ..waiting import LONG_SECONDS, bound_port, wait_until


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    with MetadataServer(
        project="my-project",
        zone="us-east5-a",
        attributes={"cluster-name": "my-cluster", "empty": ""},
        machine_type="ct6e-standard-4t",
    ) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        # The server is probed only once, and those who ask later wait a second for it, also on a busy machine.
        assert instance_metadata(wait_seconds=LONG_SECONDS)
        server.requests.clear()
        yield server
        server.faults.clear()
        server.faults.release()


@pytest.mark.usefixtures("server")
def test_a_machine_of_google_has_a_type_and_a_zone() -> None:
    assert get_gcp_project_id() == "my-project"
    assert get_node_zone() == "us-east5-a"
    assert get_cluster_name() == "my-cluster"
    assert get_accelerator_type() == "TPU-v6e"
    assert get_gcp_metadata("instance", "hostname") == "test-vm.us-east5-a.c.my-project.internal"
    assert get_gcp_metadata("/instance/", "/zone") == "projects/123456789012/zones/us-east5-a"


def test_a_value_that_is_not_there_is_none_and_asked_for_once(server: MetadataServer) -> None:
    assert get_gcp_metadata("instance", "attributes/none") is None
    assert len(server.requests) == 1
    server.attributes.clear()
    assert get_cluster_name() is None
    assert get_gcp_metadata("no such", "category\n") is None


@pytest.mark.parametrize(
    ("machine_type", "accelerator_type"),
    [
        ("tpu7x-standard-4t", "TPU-7x"),
        ("ct6e-standard-4t", "TPU-v6e"),
        ("CT5P-hightpu-4t", "TPU-v5p"),
        ("ct5lp-hightpu-8t", "TPU-v5e"),
        ("ct4p-hightpu-4t", "TPU-v4p"),
        ("a3-ultragpu-8g", "NVIDIA-H200"),
        ("a3-megagpu-8g", "NVIDIA-H100"),
        ("a2-ultragpu-1g", "NVIDIA-A100"),
        ("a4x-maxgpu-4g-metal", "NVIDIA-GB300"),
        ("a4x-highgpu-4g", "NVIDIA-GB200"),
        ("a4-highgpu-8g", "NVIDIA-B200"),
        ("g4-standard-48", "NVIDIA-RTX-PRO-6000"),
        ("g2-standard-4", "NVIDIA-L4"),
        ("a9-highgpu-8g", "GPU"),
        ("n2-standard-2", "UNKNOWN"),
        ("", "UNKNOWN"),
    ],
)
def test_the_accelerator_is_known_by_the_machine_type(
    server: MetadataServer, machine_type: str, accelerator_type: str
) -> None:
    server.machine_type = machine_type
    assert get_accelerator_type() == accelerator_type


def test_no_entry_of_the_mapping_hides_a_later_one() -> None:
    parts = list(goodput_utils.MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING)
    for index, part in enumerate(parts):
        assert not any(earlier in part for earlier in parts[:index]), part


@pytest.mark.parametrize("fault", [Status(503), Status(429), Reset()])
def test_a_server_in_trouble_is_asked_again(server: MetadataServer, fault: Status | Reset) -> None:
    pauses: list[float] = []
    server.faults.script([fault, fault, None])
    assert get_gcp_metadata("instance", "hostname", retries=3, _sleep=pauses.append) is not None
    server.faults.script([fault, fault, None])
    assert get_gcp_metadata("instance", "hostname", retries=2, _sleep=pauses.append) is None
    assert pauses == [0.2, 0.4, 0.2]


def test_a_missing_answer_of_the_server_is_distinguishable(server: MetadataServer) -> None:
    server.faults.always(Status(503))
    with pytest.raises(MetadataError, match="instance/hostname"):
        get_gcp_metadata("instance", "hostname", retries=2, must_answer=True, _sleep=lambda _: None)
    for ask in (get_node_zone, get_accelerator_type, get_cluster_name):
        with pytest.raises(MetadataError):
            ask(must_answer=True)
    server.faults.clear()
    server.attributes.clear()
    assert get_cluster_name(must_answer=True) is None  # There is none, and that is an answer.
    assert get_node_zone(must_answer=True) == "us-east5-a"


def test_off_google_cloud_no_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert get_node_zone(must_answer=True) is None


@pytest.mark.timing
def test_a_server_that_falls_silent_is_not_waited_for_longer_than_asked(server: MetadataServer) -> None:
    server.faults.always(Hang())
    started = time.monotonic()
    assert get_gcp_metadata("instance", "hostname", timeout=0.1, retries=2, _sleep=lambda _: None) is None
    assert time.monotonic() - started < 2


@pytest.mark.timing
def test_off_google_cloud_everything_is_none_and_the_wait_is_one_second_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bound_port(listening=True) as silent:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{silent}")
        started = time.monotonic()
        assert get_gcp_project_id() is None
        first = time.monotonic() - started
        for ask in (get_gcp_project_id, get_node_zone, get_cluster_name):
            assert ask() is None
        assert get_accelerator_type() == "UNKNOWN"
        assert time.monotonic() - started - first < 0.5
        assert first < 3


def test_no_server_is_queried_where_that_is_forbidden(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert get_gcp_project_id() is None
    assert not server.requests


class Portal(MetadataServer):
    """A metadata server until `answers_all`: then every request gets its value without a metadata server's header."""

    answers_all = False

    def handle(self, request: Request) -> Response:
        response = super().handle(request)
        return replace(response, headers={}) if self.answers_all else response


@pytest.mark.parametrize("is_probed", [True, False])
def test_a_portal_that_answers_everything_is_not_believed(is_probed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with Portal() as portal:
        monkeypatch.setenv("GCE_METADATA_HOST", portal.host)
        if is_probed:
            assert instance_metadata(wait_seconds=LONG_SECONDS)
            assert get_gcp_metadata("instance", "hostname", retries=1) is not None
        portal.answers_all = True
        portal.requests.clear()
        assert get_gcp_metadata("instance", "hostname", retries=1) is None
        assert wait_until(lambda: portal.requests)


def test_goodput_utils_has_the_same_functions() -> None:
    for name in gcp_metadata.__all__:
        assert getattr(goodput_utils, name) is getattr(gcp_metadata, name)
