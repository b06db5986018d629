"""Threads of ours import nothing while a worker may be forked: it would wait for ever for the lock of the module."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.metadata import MetadataServer

from .loopback.control_plane import ControlPlaneServer
from .waiting import run_program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

SEEN = """
import os, sys, threading, time
from importlib.machinery import BuiltinImporter
from ml_diagnostics_common import process_hooks

LOCKS = [process_hooks._IMPORT_LOCK, process_hooks.PROCESS_START_LOCK]
seen = {}

class Witness:
    '''Is asked first for each module that is not yet imported.'''

    @staticmethod
    def find_spec(name, path=None, target=None):
        in_thread = threading.current_thread() is not threading.main_thread()
        if in_thread and name not in sys.builtin_module_names and not any(lock._lock._is_owned() for lock in LOCKS):
            seen.setdefault(name, threading.current_thread().name)

def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()

sys.meta_path.insert(0, Witness)
"""
REPORT = """
print(*(f"{name} in {thread}" for name, thread in seen.items()), sep="\\n", flush=True)
os._exit(0)
"""
RUN = """
from google_cloud_mldiagnostics import machinelearning_run, metrics
run = machinelearning_run(name="x", run_group="g", gcs_path="gs://test-bucket/p")
metrics.record("loss", 1.0)
time.sleep(2.5)  # The first system metrics, and what a run sends.
"""
RECORDER = """
from ml_goodput_measurement.goodput import GoodputRecorder
recorder = GoodputRecorder("job", "log", True)
recorder.record_job_start_time()
recorder.record_step_start_time(0)
time.sleep(1.5)
recorder.record_job_end_time()
"""
BLOCK = """
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import (
    debug_configuration, diagnostic_configuration, stack_trace_configuration
)
traces = stack_trace_configuration.StackTraceConfig(
    collect_stack_trace=True, stack_trace_to_cloud=False, stack_trace_interval_seconds=1
)
debug = debug_configuration.DebugConfig(stack_trace_config=traces)
with diagnostic.diagnose(diagnostic_configuration.DiagnosticConfig(debug_config=debug)):
    time.sleep(1.5)
"""
STORAGE = """
from ml_diagnostics_common.storage import storage_for
storage = storage_for("gs://test-bucket/key", deadline_seconds=10)
in_thread(storage.write, "gs://test-bucket/key", b"x")
in_thread(storage.read, "gs://test-bucket/key")
in_thread(storage.list_prefix, "gs://test-bucket/")
"""
METERS = """
from google_cloud_mldiagnostics._system_metrics import gpu, host, tpu
for meter in host.HostMeter(), host.ProcessMeter(), gpu.GpuMeter(lambda _: True):
    in_thread(meter.collect)
in_thread(tpu.collect_tpu)
"""


@pytest.fixture
def environ(
    tmp_path: Path,
    cloud_logging_server: CloudLoggingServer,
    cloud_storage_server: CloudStorageServer,
    control_plane_server: ControlPlaneServer,
    metadata_server: MetadataServer,
) -> dict[str, str]:
    servers = cloud_logging_server, cloud_storage_server, control_plane_server, metadata_server
    variables = {name: text for server in servers for name, text in server.environment().items()}
    return {**os.environ, **variables, "ML_DIAGNOSTICS_DIR": str(tmp_path), "ML_DIAGNOSTICS_BACKEND": "auto"}


@pytest.mark.parametrize("logging_by", ["rest", "grpc"])
@pytest.mark.parametrize("program", [RUN, RECORDER], ids=["run", "recorder"])
def test_no_thread_that_sends_imports_while_a_worker_may_be_forked(
    program: str, logging_by: str, environ: dict[str, str]
) -> None:
    check(program, {**environ, "ML_DIAGNOSTICS_LOGGING_TRANSPORT": logging_by})


@pytest.mark.parametrize("program", [STORAGE, METERS, BLOCK], ids=["storage", "meters", "block"])
def test_no_thread_that_uploads_or_measures_or_dumps_imports_while_a_worker_may_be_forked(
    program: str, environ: dict[str, str]
) -> None:
    check(program, environ)


def check(program: str, environ: dict[str, str]) -> None:
    assert run_program(SEEN + program + REPORT, env=environ) == "\n"
