"""The public documentation's examples, to the letter: on a cloud on loopback, and on a laptop without their two lines.

The programs are real processes with the real google-cloud-logging; where that has no setting for another endpoint, it
is redirected before the program starts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.oauth import OAuthServer

from ..loopback.control_plane import ControlPlaneServer

pytest.importorskip("jax")

pytestmark = pytest.mark.timeout(120)

IMPORTS = """
import logging
import os
import google.cloud.logging
from google_cloud_mldiagnostics import machinelearning_run, metrics, xprof, metric_types

# 1. Set up Cloud Logging
# Make sure to pip install google-cloud-logging
"""
# Omitted on a laptop, together with the import.
CLOUD_LOGGING = """logging_client = google.cloud.logging.Client()
logging_client.setup_logging()
"""
DEBUG = """# Optional: Set logging level to DEBUG for more detailed SDK logs
logging.getLogger().setLevel(logging.DEBUG)
"""
# Google's handler sends nothing that is still queued when the program ends; so it is flushed before.
CLOSE = """
logging_client.close()
"""
RUN = """
# 2. Define and start machinlearning run
try:
    run = machinelearning_run(
          name="<run_name>",
          run_group="<run_group>",
          configs={ "epochs": 100, "batch_size": 32 },
          project="<some_project>",
          region="<some_zone>",
          gcs_path="gs://<some_bucket>",
          on_demand_xprof=True,
        )
    logging.info(f"MLRun created: {run.name}")

    # 3. Collect metrics during your run
    metrics.record(metric_types.MetricType.LOSS, 0.123, step=1)
    logging.info("Loss metric recorded.")

    # 4. Capture profiles programmatically
    with xprof():
        # ... your code to profile here ...
        pass
    logging.info("Profile captured.")

except Exception as e:
    logging.error(f"Error during MLRun: {e}", exc_info=True)
"""
YAML = """
import yaml
import json

# Read the YAML file
with open('config.yaml', 'r') as yaml_file:
  # Parse YAML into a Python dictionary
  yaml_data = yaml.safe_load(yaml_file)

# Define machinlearning run
machinelearning_run(
  name="<run_name>",
  run_group="<run_group>",
  configs=yaml_data,
  project="<some_project>",
  region="<some_zone>",
  gcs_path="gs://<some_bucket>",
)
"""
METRICS = """
from google_cloud_mldiagnostics import metric_types
# User codes
# machinelearning_run should be called
# ......

for step in range(num_steps):
  if (step + 1) % 10 == 0:
    # Model quality metrics
    metrics.record(metric_types.MetricType.LEARNING_RATE, step_size, step=step+1)
    metrics.record(metric_types.MetricType.LOSS, loss, step=step+1)
    metrics.record(metric_types.MetricType.GRADIENT_NORM, gradient, step=step+1)
    metrics.record(metric_types.MetricType.TOTAL_WEIGHTS, total_weights, step=step+1)
    # Model performance metrics
    metrics.record(metric_types.MetricType.STEP_TIME, step_time, step=step+1)
    metrics.record(metric_types.MetricType.THROUGHPUT, throughput, step=step+1)
    metrics.record(metric_types.MetricType.LATENCY, latency, step=step+1)
    metrics.record(metric_types.MetricType.TFLOPS, tflops, step=step+1)
    metrics.record(metric_types.MetricType.MFU, mfu, step=step+1)
"""
PROFILES = """
# Support collection via APIs
prof = xprof()  # Updates metadata and starts xprofz collector
prof.start()  # Collects traces to GCS bucket
# ..... Your code execution here
# ....
prof.stop()

# Also supports collection via decorators
@xprof()
def abc(self):
    # does something
    Pass

# Use xprof as a context manager to automatically start and stop collection
with xprof() as prof:
    # Your training or execution code here
    train_model()
    evaluate_model()
"""
HOSTS = """
# starts profiling on all nodes
prof = xprof()
prof.start()
# ...
prof.stop()

# Use the same session_id on all hosts to group traces
prof = xprof()
prof.start(session_id="profiling_session")
# ...
prof.stop()

# starts profiling on node with index 0 and 2
prof = xprof(process_index_list=[0,2])
prof.start()
# ...
prof.stop()
"""
# The documented call has a line of three dots, which is a syntax error there.
ON_DEMAND_AND_ENVIRONMENT = """
# Define machinlearning run
machinelearning_run(
    name="<run_name>",
    # specify where profiling data will be stored
    gcs_path="gs://<bucket>",
    # enable on demand profiling, starts xprofz daemon on port 9999
    on_demand_xprof=True,
    environment=os.environ.get("ENV", "env")
)
"""
POSITIONAL_RUN = """
@xprof(run)
def train_model():
    import jax.numpy
    jax.numpy.ones(10).block_until_ready()

def evaluate_model():
    pass

train_model()
"""

_REDIRECTION = """
import os
from google.cloud.logging_v2 import client

construct = client.Client.__init__

def redirected(self, **given):
    target = os.environ.get("LOOPBACK_GRPC")
    if not target:
        construct(self, _use_grpc=False, client_options={"api_endpoint": os.environ["LOOPBACK_REST"]}, **given)
        return
    import grpc
    from google.cloud.logging_v2 import _gapic
    from google.cloud.logging_v2.services import logging_service_v2
    from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport

    construct(self, _use_grpc=True, **given)
    transport = LoggingServiceV2GrpcTransport(channel=grpc.insecure_channel(target))
    self._logging_api = _gapic._LoggingAPI(logging_service_v2.LoggingServiceV2Client(transport=transport), self)

client.Client.__init__ = redirected
"""


class Cloud:
    """Start a Google Cloud on loopback with an account that may do everything."""

    def __init__(self, folder: Path) -> None:
        self.logging, self.storage = CloudLoggingServer(), CloudStorageServer()
        self.control_plane, self.oauth = ControlPlaneServer(), OAuthServer()
        self.control_plane.accepted_tokens = self.oauth.tokens
        self.storage.create_bucket("my-bucket")
        self.project = self.control_plane.project
        self._folder = folder
        folder.mkdir()
        self.oauth.write_key(folder / "key.json")
        (folder / "sitecustomize.py").write_text(_REDIRECTION)

    def close(self) -> None:
        for server in (self.logging, self.storage, self.control_plane, self.oauth):
            server.close()

    def environment(self, *, is_grpc: bool) -> dict[str, str]:
        """Return the variables of a job in this cloud, with the key of a service account."""
        servers = (self.logging, self.storage, self.control_plane)
        variables = {name: value for server in servers for name, value in server.environment().items()}
        variables |= {"GOOGLE_APPLICATION_CREDENTIALS": str(self._folder / "key.json")}
        variables |= {"PYTHONPATH": str(self._folder), "LOOPBACK_REST": self.logging.rest_url, "LOOPBACK_GRPC": ""}
        if is_grpc:
            variables |= {"LOOPBACK_GRPC": self.logging.grpc_target, "ML_DIAGNOSTICS_LOGGING_TRANSPORT": "grpc"}
        else:
            variables |= {"GOOGLE_CLOUD_DISABLE_GRPC": "true"}
        variables.pop("CLOUDSDK_AUTH_DISABLE_CREDENTIALS")
        return variables

    def metrics(self, run_id: str, namespace: str) -> list[dict[str, Any]]:
        """Return the payloads of a metric."""
        query = f'log_id("ml_diagnostics_metric") AND resource.labels.node_id="{run_id}"'
        query += f' AND resource.labels.namespace="{namespace}" AND resource.labels.location="us-central1"'
        return [entry["jsonPayload"] for entry in self.logging.entries(query)]

    def lines(self) -> list[tuple[str, str, str]]:
        """Return severity, logger and text of each line that `setup_logging()` sent."""
        entries = self.logging.entries('NOT log_id("ml_diagnostics_metric")')
        return [(entry["severity"], entry["labels"]["python_logger"], _text(entry)) for entry in entries]

    def link(self, run_id: str) -> str:
        """Return the URL of the console's page of a run."""
        details = "https://console.cloud.google.com/cluster-director/diagnostics/details"
        return f"{details}/us-central1/{run_id}?project={self.project}"


def _text(entry: dict[str, Any]) -> str:
    return str(entry.get("textPayload") or entry["jsonPayload"]["message"])


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path / "cloud")
    yield cloud
    cloud.close()


def in_the_cloud(program: str, cloud: Cloud) -> str:
    """Return the documented program with its placeholders filled in."""
    filled = program.replace("<some_project>", cloud.project).replace("<some_zone>", "us-central1-a")
    return filled.replace("<some_bucket>", "my-bucket/folder1").replace("<bucket>", "my-bucket")


def on_a_laptop(program: str) -> str:
    """Return the documented program without its lines about Cloud Logging."""
    return program.replace(CLOUD_LOGGING, "").replace("import google.cloud.logging\n", "")


def run(program: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program, and check that it has no failures."""
    environ = {**os.environ, "HOME": str(folder), "JAX_PLATFORMS": "cpu", "NO_GCE_CHECK": "true", **variables}
    environ |= {"ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"), "ML_DIAGNOSTICS_BACKEND": "auto"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error during MLRun" not in done.stderr
    assert "Traceback" not in _without_refused_thread(done.stderr)
    return done


def _without_refused_thread(stderr: str) -> str:
    """Leave out what JAX and google-cloud-logging print by themselves on Python 3.12.

    With the root logger at DEBUG, JAX logs at exit, after the documented `close()`. The handler then starts its thread
    again, which Python 3.12 refuses once the program has ended (gh-104690).
    """
    block = r"^Exception ignored in atexit callback: <function clean_up .*\n(?:.*\n)*?"
    block += r".*logging_v2/handlers/transports/background_thread.py.*\n(?:.*\n)*?"
    return re.sub(block + r"RuntimeError: can't create new thread at interpreter shutdown\n", "", stderr, flags=re.M)


def shown(folder: Path) -> dict[str, Any]:
    """Return the only run, as the command shows it."""
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"), "ML_DIAGNOSTICS_BACKEND": "local"}
    command = [sys.executable, "-m", "google_cloud_mldiagnostics.cli", "show", "last", "--format", "json"]
    asked = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 0, asked.stderr
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


@pytest.mark.parametrize("is_grpc", [True, False])
def test_the_basic_example_runs_in_the_cloud(is_grpc: bool, cloud: Cloud, tmp_path: Path) -> None:
    program = in_the_cloud(IMPORTS + CLOUD_LOGGING + RUN + CLOSE, cloud)
    run(program, tmp_path, cloud.environment(is_grpc=is_grpc))

    [kept] = cloud.control_plane.runs()
    run_id = kept["name"].rpartition("/")[2]
    assert re.fullmatch(r"run-name-\d{8}-\d{6}-\w{4}", run_id)
    assert (kept["displayName"], kept["runSet"], kept["runPhase"]) == ("<run_name>", "<run_group>", "COMPLETED")
    assert kept["configs"]["userConfigs"] == {"epochs": "100", "batch_size": "32"}
    assert kept["artifacts"] == {"gcsPath": "gs://my-bucket/folder1"}
    assert kept["labels"]["on_demand_xprof"] == "enabled"

    assert cloud.metrics(run_id, "loss") == [{"values": [0.123], "step_index": 1, "unit": "1"}]
    assert {"userConfigs": {"epochs": "100", "batch_size": "32"}} in cloud.metrics(run_id, "mlrun_configs")
    assert len(cloud.metrics(run_id, "host_memory_utilization")) >= 1

    [session] = cloud.control_plane.sessions(run_id)
    folder = f"folder1/{run_id}/plugins/profile/{session['name'].rpartition('/')[2]}"
    assert session["storageFolderUri"] == f"gs://my-bucket/{folder}"
    [xplane] = cloud.storage.names("my-bucket")
    assert xplane.startswith(f"{folder}/")
    assert xplane.endswith(".xplane.pb")

    lines = cloud.lines()
    own = [line for line in lines if line[1] == "root"]
    texts = [f"MLRun created: {run_id}", "Loss metric recorded.", "Profile captured."]
    assert own == [("INFO", "root", text) for text in texts]
    assert [severity for severity, _, text in lines if cloud.link(run_id) in text] == ["INFO"]
    complaints = [line for line in lines if line[0] in ("WARNING", "ERROR") and "urllib3" not in line[1]]
    # All jobs of this machine share the example's port, and so do tests that run beside this one.
    assert [line for line in complaints if "Port 9999 is taken" not in line[2]] == []
    assert [text for _, _, text in lines if "0.123" in text or "entries:write" in text] == []  # Metrics are not lines.


def test_with_debug_the_documented_record_shows_the_runs_details(cloud: Cloud, tmp_path: Path) -> None:
    program = in_the_cloud(IMPORTS + CLOUD_LOGGING + DEBUG + RUN + CLOSE, cloud)
    run(program, tmp_path, cloud.environment(is_grpc=True))

    details = [line for line in cloud.lines() if line[1] == "google_cloud_mldiagnostics.core.global_manager"]
    ((severity, _, text),) = details
    assert severity == "DEBUG"
    assert text.startswith("current run details: {'name': ")
    assert "'gcs_path': 'gs://my-bucket/folder1'" in text


def test_the_basic_example_runs_on_a_laptop(tmp_path: Path) -> None:
    done = run(on_a_laptop(IMPORTS + CLOUD_LOGGING + RUN), tmp_path, {})
    found = shown(tmp_path)
    assert (found["state"], found["display_name"], found["group"]) == ("COMPLETED", "<run_name>", "<run_group>")
    assert found["configs"]["user"] == {"epochs": "100", "batch_size": "32"}
    assert [metric["last"] for metric in found["metrics"] if metric["metric"] == "loss"] == [0.123]
    [session] = found["profiles"]
    [staged] = (tmp_path / "diagnostics" / "runs").glob("*/staged/plugins/profile/*/*.xplane.pb")
    assert staged.parent == Path(session["folder"])  # There is no cloud to upload it to.
    assert done.stdout == ""


def test_on_a_laptop_the_log_has_the_path_of_the_run(tmp_path: Path) -> None:
    to_stderr = "logging.basicConfig(level=logging.INFO)\n"
    done = run(on_a_laptop(IMPORTS + to_stderr + RUN), tmp_path, {})
    found = shown(tmp_path)
    own = [line for line in done.stderr.splitlines() if ":google_cloud_mldiagnostics:" in line]
    assert len(own) == 1
    assert found["folder"] in own[0]
    assert f"mldiagnostics show {found['run']}" in own[0]
    assert f"MLRun created: {found['run']}" in done.stderr


def test_the_other_examples_run_in_the_cloud(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {layers: 12, tied: true}\nlearning_rate: 1.0e-3\n")
    numbers = "step_size = loss = gradient = total_weights = step_time = throughput = latency = tflops = mfu = 0.5\n"
    program = IMPORTS + CLOUD_LOGGING + YAML + numbers + "num_steps = 30\n" + METRICS + "run = None\n" + POSITIONAL_RUN
    program += PROFILES + HOSTS
    done = run(in_the_cloud(program, cloud), tmp_path, cloud.environment(is_grpc=True))

    [kept] = cloud.control_plane.runs()
    run_id = kept["name"].rpartition("/")[2]
    configs = {name: json.loads(text) for name, text in kept["configs"]["userConfigs"].items()}
    assert configs == {"model": {"layers": 12, "tied": True}, "learning_rate": 1e-3}
    names = ["learning_rate", "loss", "gradient_norm", "total_weights"]
    names += ["step_time", "throughput", "latency", "tflops", "mfu"]
    for name in names:
        assert [payload["step_index"] for payload in cloud.metrics(run_id, name)] == [10, 20, 30]

    sessions = {name.split("/")[4] for name in cloud.storage.names("my-bucket")}
    assert "profiling_session" in sessions
    assert len(sessions) == 6, done.stderr  # The decorator's is one; inside the third, a second profile is refused.
    assert all(name.startswith(f"folder1/{run_id}/plugins/profile/") for name in cloud.storage.names("my-bucket"))


def test_the_environment_of_the_documented_call_is_prod(cloud: Cloud, tmp_path: Path) -> None:
    done = run(in_the_cloud(IMPORTS + ON_DEMAND_AND_ENVIRONMENT, cloud), tmp_path, cloud.environment(is_grpc=True))
    assert "environment is 'env', which is taken for 'prod'" in done.stderr
    [kept] = cloud.control_plane.runs()
    assert kept["runPhase"] == "COMPLETED"
