"""A job of three processes that hangs, in a quarter of a minute: the verdict, and the process that caused it.

Each process loads a batch and then waits for the others, as a collective does. The last process's data loader stops at
step 40, and with it all stop.
Everything stays under `out/`; no cloud is used.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path

from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import (
    debug_configuration,
    diagnostic_configuration,
    hang_configuration,
    stack_trace_configuration,
)
from cloud_tpu_diagnostics.entries import HANG_SUSPECTED, LOG_ID
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import JournalReader

STUCK_STEP = 40


def next_batch(step: int, *, is_stuck: bool) -> int:
    """Loads a batch, unless the storage has gone away."""
    time.sleep(0.05)
    if is_stuck:
        threading.Event().wait()
    return step


def all_reduce(barrier: Barrier) -> None:
    """Waits for all processes, as a collective does."""
    barrier.wait()


def train(rank: int, ranks: int, barrier: Barrier, floor_seconds: float) -> None:
    """One process of the job."""
    os.environ["RANK"] = str(rank)
    traces = stack_trace_configuration.StackTraceConfig(collect_stack_trace=True)
    hangs = hang_configuration.HangConfig(enabled=True, step_floor_seconds=floor_seconds, snapshots=1)
    debug_config = debug_configuration.DebugConfig(stack_trace_config=traces, hang_config=hangs)
    with diagnostic.diagnose(diagnostic_configuration.DiagnosticConfig(debug_config)):
        for step in range(STUCK_STEP + 1):
            diagnostic.heartbeat(step)
            next_batch(step, is_stuck=rank == ranks - 1 and step == STUCK_STEP)
            all_reduce(barrier)


def verdicts(job: str) -> Iterator[str]:
    """Yield the reports of hangs of this job, as soon as they are in the journal, each with its process."""
    reader = JournalReader(LOG_ID, root=diagnostics_directory())
    while True:
        for batch in reader.read_new():
            for entry in batch:
                if entry.context.labels["job"] == job and entry.payload.get("kind") == HANG_SUSPECTED:
                    yield f"process {entry.context.labels['process_index']}: {entry.payload['message']}"
        time.sleep(0.2)


def main() -> int:
    """Runs the demo; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=3, help="processes (default: %(default)s)")
    parser.add_argument("--floor", type=float, default=5, metavar="SECONDS", help="how soon a silence can be a hang")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the journal (default: out)")
    arguments = parser.parse_args()

    # The job and the report below find each other by these; cloud detection is off.
    job = f"hang-{datetime.now():%Y%m%d-%H%M%S}"
    os.environ["ML_DIAGNOSTICS_DIR"] = str(arguments.out.resolve() / "ml-diagnostics")
    os.environ["ML_DIAGNOSTICS_BACKEND"] = "local"
    os.environ["ML_DIAGNOSTICS_JOB"] = job

    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(arguments.ranks)
    processes = [
        context.Process(target=train, args=(rank, arguments.ranks, barrier, arguments.floor), daemon=True)
        for rank in range(arguments.ranks)
    ]
    print(f"{job}: {arguments.ranks} processes, of which one will stop at step {STUCK_STEP}:", flush=True)
    for process in processes:
        process.start()
    for _, verdict in zip(processes, verdicts(job), strict=False):
        print(f"  {verdict}", flush=True)

    time.sleep(1)  # for the last stacks, on a machine with much else to do
    print(f"\nWhich one do the others wait for (tpu-stacks show --job {job}):\n", flush=True)
    exit_code = subprocess.call([Path(sys.executable).with_name("tpu-stacks"), "show", "--job", job])
    for process in processes:
        process.kill()
        process.join()
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
