"""A job of four JAX processes, one of which does not enter the collective: the command names it and its frame."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..waiting import free_port, wait_until
from . import jax_job

for needed in ("jax", "numpy"):
    pytest.importorskip(needed)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the folder and the signals are those of Linux")

_JOB = "hanging-job"
_LONGEST_START_SECONDS = 90.0
"""Four times the import of JAX, on one core perhaps."""
_LONG_SECONDS = 20.0


class _Ranks:
    """The processes of the job, by rank."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "ML_DIAGNOSTICS_JOB": _JOB, "JAX_PLATFORMS": "cpu"}
        self._log = log
        port = str(free_port())
        self.processes = []
        for rank in range(jax_job.RANKS):
            with (log / f"{rank}.err").open("wb") as stderr:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, jax_job.__file__, str(folder), port, str(rank)],
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        env=self.environment,
                    )
                )

    def wait_until_stuck(self) -> None:
        """Return once the odd rank waits for data, and the others are about to enter the collective."""
        give_up = threading.Timer(_LONGEST_START_SECONDS, self.kill)
        give_up.start()
        try:
            for rank, process in enumerate(self.processes):
                assert process.stdout is not None
                if b"stuck\n" not in iter(process.stdout.readline, b""):  # Gloo prints, too.
                    self._explain(rank)
        finally:
            give_up.cancel()

    def _explain(self, rank: int) -> None:
        self.kill()
        if self.processes[rank].wait() == jax_job.NO_GLOO:
            pytest.skip("this JAX has no collectives between processes on CPUs (gloo)")
        pytest.fail((self._log / f"{rank}.err").read_text()[-3000:])

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        self.kill()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.close()
            process.wait()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Ranks]:
    """Start the job; return its ranks once it hangs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
        patch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path_factory.mktemp("ml-diagnostics")))
        ranks = _Ranks(tmp_path_factory.mktemp("traces") / "debugging", tmp_path_factory.mktemp("log"))
        try:
            ranks.wait_until_stuck()
            yield ranks
        finally:
            ranks.close()


def test_show_names_the_rank_with_another_stack_from_a_folder_of_trace_files(ranks: _Ranks) -> None:
    for process in ranks.processes:
        process.send_signal(signal.SIGUSR1)
    odd = ranks.processes[jax_job.ODD_RANK].pid

    def is_complete(sentence: str) -> bool:
        majority, _, others = sentence.partition("; ")
        return (
            majority.startswith("3 of 4 ")
            and " train_step (jax_job.py:" in majority
            and f":{odd} " in others
            and " in wait_for_missing_data (jax_job.py:" in others
        )

    _wait_until_shown(is_complete, ranks, str(ranks.folder))
    assert all(process.poll() is None for process in ranks.processes)  # The signal has ended no process.


def test_show_names_that_rank_with_its_index_and_step_from_the_journal(ranks: _Ranks) -> None:
    def is_complete(sentence: str) -> bool:
        majority, _, others = sentence.partition("; ")
        return (
            majority.startswith("3 of 4 ")
            and " train_step (jax_job.py:" in majority
            and majority.endswith(f" at step {jax_job.STUCK_STEP}")
            and f"/{jax_job.ODD_RANK} " in others
            and " in wait_for_missing_data (jax_job.py:" in others
            and others.endswith(f" at step {jax_job.STUCK_STEP}")
        )

    _wait_until_shown(is_complete, ranks, "--job", _JOB)
    assert all(process.poll() is None for process in ranks.processes)


def _wait_until_shown(is_complete: Callable[[str], bool], ranks: _Ranks, *where: str) -> None:
    """Run `tpu-stacks show` until its first line is as expected; the next dumps are written within a second."""
    command = [sys.executable, "-m", "cloud_tpu_diagnostics._stacks.cli", "show", *where]

    def is_shown() -> bool:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ranks.environment)
        return is_complete(done.stdout.partition("\n")[0])

    wait_until(is_shown, _LONG_SECONDS)
