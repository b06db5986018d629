"""Upkeep of a run: configs are collected ever less often; a run that starts at an odd moment does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics import machinelearning_run
from google_cloud_mldiagnostics._run_state.attempts import Member, end, join, last_attempt, new_run
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.core.global_manager import active_run
from google_cloud_mldiagnostics.exceptions import ControlPlaneError

from ..waiting import wait_until
from . import run_programs as programs


def test_software_is_collected_once_and_devices_are_polled_with_growing_delays() -> None:
    ended = programs.run("""
        from google_cloud_mldiagnostics import _system_configs as system_configs
        from google_cloud_mldiagnostics._run.lifecycle import Lifecycle
        asked, pauses = {"software": [], "hardware": []}, []
        take = Lifecycle._take_collected
        def take_and_note(self, *arguments, **named):
            before = time.monotonic()
            take(self, *arguments, **named)
            pauses.append(self._collect_at - before)
        Lifecycle._take_collected = take_and_note
        software, hardware = system_configs.collect_software, system_configs.collect_hardware
        system_configs.collect_software = lambda *a: asked["software"].append(time.monotonic()) or software(*a)
        system_configs.collect_hardware = lambda: asked["hardware"].append(time.monotonic()) or hardware()
        start_run(pauses=Pauses(hardware_seconds=0.02))
        while len(asked["hardware"]) < 7:
            time.sleep(0.01)
        assert pauses[5] > 3 * pauses[0], pauses
        print(len(asked["software"]), flush=True)
    """)
    assert (ended.code, ended.output) == (0, "1\n"), ended.errors


def test_a_runs_start_and_end_are_put_on_the_disk_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    sync = os.fdatasync

    def note(descriptor: int) -> None:
        kept.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    run = machinelearning_run("train", log_system_metrics=False)
    wait_until(lambda: kept)
    at_the_start = len(kept)
    run.finish()
    assert len(kept) > at_the_start
    assert all("ml_diagnostics_metric" in path for path in kept)


def test_a_run_that_starts_while_the_interpreter_ends_warns_that_its_end_is_not_recorded() -> None:
    ended = programs.run("""
        import logging
        logging.basicConfig()
        atexit.register(start_run, "first")
        atexit.register(lambda: start_run("second").finish())
    """)
    assert ended.code == 0
    assert ended.errors.count("Call its finish()") == 1
    assert {run["displayName"]: run["runPhase"] for run in programs.kept_runs()} == {
        "first": "ACTIVE",
        "second": "COMPLETED",
    }


def test_a_profile_that_cannot_be_written_is_not_blamed_on_a_control_plane(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ControlPlaneError("the disk is full")

    monkeypatch.setattr(LocalControlPlane, "put_session", refuse)
    run = machinelearning_run("train", log_system_metrics=False)
    active = active_run()
    assert active is not None
    assert active.registration is not None
    active.registration.put_session("s1", {"kind": "KIND_PROGRAMMATIC"})
    run.finish()
    wait_until(lambda: "the disk is full" in caplog.text)
    assert "control plane" not in caplog.text


# --- Two processes with the same index ----------------------------------------------------------------

TRAINER, EVALUATOR = Member("a", 0, 100, "ticks-100"), Member("a", 0, 101, "ticks-101")
NOW = "2026-03-10T01:02:03Z"


def joined(run: Resource, member: Member, *, is_alive: bool, token: str = "") -> Resource:
    changed = join({}, member, token=token, number=1, now=NOW, is_alive=lambda *_: is_alive)(run)
    assert changed is not None
    return changed


def ended(run: Resource, member: Member) -> Resource:
    changed = end(member, "COMPLETED", "", now=NOW)(run)
    assert changed is not None
    return changed


def phases(run: Resource) -> list[Any]:
    return [attempt["phase"] for attempt in run["attempts"]]


@pytest.mark.parametrize("token", ["", "life-1"])
def test_a_living_process_is_not_recorded_as_killed_by_another_of_its_index(token: str) -> None:
    run = joined(new_run({}, TRAINER, token=token, number=1, now=NOW), EVALUATOR, is_alive=True, token=token)
    assert phases(run) == ["ACTIVE"]
    run = ended(run, EVALUATOR)
    assert (phases(run), run["runPhase"]) == (["ACTIVE"], "ACTIVE")
    run = ended(run, TRAINER)
    assert (phases(run), run["runPhase"]) == (["COMPLETED"], "COMPLETED")


def test_a_process_with_the_index_of_one_that_is_gone_starts_another_attempt() -> None:
    run = joined(new_run({}, TRAINER, token="", number=1, now=NOW), EVALUATOR, is_alive=False)
    assert phases(run) == ["FAILED", "ACTIVE"]


def test_two_programs_of_one_workload_at_once_share_its_attempt() -> None:
    job = {"RUN_WORKLOAD_ID": "w"}
    trainer = programs.start("start_run(); ready(); sys.stdin.readline()", **job)
    programs.await_line(trainer, "ready")
    assert programs.run("start_run()", **job).code == 0
    assert programs.end(trainer, input_text="go on\n").code == 0
    run = programs.kept_run()
    last = last_attempt(run)
    assert last is not None
    assert (len(run["attempts"]), last["phase"], len(last["processes"])) == (1, "COMPLETED", 2)
    assert "errorDetails" not in run


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("workload", [{}, {"RUN_WORKLOAD_ID": "w"}, {"SLURM_JOB_ID": "7"}])
def test_workers_that_import_the_script_again_do_not_start_a_run(
    method: str, workload: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        programs.PREAMBLE
        + f"""
import multiprocessing
run = start_run()

def loaded(number):
    run.configs.update(x=number)
    metrics.record("loss", 0.5)
    run.finish()
    return number

if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        print(sum(pool.map(loaded, range(4))), flush=True)
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **workload}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    run = programs.kept_run()
    assert (run["runPhase"], len(run["attempts"]), len(run["attempts"][0]["processes"])) == ("COMPLETED", 1, 1)


def test_a_worker_may_have_a_run_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        programs.PREAMBLE
        + """
import multiprocessing

def train():
    start_run("in the worker")

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=train)
    worker.start()
    worker.join()
"""
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    assert programs.kept_run()["displayName"] == "in the worker"
