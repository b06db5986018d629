"""Run in an empty environment with the wheel and common: the documented job in a child, asked by `kill -USR1`."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloud_tpu_diagnostics
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics._stacks.local_processes import find_processes
from cloud_tpu_diagnostics.src import diagnose as diagnose_by_its_second_name

JOB = """
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import debug_configuration
from cloud_tpu_diagnostics.configuration import diagnostic_configuration
from cloud_tpu_diagnostics.configuration import stack_trace_configuration

stack_trace_config = stack_trace_configuration.StackTraceConfig(collect_stack_trace=True, stack_trace_to_cloud=True)
debug_config = debug_configuration.DebugConfig(stack_trace_config=stack_trace_config)
diagnostic_config = diagnostic_configuration.DiagnosticConfig(debug_config=debug_config)


def run_job(_):
    print("running", flush=True)
    input()


with diagnostic.diagnose(diagnostic_config):
    run_job(...)
"""

assert diagnose_by_its_second_name.diagnose is diagnostic.diagnose
assert "site-packages" in cloud_tpu_diagnostics.__file__

with tempfile.TemporaryDirectory() as folder:
    os.environ.update(ML_DIAGNOSTICS_DIR=folder, ML_DIAGNOSTICS_BACKEND="local", ML_DIAGNOSTICS_JOB="wheel")
    with subprocess.Popen([sys.executable, "-I", "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        job.stdout.readline()
        os.kill(job.pid, signal.SIGUSR1)
        (trace,) = (process.path for process in find_processes() if process.pid == job.pid)
        while " in run_job" not in trace.read_text():
            time.sleep(0.05)
        job.communicate(b"\n", timeout=30)
    assert job.returncode == 0

    command = str(Path(sys.executable).with_name("tpu-stacks"))
    shown = subprocess.run([command, "show", str(trace)], capture_output=True, text=True, check=True)
    assert "run_job" in shown.stdout, shown.stdout
    for _ in range(300):  # The companion records the exit of the job after it has noticed it.
        shown = subprocess.run([command, "show", "--job", "wheel"], capture_output=True, text=True, check=False)
        if "ended well" in shown.stdout:
            break
        time.sleep(0.1)
    assert "ended well" in shown.stdout, shown
    trace.unlink()
print("cloud_tpu_diagnostics: collects, answers, and records the end")
