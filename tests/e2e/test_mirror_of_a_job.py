"""A job with a recorder and a companion, killed in mid-step: its whole history is in the mirror within seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import EndName, LogPaths, parse_name
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.reader import JournalReader

from ..waiting import wait_until

RUNTIME = "tpu.googleapis.com/runtime_monitor"
TRAINER = """
import time
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import debug_configuration, diagnostic_configuration
from cloud_tpu_diagnostics.configuration import stack_trace_configuration
from ml_goodput_measurement import goodput

recorder = goodput.GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
stacks = stack_trace_configuration.StackTraceConfig(
    collect_stack_trace=True, stack_trace_to_cloud=True, stack_trace_interval_seconds=1
)
debug = debug_configuration.DebugConfig(stack_trace_config=stacks)
with diagnostic.diagnose(diagnostic_configuration.DiagnosticConfig(debug_config=debug)):
    recorder.record_job_start_time()
    for step in range(10**6):
        recorder.record_step_start_time(step)
        if step == 20:
            print("ready", flush=True)
        time.sleep(0.01)
"""


def entries(reader: Any) -> list[tuple[int, str]]:
    return [(entry.timestamp_ns, entry.insert_id) for batch in reader.read_new() for entry in batch]


def kinds_of(reader: Any) -> set[str]:
    return {entry.payload["kind"] for batch in reader.read_new() for entry in batch}


def job_that_is_killed(tmp_path: Path) -> tuple[Path, str]:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    environ = {
        **os.environ,
        "ML_DIAGNOSTICS_MIRROR": mirror,
        "ML_DIAGNOSTICS_DIR": str(root),
        "ML_DIAGNOSTICS_BACKEND": "local",
        "ML_DIAGNOSTICS_LABELS": "team=llm",
        "ML_DIAGNOSTICS_CHIPS": "256",
    }
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == b"ready\n"
    wait_until(lambda: "dump" in kinds_of(JournalReader(RUNTIME, root=root)))
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate()
    return root, mirror


def ends(mirror: str, log_id: str) -> list[str]:
    paths = Bucket(mirror).list_paths(LogPaths.of(mirror, log_id).folder)
    return [json.loads(Path(path).read_bytes())["by"] for path in paths if isinstance(parse_name(path), EndName)]


def test_the_companion_completes_the_mirror_of_a_killed_job(tmp_path: Path) -> None:
    root, mirror = job_that_is_killed(tmp_path)
    wait_until(lambda: ends(mirror, "goodput_run-7") == ["companion"])
    journal = entries(JournalReader("goodput_run-7", root=root))
    reader = MirrorReader("goodput_run-7", mirror=mirror)
    assert len(journal) > 20
    assert entries(reader) == journal
    (writer,) = reader.writers()
    assert writer.labels.items() >= {"team": "llm", "chips": "256", "job": "run-7"}.items()
    assert reader.is_complete(time.time_ns(), job="run-7")
    wait_until(lambda: "self" in ends(mirror, RUNTIME))
    kinds, mirrored = kinds_of(JournalReader(RUNTIME, root=root)), kinds_of(MirrorReader(RUNTIME, mirror=mirror))
    assert kinds - mirrored == {"console"}  # What a job prints stays on this machine.
    assert "job_ended" in mirrored


def test_without_a_mirror_nothing_of_it_is_imported_or_started(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom ml_goodput_measurement import goodput\n"
        "from ml_diagnostics_common.worker import thread_names\n"
        "recorder = goodput.GoodputRecorder('r', 'l', logging_enabled=True)\nrecorder.record_job_start_time()\n"
        "recorder.flush()\n"
        "assert not [name for name in sys.modules if 'mirror' in name], sys.modules\n"
        "assert 'ml-diagnostics-mirror' not in thread_names().values()\n"
    )
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(tmp_path), "ML_DIAGNOSTICS_BACKEND": "local"}
    environ.pop("ML_DIAGNOSTICS_MIRROR", None)
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=60)
    assert Journal("l", root=tmp_path, labels={}).folder.is_dir()
