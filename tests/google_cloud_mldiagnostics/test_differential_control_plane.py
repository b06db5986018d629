"""One script, run with the public package, old and new, and with ours: the loopback servers understand all three.

The hosts of theirs are fixed, so the script sends their requests to the loopback servers instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.http_server import RequestRecord
from ml_diagnostics_testing.oauth import OAuthServer

from ..loopback.control_plane import ControlPlaneServer
from ..reference_environment import ReferenceUnavailableError, reference_python

OLD, NEW, OURS = "reference-mldiagnostics-1.0.0", "reference-mldiagnostics-1.0.10", "ours"

# The first test makes environments with two releases of the public package.
pytestmark = pytest.mark.timeout(400)

SCRIPT = """
import json, os, google.auth, requests
from google.auth.credentials import AnonymousCredentials

hosts = json.loads(os.environ["HOSTS"])
send = requests.sessions.Session.request

def redirected(self, method, url, *args, **kwargs):
    for host, loopback in hosts.items():
        url = url.replace(f"https://{host}", loopback)
    return send(self, method, url, *args, **kwargs)

requests.sessions.Session.request = redirected

class Anonymous(AnonymousCredentials):
    token = "anonymous"

if "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ:
    google.auth.default = lambda *_, **__: (Anonymous(), "test-project")

from google_cloud_mldiagnostics import machinelearning_run, metric_types, metrics, xprof

run = machinelearning_run(
    name="My_Run 1",
    run_group="sweep",
    configs={"epochs": 3},
    gcs_path=os.environ["FOLDER"],
    project="test-project",
    region="us-central1",
)
metrics.record(metric_types.MetricType.LOSS, 0.5, step=1)
with xprof():
    import jax.numpy
    jax.numpy.ones(3).block_until_ready()
"""


class Life(NamedTuple):
    """The requests that the servers received from one run of the script."""

    code: int
    stderr: str
    requests: list[RequestRecord]
    runs: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    losses: list[dict[str, Any]]

    def sent(self, operation: str) -> Any:
        """Return the JSON of the first request for an operation."""
        return next(record.body for record in self.requests if record.operation == operation)


def python_of(version: str) -> Path:
    if version == OURS:
        return Path(sys.executable)
    try:
        return reference_python(version)
    except ReferenceUnavailableError as error:
        pytest.skip(f"the reference cannot be installed here: {error}")


def live(version: str, folder: Path, *, as_service_account: bool = False) -> Life:
    with (
        ControlPlaneServer() as plane,
        CloudLoggingServer() as logging,
        CloudStorageServer() as storage,
        OAuthServer() as oauth,
    ):
        plane.operations.polls = 1
        storage.create_bucket("bucket")
        environ = {
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            # Ours reports only profiles that exist to the cloud; theirs find no bucket on loopback.
            "FOLDER": "gs://bucket/profiles" if version == OURS else str(folder / "profiles"),
            "GOOGLE_CLOUD_DISABLE_GRPC": "1",
            "GOOGLE_CLOUD_PROJECT": "test-project",
            "HOME": str(folder),
            "HOSTS": json.dumps(
                {"hypercomputecluster.googleapis.com": plane.url, "logging.googleapis.com": logging.url}
            ),
            "JAX_PLATFORMS": "cpu",
            "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"),
            "NO_GCE_CHECK": "true",
            "PATH": os.environ["PATH"],
            **storage.environment(),
        }
        if version == OURS:  # Ours takes the addresses from the environment, as gcloud does.
            servers = {**plane.environment(), **logging.environment()}
            environ |= {name: url for name, url in servers.items() if "API_ENDPOINT_OVERRIDES" in name}
        if as_service_account:
            del environ["CLOUDSDK_AUTH_DISABLE_CREDENTIALS"]
            plane.accepted_tokens = oauth.tokens
            environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(oauth.write_key(folder / "key.json"))
        done = subprocess.run(
            [str(python_of(version)), "-c", SCRIPT],
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
            cwd=folder,
        )
        runs = plane.runs()
        sessions = [one for run in runs for one in plane.sessions(run["name"].rpartition("/")[2])]
        losses = logging.entries('resource.labels.namespace="loss"')
        return Life(done.returncode, done.stderr, plane.requests, runs, sessions, losses)


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Life]:
    return {version: live(version, tmp_path_factory.mktemp(version)) for version in (OLD, NEW, OURS)}


@pytest.mark.parametrize("version", [OLD, NEW, OURS])
def test_each_version_registers_its_run(lives: dict[str, Life], version: str) -> None:
    life = lives[version]
    assert life.code == 0, life.stderr
    (run,) = life.runs
    assert run["displayName"] == "My_Run 1"
    assert run["runSet"] == "sweep"
    assert run["state"] == "STATE_COMPLETED"
    assert run["configs"]["softwareConfigs"]["framework"] == "JAX"
    assert {record.status for record in life.requests} <= {200, 404, 409}  # Missing before creation; created already.


def test_our_requests_equal_theirs(lives: dict[str, Life]) -> None:
    theirs, ours = lives[OLD].sent("create"), lives[OURS].sent("create")
    assert theirs.keys() <= ours.keys()
    assert theirs["labels"].keys() <= ours["labels"].keys()
    assert ours["labels"]["created_by"] == theirs["labels"]["created_by"]
    assert theirs["configs"]["softwareConfigs"].keys() <= ours["configs"]["softwareConfigs"].keys()
    assert ours["tools"] == theirs["tools"]


def test_the_newer_one_and_ours_report_profiles_alike(lives: dict[str, Life]) -> None:
    (theirs,), (ours,) = lives[NEW].sessions, lives[OURS].sessions
    for session in (theirs, ours):
        (target,) = session["targetSessions"].values()
        assert target["sessionPhase"] == "SUCCEEDED"
    assert ours["kind"] == theirs["kind"]
    assert {"profilerTargets", "storageFolderUri", "dashboardUri"} <= theirs.keys() & ours.keys()


def test_off_gke_and_slurm_the_workload_is_that_of_the_newer_one(lives: dict[str, Life]) -> None:
    (theirs,), (ours,) = lives[NEW].runs, lives[OURS].runs
    assert ours["orchestrator"] == theirs["orchestrator"] == "CUSTOM"
    assert without_times(ours["workloadDetails"]) == without_times(theirs["workloadDetails"])


def without_times(details: dict[str, Any]) -> dict[str, Any]:
    return {**details, "custom": {name: text for name, text in details["custom"].items() if name != "createTime"}}


@pytest.mark.parametrize("version", [OLD, NEW, OURS])
def test_a_value_is_the_same_entry(lives: dict[str, Life], version: str) -> None:
    (entry,) = lives[version].losses
    assert entry["jsonPayload"] == {"values": [0.5], "step_index": 1, "unit": "1"}
    assert entry["resource"]["labels"]["node_id"] == lives[version].runs[0]["name"].rpartition("/")[2]


def test_a_service_account_needs_a_scope_which_the_old_one_does_not_ask_for(tmp_path: Path) -> None:
    theirs = live(OLD, tmp_path, as_service_account=True)
    assert theirs.code != 0
    assert "invalid_scope" in theirs.stderr
    ours = live(OURS, tmp_path, as_service_account=True)
    assert ours.code == 0, ours.stderr
    (run,) = ours.runs
    assert run["state"] == "STATE_COMPLETED"
