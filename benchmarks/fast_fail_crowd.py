"""Jobs of stand-ins for trainers, many at once: each process is forked, and enters a real block with fast-fail."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

_STEP_SECONDS = 0.02
_JOIN_SECONDS = 60.0
_FALLOUT = 76
_LONGEST_SECONDS = 120.0
_LINGER_SECONDS = 5.0
"""The time that companions take to write their last entries."""


class Act(NamedTuple):
    """One act of a process, at a time in seconds since all have joined.

    Attributes:
        at: When.
        what: `checkpoint`, `eval`, `pause` (without a report), `leave`, `exit`, `fail`, or `kill`, for itself; `ask`
            (SIGTERM), `stop` and `go` (SIGSTOP, SIGCONT), `cut` and `join` (the same for its companion), or `dead`
            (SIGKILL for its companion), from outside. `plan` is always the first: it has many more steps to do.
        seconds: How long, for the first three.
    """

    at: float
    what: str
    seconds: float = 0.0


_FROM_OUTSIDE = {"ask": signal.SIGTERM, "stop": signal.SIGSTOP, "go": signal.SIGCONT, "kill": signal.SIGKILL}
_TO_COMPANION = {"cut": signal.SIGSTOP, "join": signal.SIGCONT, "dead": signal.SIGKILL}


def healthy_script(seed: int) -> list[list[Act]]:
    """Return what the processes of a healthy job do: something that resembles a failure, and then they all end."""
    draw = random.Random(seed)
    count = draw.randrange(2, 5)
    scripts: list[list[Act]] = [[] for _ in range(count)]
    kind = draw.choice(
        ["none", "save", "last save", "asked", "one asked", "compile", "cut", "dead", "debugger", "eval", "early stop"]
    )
    start = 0.5
    one = draw.randrange(count)
    if kind in ("save", "eval"):
        for script in scripts:
            script.append(Act(start, "checkpoint" if kind == "save" else "eval", draw.uniform(1, 13)))
        start += 13.5
    elif kind == "compile":
        for script in scripts:
            script.append(Act(start, "pause", draw.uniform(11, 13)))
        start += 13.5
    elif kind == "cut":
        scripts[one] += [Act(start, "cut"), Act(start + 3, "join")]
        start += 3.5
    elif kind == "dead":
        scripts[one].append(Act(start, "dead"))
    elif kind == "debugger":
        scripts[one] += [Act(start, "stop"), Act(start + 4, "go")]
        start += 4.5
    elif kind in ("asked", "one asked"):
        for index in range(count):
            if kind == "asked" or index == one:
                scripts[index].append(Act(start + draw.uniform(0, 0.5), "ask"))
        start += 1
    for index, script in enumerate(scripts):
        when = start + draw.uniform(0, 4)
        if kind == "early stop":
            script.append(Act(0, "plan"))
            if index == 0:  # It saves without a report of it, while the others have left.
                script.append(Act(start, "pause", draw.uniform(16, 18)))
                when = start + 18.5
        if kind == "last save" and index == 0:
            script.append(Act(start, draw.choice(["checkpoint", "pause"]), draw.uniform(11, 14)))
            when = start + 14.5
        is_failing = kind == "asked" and draw.random() < 0.3  # After SIGTERM, as it likes.
        script.append(Act(when, "fail" if is_failing else draw.choice(["leave", "leave", "leave", "exit"])))
    return scripts


def healthy_jobs(first: int, count: int, most_at_once: int) -> dict[str, Any]:
    """Run healthy jobs; return how many there were, and those of which a process was ended."""
    results = _run([(seed, healthy_script(seed)) for seed in range(first, first + count)], most_at_once)
    wrong = [
        result
        for result in results
        if result["is_joined"] and any(code in (_FALLOUT, -signal.SIGKILL) for code in result["codes"])
    ]
    return {
        "jobs": sum(result["is_joined"] for result in results),
        "processes": sum(len(result["codes"]) for result in results),
        "wrong": [(result["seed"], result["codes"]) for result in wrong],
        "not_joined": sum(not result["is_joined"] for result in results),
    }


def killed_jobs(processes: int, jobs: int) -> dict[str, Any]:
    """Run jobs of which one process is killed; return the seconds until all are gone, and the right first causes."""
    scripts: list[tuple[int, list[list[Act]]]] = []
    for seed in range(jobs):
        script: list[list[Act]] = [[Act(1e9, "leave")] for _ in range(processes)]
        script[random.Random(seed).randrange(processes)] = [Act(1.0, "kill")]
        scripts.append((seed, script))
    results = [_run([each], 1)[0] for each in scripts]
    right = 0
    for result, (seed, _) in zip(results, scripts, strict=True):
        right += result["first"] == [[random.Random(seed).randrange(processes)]] * processes
    return {"seconds": [result["seconds"] for result in results], "right": right}


class _Job:
    """One job that runs."""

    def __init__(self, seed: int, script: list[list[Act]]) -> None:
        self.seed, self.script = seed, script
        self.folder = Path(tempfile.mkdtemp(prefix="fast-fail-"))
        self.pids: list[int] = []
        self.companions: list[int | None] = []
        self.codes: dict[int, int] = {}
        self.started = time.monotonic()
        self.joined_at = self.killed_at = self.ended_at = 0.0
        self.outside = sorted(
            (act.at, index, act.what)
            for index, acts in enumerate(script)
            for act in acts
            if act.what in _FROM_OUTSIDE or act.what in _TO_COMPANION
        )
        for index in range(len(script)):
            pid = os.fork()
            if pid == 0:
                _be_process(index, len(script), self.folder, script[index])
            self.pids.append(pid)

    def step(self) -> bool:
        """Do what is due; return False once all processes have ended."""
        now = time.monotonic()
        for index, pid in enumerate(self.pids):
            if index not in self.codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                self.codes[index] = os.waitstatus_to_exitcode(ended[1])
                self.ended_at = now
        if len(self.codes) == len(self.pids):
            return False
        if not self.joined_at and all((self.folder / f"joined-{index}").exists() for index in range(len(self.pids))):
            self.joined_at = now
            self.companions = [self._companion(index) for index in range(len(self.pids))]
            (self.folder / "go").write_text("")
        while self.joined_at and self.outside and now >= self.joined_at + self.outside[0][0]:
            _, index, what = self.outside.pop(0)
            if what == "kill":
                self.killed_at = time.monotonic()
            self._signal(index, what)
        if now - self.started > _LONGEST_SECONDS:  # It never joined: counted apart.
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return True

    def _companion(self, index: int) -> int | None:
        """Return a descriptor of a process's companion: its pid may be that of another process later."""
        from ml_diagnostics_common.processes import process_descriptor

        pid = (self.folder / f"joined-{index}").read_text()
        descriptor = process_descriptor(int(pid)) if pid.isdigit() else None
        with contextlib.suppress(OSError):
            if str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                return descriptor
        return None

    def _signal(self, index: int, what: str) -> None:
        companion = self.companions[index]
        with contextlib.suppress(ProcessLookupError):
            if what in _FROM_OUTSIDE and index not in self.codes:  # Not reaped: the pid is still its own.
                os.kill(self.pids[index], _FROM_OUTSIDE[what])
            elif what in _TO_COMPANION and companion is not None:
                signal.pidfd_send_signal(companion, _TO_COMPANION[what])

    def result(self) -> dict[str, Any]:
        """Return its exit codes and times."""
        for descriptor in self.companions:
            if descriptor is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                os.close(descriptor)
        first = self._first_causes() if self.killed_at else []
        return {
            "seed": self.seed,
            "is_joined": bool(self.joined_at),
            "codes": [self.codes[index] for index in range(len(self.pids))],
            "seconds": self.ended_at - self.killed_at,
            "first": first,
        }

    def _first_causes(self) -> list[list[int]]:
        """Return the first cause that each companion has recorded, once all have."""
        from cloud_tpu_diagnostics.entries import FAST_FAIL, LOG_ID
        from ml_diagnostics_common.reader import JournalReader

        deadline = time.monotonic() + 30
        found: list[list[int]] = []
        while len(found) < len(self.pids) and time.monotonic() < deadline:
            time.sleep(0.2)
            entries = [entry for batch in JournalReader(LOG_ID, root=self.folder).read_new() for entry in batch]
            payloads = [entry.payload for entry in entries if entry.payload["kind"] == FAST_FAIL]
            found = [payload["first_cause"]["process_indices"] for payload in payloads if payload["state"] == "decided"]
        return found


def _run(scripts: list[tuple[int, list[list[Act]]]], most_at_once: int) -> list[dict[str, Any]]:
    import cloud_tpu_diagnostics._collect.companion
    import cloud_tpu_diagnostics._collect.fast_fail
    import cloud_tpu_diagnostics.diagnostic  # noqa: F401 (once, not in each process)

    waiting = list(reversed(scripts))
    running: list[_Job] = []
    results: list[dict[str, Any]] = []
    folders: list[Path] = []
    while waiting or running:
        if waiting and len(running) < most_at_once:
            running.append(_Job(*waiting.pop()))
            folders.append(running[-1].folder)
        for job in list(running):
            if not job.step():
                running.remove(job)
                results.append(job.result())
        time.sleep(0.005)
    time.sleep(_LINGER_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return results


def _be_process(index: int, count: int, folder: Path, script: list[Act]) -> NoReturn:
    """Be a process of a job."""
    os.environ.update(
        ML_DIAGNOSTICS_DIR=str(folder),
        ML_DIAGNOSTICS_FAST_FAIL_FOLDER=str(folder / "shared"),
        ML_DIAGNOSTICS_FAST_FAIL_LAUNCH=folder.name,
        JAX_PROCESS_ID=str(index),
        JAX_NUM_PROCESSES=str(count),
        MASTER_ADDR="127.0.0.1",
    )
    sys.stderr = open(folder / f"printed-{index}", "w")  # noqa: SIM115, PTH123
    code = 1
    try:
        code = _train(index, folder, [act for act in script if act.what not in {*_FROM_OUTSIDE, *_TO_COMPANION}])
    finally:
        os._exit(code)


def _companion_of(collection: Any) -> int | None:
    link = getattr(collection, "_companion", None)
    return None if link is None else link._process.pid


def _train(index: int, folder: Path, script: list[Act]) -> int:
    from cloud_tpu_diagnostics import diagnose, heartbeat
    from cloud_tpu_diagnostics._collect import blocks
    from cloud_tpu_diagnostics._fast_fail.status import read_status
    from ml_diagnostics_common.environment import announce_plan
    from ml_diagnostics_common.processes import start_mark

    signal.signal(signal.SIGTERM, lambda *_: None)  # It saves, and ends by its script.
    if script[0].what == "plan":
        script.pop(0)
        announce_plan(planned_steps=1_000_000)
    with diagnose(fast_fail=True):
        deadline = time.monotonic() + _JOIN_SECONDS
        while read_status(os.getpid(), start_mark(os.getpid())) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        while (companion := _companion_of(blocks._current)) is None and time.monotonic() < deadline:
            time.sleep(0.05)  # Its first message is received in a thread.
        (folder / f"joined-{index}.new").write_text(str(companion))
        (folder / f"joined-{index}.new").rename(folder / f"joined-{index}")
        while not (folder / "go").exists():
            time.sleep(_STEP_SECONDS)
        start, step = time.monotonic(), 0
        while True:
            heartbeat(step)
            time.sleep(_STEP_SECONDS)
            step += 1
            if not script or time.monotonic() - start < script[0].at:
                continue
            act = script.pop(0)
            if act.what in ("checkpoint", "eval"):
                heartbeat(step, act.what)
            if act.seconds:
                time.sleep(act.seconds)
            elif act.what == "leave":
                return 0
            elif act.what == "exit":
                os._exit(0)
            elif act.what == "fail":
                os._exit(1)
