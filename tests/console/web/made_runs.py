"""Runs that were never run, written by the public writers: for tests, pictures and benchmarks of the page.

python -m tests.console.web.made_runs many FOLDER [RUNS]
python -m tests.console.web.made_runs wide FOLDER [STEPS [HOSTS]]
python -m tests.console.web.made_runs hang FOLDER [HOSTS]
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.reading import LOG_ID, PROCESS
from ml_diagnostics_common.entry import COMPANION_LOG_ID, format_timestamp
from ml_diagnostics_common.journal import Journal, JournalCap, encode_own_fields

SECOND_NS: Final = 1_000_000_000
_MINUTE_SECONDS: Final = 60.0
_NO_CAP_BYTES: Final = 2**40


@dataclass
class MadeAttempt:
    """One attempt: its first and last step, and its end.

    Attributes:
        first_step: The step that it starts with.
        last_step: The last step that it started.
        phase: ACTIVE, COMPLETED or FAILED.
        reason: Why it ended.
        pause_seconds: The time after it until the next one starts.
    """

    first_step: int
    last_step: int
    phase: str = "COMPLETED"
    reason: str = ""
    pause_seconds: float = 120.0


@dataclass
class MadeRun:
    """A run of hosts with one process each; host 0 records the metrics of steps.

    Attributes:
        run_id: Its id.
        started_ns: Its start, in ns since 1970.
        attempts: Its attempts.
        hosts: The names of its hosts.
        group: Its group.
        step_seconds: The duration of a step.
        startup_seconds: The time from an attempt's start to its first step.
        metrics: The metrics of each step, with their units.
        configs: Its user configs.
        planned_steps: Planned steps; None if they are not known.
        every: Metrics are recorded at each of so many steps.
        host_metrics: Metrics of each host, with their units, once per `host_seconds`.
        host_seconds: The time between two values of a host.
        odd_host: The index of the host that is slower in the last fifth of the run; None if all are alike.
        nan_at: The steps at which the loss is not a number.
        has_goodput: True to record where the time went, too.
        alive_until_ns: Processes without an end send signs of life until this time, in ns since 1970.
        seed: The seed of its noise.
    """

    run_id: str
    started_ns: int
    attempts: Sequence[MadeAttempt]
    hosts: Sequence[str] = ("vm-0",)
    group: str = ""
    step_seconds: float = 0.5
    startup_seconds: float = 20.0
    metrics: dict[str, str] = field(default_factory=lambda: {"loss": "1", "learning_rate": "1", "step_time": "s"})
    configs: dict[str, str] = field(default_factory=dict)
    planned_steps: int | None = None
    every: int = 1
    host_metrics: dict[str, str] = field(default_factory=dict)
    host_seconds: float = _MINUTE_SECONDS
    odd_host: int | None = None
    nan_at: frozenset[int] = frozenset()
    has_goodput: bool = True
    alive_until_ns: int = 0
    seed: int = 1

    def write(self, root: Path) -> int:
        """Write the run and its journals, and return the time of its last entry, in ns since 1970."""
        writer = _Writer(self, root)
        for number, attempt in enumerate(self.attempts, 1):
            writer.write_attempt(number, attempt)
        writer.finish()
        return writer.now_ns


class _Writer:
    """The journals of one run, with a clock that the writer sets."""

    def __init__(self, run: MadeRun, root: Path) -> None:
        self.run, self.root, self.now_ns = run, root, run.started_ns
        self.random = random.Random(run.seed)
        self.kept: list[dict[str, Any]] = []
        self.stamp = str(time.time_ns())  # One time for all calls: the journal checks its file each five seconds of it.
        self.control_plane = LocalControlPlane(root, clock_ns=self.clock_ns)
        hardware = {"device_type": "tpu", "accelerator_type": "tpu-v5p", "num_hosts": str(len(run.hosts))}
        hardware["num_devices"] = str(4 * len(run.hosts))
        self.control_plane.create_run(
            run.run_id,
            {
                "displayName": run.run_id,
                "runSet": run.group,
                "runPhase": "ACTIVE",
                "orchestrator": "CUSTOM",
                "configs": {"userConfigs": run.configs, "hardwareConfigs": hardware, "softwareConfigs": {}},
                "labels": {"attempt": "1"},
            },
        )

    def clock_ns(self) -> int:
        return self.now_ns

    def journal(self, log_id: str, host: int, attempt: int, **options: Any) -> Journal:
        labels = {"job": self.run.run_id, "run": self.run.run_id, "attempt": str(attempt)}
        labels |= {"host": self.run.hosts[host], "process_index": str(host), "pid": str(4000 + attempt)}
        cap = JournalCap(self.root, _NO_CAP_BYTES)
        return Journal(
            log_id,
            root=self.root,
            labels=labels,
            clock_ns=self.clock_ns,
            about_pid=4000 + attempt,
            shippable=False,
            cap=cap,
            **options,
        )

    def run_journal(self, host: int, attempt: int) -> Journal:
        node = {"location": "us-central1", "namespace": "mlrun_losses", "node_id": self.run.run_id}
        return self.journal(LOG_ID, host, attempt, resource={"type": "generic_node", "labels": node})

    def process(self, phase: str, host: int, attempt: int, reason: str = "") -> dict[str, Any]:
        count = len(self.run.hosts)
        payload = {"phase": phase, "attempt": attempt, "hostname": self.run.hosts[host], "process_index": str(host)}
        payload |= {"process_count": count, "pid": 4000 + attempt}
        payload |= {"planned_steps": self.run.planned_steps} if self.run.planned_steps else {}
        return payload | ({"reason": reason} if reason else {})

    def write_attempt(self, number: int, attempt: MadeAttempt) -> None:
        run, start_ns = self.run, self.now_ns
        steps_ns = start_ns + round(run.startup_seconds * SECOND_NS)
        count = attempt.last_step - attempt.first_step + 1
        end_ns = steps_ns + round(count * run.step_seconds * SECOND_NS)
        for host in range(len(run.hosts)):
            self.write_host(host, number, attempt, start_ns, end_ns)
        self.write_steps(number, attempt, steps_ns)
        if run.has_goodput:
            self.write_goodput(number, attempt, start_ns, steps_ns, end_ns)
        kept = {"number": number, "phase": attempt.phase, "reason": attempt.reason, "token": f"{number:016x}"}
        kept |= {"startTime": format_timestamp(start_ns)}
        if attempt.phase != "ACTIVE":
            kept["endTime"] = format_timestamp(end_ns)
        self.kept.append(kept)
        self.now_ns = end_ns
        if attempt.phase != "ACTIVE":
            self.now_ns += round(attempt.pause_seconds * SECOND_NS)

    def write_host(self, host: int, number: int, attempt: MadeAttempt, start_ns: int, end_ns: int) -> None:
        run = self.run
        journal = self.run_journal(host, number)
        self.now_ns = start_ns
        journal.append(self.process("ACTIVE", host, number), resource_labels={"namespace": PROCESS})
        suffixes = {name: encode_own_fields(None, {"namespace": name}) for name in run.host_metrics}
        late_ns = run.started_ns + round(0.8 * (end_ns - run.started_ns))
        for at in range(start_ns, end_ns, round(run.host_seconds * SECOND_NS)):
            is_odd = host == run.odd_host and at > late_ns
            name_fields = f'"hostname":"{run.hosts[host]}","process_index":"{host}"'
            for name, unit in run.host_metrics.items():
                value = _host_value(unit, self.random.gauss(0, 1), is_odd=is_odd)
                text = f'{{"values":[{value:.4f}],"unit":"{unit}",{name_fields}}}'
                journal.append_text(self.stamp, text + suffixes[name], str(at))
        self.now_ns = end_ns
        phase = attempt.phase
        if phase != "ACTIVE":
            entry = self.process(phase, host, number, attempt.reason)
            journal.append(entry, resource_labels={"namespace": PROCESS})
        for at in range(end_ns, run.alive_until_ns if phase == "ACTIVE" else 0, 60 * SECOND_NS):
            alive = json.dumps(self.process("ACTIVE", host, number))
            journal.append_text(self.stamp, alive + encode_own_fields(None, {"namespace": PROCESS}), str(at))
        journal.close(5)

    def write_steps(self, number: int, attempt: MadeAttempt, steps_ns: int) -> None:
        run, gauss = self.run, self.random.gauss
        journal = self.run_journal(0, number)
        suffixes = {name: encode_own_fields(None, {"namespace": name}) for name in run.metrics}
        length = max(1, max(each.last_step for each in run.attempts))
        step_ns = run.step_seconds * SECOND_NS
        for step in range(attempt.first_step, attempt.last_step + 1, run.every):
            at = str(steps_ns + round((step - attempt.first_step + 1) * step_ns))
            noise = gauss(0, 1)
            for name, unit in run.metrics.items():
                value = _step_value(name, step, length, noise, run)
                number_text = f"{value:.6g}" if math.isfinite(value) else '"NaN"'
                mark = "" if math.isfinite(value) else ',"not_finite":true'
                text = f'{{"values":[{number_text}],"step_index":{step},"unit":"{unit}"{mark}}}'
                journal.append_text(self.stamp, text + suffixes[name], at)
        journal.close(5)

    def write_goodput(self, number: int, attempt: MadeAttempt, start_ns: int, steps_ns: int, end_ns: int) -> None:
        run = self.run
        journal = self.journal(f"goodput_{run.run_id}", 0, number - 1)

        def event(at: int, name: str, **fields: Any) -> None:
            payload = {"job_name": run.run_id, **fields, name: at / SECOND_NS}
            journal.append_text(self.stamp, json.dumps(payload), str(at))

        span = steps_ns - start_ns
        event(start_ns, "job_start_time", expected_processes=len(run.hosts))
        event(start_ns + span // 10, "tpu_init_start_time")
        event(start_ns + span * 4 // 10, "tpu_init_end_time")
        event(start_ns + span * 4 // 10, "training_prep_start_time")
        event(start_ns + span * 8 // 10, "training_prep_end_time")
        event(start_ns + span * 8 // 10, "data_loading_start_time")
        event(start_ns + span * 9 // 10, "data_loading_end_time")
        step_ns = run.step_seconds * SECOND_NS
        for step in range(attempt.first_step, attempt.last_step + 1):
            at = steps_ns + round((step - attempt.first_step) * step_ns)
            payload = f'{{"job_name":"{run.run_id}","step_count":{step},"step_start_time":{at / SECOND_NS:.6f}}}'
            journal.append_text(self.stamp, payload, str(at))
        if attempt.phase == "COMPLETED":
            event(end_ns, "job_end_time")
        journal.close(5)

    def finish(self) -> None:
        last = self.run.attempts[-1]

        def change(resource: dict[str, Any]) -> dict[str, Any]:
            resource["attempts"] = [{**kept, "processes": []} for kept in self.kept]
            resource["labels"] = {"attempt": str(len(self.kept))}
            resource["runPhase"] = last.phase
            if last.phase != "ACTIVE":
                resource["endTime"] = self.kept[-1]["endTime"]
            if last.reason:
                resource["errorDetails"] = last.reason
            return resource

        self.control_plane.update_run(self.run.run_id, change)


def _step_value(name: str, step: int, length: int, noise: float, run: MadeRun) -> float:
    if name == "step_time":
        return run.step_seconds * (1 + 0.01 * noise) + (1.1 if step % 5000 == 4999 else 0.0)
    if name == "learning_rate":
        return 1e-3 * min(1.0, (step + 1) / (0.02 * length + 1)) * (0.55 + 0.45 * math.cos(math.pi * step / length))
    if name == "loss":
        if step in run.nan_at:
            return math.nan
        return 2.0 + 9.0 * math.exp(-8.0 * step / length) + 0.05 * noise + (3.0 if step % 40_000 == 39_999 else 0.0)
    return 100.0 + 10 * math.sin(step / length * 12) + noise


def _host_value(unit: str, noise: float, *, is_odd: bool) -> float:
    if unit == "%":
        return max(0.0, min(100.0, 90.0 + 0.7 * noise - (18.5 if is_odd else 0.0)))
    return 0.44 * (1 + 0.01 * noise + (0.12 if is_odd else 0.0))


HOST_METRICS: Final = {
    "host_step_time": "s",
    "tpu_duty_cycle": "%",
    "hbm_utilization": "%",
    "host_cpu_utilization": "%",
    "host_memory_utilization": "%",
}


def many(root: Path, count: int = 1000, *, now_ns: int | None = None) -> None:
    """Write so many small runs of the last weeks: most completed, some failed, one running."""
    chosen = random.Random(7)
    now_ns = now_ns or time.time_ns()
    for index in range(count):
        kind = "ACTIVE" if index == count - 1 else "FAILED" if chosen.random() < 0.12 else "COMPLETED"
        reason = "ValueError: labels of step 97 are out of range" if kind == "FAILED" else ""
        steps = chosen.randrange(20, 60)
        age_seconds = 60.0 if kind == "ACTIVE" else (count - index) * 1800.0 + 400.0
        attempts = [MadeAttempt(0, steps, kind, reason)]
        if chosen.random() < 0.1 and kind != "ACTIVE":
            attempts.insert(0, MadeAttempt(0, steps // 2, "FAILED", "the process was killed (SIGKILL)", 30.0))
        MadeRun(
            f"{chosen.choice(['digits', 'llama3-8b', 'vit-b16', 'sweep'])}-{index:04d}",
            now_ns - round(age_seconds * SECOND_NS),
            attempts,
            group=chosen.choice(["", "digits", "nightly"]),
            step_seconds=1.0,
            startup_seconds=5.0,
            configs={"lr": str(chosen.choice([1e-4, 3e-4, 1e-3])), "batch_size": str(chosen.choice([16, 32, 64]))},
            planned_steps=steps,
            seed=index,
        ).write(root)


def wide(root: Path, steps: int = 1_060_000, hosts: int = 64, *, now_ns: int | None = None) -> str:
    """Write a run of many hosts that was restarted four times, and hangs at its end; return its id."""
    run_id = "llama3-8b-pretrain-7"
    now_ns = now_ns or time.time_ns()
    cuts = [round(steps * share) for share in (0.1, 0.3, 0.54, 0.82)]
    lost = max(1, steps // 1000)
    firsts = [0, *(cut - lost for cut in cuts)]
    ends = ["preempted by the system", "RuntimeError: the link of host 3 failed", "preempted by the system", "killed"]
    attempts = [
        MadeAttempt(first, last, "FAILED", reason, 400.0)
        for first, last, reason in zip(firsts, cuts, ends, strict=False)
    ]
    attempts.append(MadeAttempt(firsts[-1], steps - 1, "ACTIVE"))
    step_seconds = 0.442
    length = sum(each.last_step - each.first_step + 1 for each in attempts) * step_seconds
    length += len(attempts) * 90.0 + 4 * 400.0
    run = MadeRun(
        run_id,
        now_ns - round((length + 720.0) * SECOND_NS),
        attempts,
        hosts=[f"tpu-v5p-{index}" for index in range(hosts)],
        group="llama3",
        step_seconds=step_seconds,
        startup_seconds=90.0,
        metrics={"loss": "1", "step_time": "s", "learning_rate": "1", "gradient_norm": "1", "tokens_per_second": "1/s"},
        configs={"lr": "0.001", "batch_size": "1024", "model": json.dumps({"layers": 32, "width": 4096})},
        planned_steps=steps + steps // 5,
        host_metrics=HOST_METRICS,
        host_seconds=max(5.0, length / 800),
        odd_host=min(17, hosts - 1),
        nan_at=frozenset({round(steps * 0.6)}),
        alive_until_ns=now_ns,
    )
    end_ns = run.write(root)
    write_hang(run, root, end_ns, stuck_host=min(17, hosts - 1), until_ns=max(end_ns, now_ns - 6 * SECOND_NS))
    return run_id


def write_hang(run: MadeRun, root: Path, since_ns: int, *, stuck_host: int, until_ns: int) -> None:
    """Write the snapshots of the companions of a run that makes no progress: all wait for one host."""
    step = run.attempts[-1].last_step
    for host in range(len(run.hosts)):
        writer = _Companion(run, root, host)
        frames = _LOADER_FRAMES if host == stuck_host else _COLLECTIVE_FRAMES
        for at in range(since_ns + 120 * SECOND_NS, until_ns + 1, max(SECOND_NS, (until_ns - since_ns) // 4)):
            unchanged = (at - since_ns) / SECOND_NS
            writer.snapshot(at, frames, step, unchanged)
            if unchanged < 240:
                writer.hang_suspected(at, frames[0], step, unchanged)
        writer.close()


_COLLECTIVE_FRAMES: Final = (
    "block_until_ready (/venv/lib/python3.11/site-packages/jax/_src/array.py:634)",
    "train_step (/job/train.py:212)",
    "main (/job/train.py:301)",
    "<module> (/job/train.py:340)",
)
_LOADER_FRAMES: Final = (
    "__next__ (/job/data.py:40)",
    "next_batch (/job/data.py:22)",
    "main (/job/train.py:298)",
    "<module> (/job/train.py:340)",
)


class _Companion:
    """The companion of one process."""

    def __init__(self, run: MadeRun, root: Path, host: int) -> None:
        self._now_ns = run.started_ns
        number = len(run.attempts)
        labels = {"job": run.run_id, "run": run.run_id, "attempt": str(number), "host": run.hosts[host]}
        labels |= {"process_index": str(host), "pid": str(4000 + number), "expected_processes": str(len(run.hosts))}
        self._journal = Journal(
            COMPANION_LOG_ID, root=root, labels=labels, clock_ns=lambda: self._now_ns, about_pid=4000 + number
        )

    def snapshot(self, at_ns: int, frames: Sequence[str], step: int, unchanged_seconds: float) -> None:
        """Write a snapshot of a main thread and one other."""
        self._now_ns = at_ns
        groups: list[dict[str, Any]] = [
            {"threads": 1, "main": True, "names": ["MainThread"], "frames": list(frames)},
            {"threads": 1, "main": False, "names": ["prefetch"], "frames": ["_fill (/job/data.py:71)"]},
        ]
        for group in groups:
            group |= {"unchanged_snapshots": 1, "unchanged_seconds": unchanged_seconds}
        payload: dict[str, Any] = {"verb": "stacktraceanalyzer", "kind": "snapshot"}
        payload |= {"message": f"main thread: is in {frames[0]}"}
        payload |= {"groups": groups, "threads": 2, "time_ns": at_ns, "phase": "step", "step": step}
        self._journal.append({**payload, "interval_seconds": 600})

    def hang_suspected(self, at_ns: int, frame: str, step: int, stuck_seconds: float) -> None:
        """Write that the job makes no progress."""
        self._now_ns = at_ns
        message = f"The job has made no progress for about {stuck_seconds:.0f} s; its main thread is in {frame}"
        payload: dict[str, Any] = {"verb": "stacktraceanalyzer", "kind": "hang_suspected", "message": message}
        payload["phase"] = "step"
        payload |= {"step": step, "stuck_seconds": stuck_seconds, "timeout_seconds": 60.0, "stuck_frame": frame}
        self._journal.append(payload, severity="ERROR")

    def close(self) -> None:
        """Write what is held."""
        self._journal.close(5)


def hang(root: Path, hosts: int = 64) -> str:
    """Write a small run of many hosts that hangs; return its id."""
    return wide(root, 2000, hosts)


def main(arguments: Sequence[str]) -> None:
    """Write the runs of the command line."""
    kind, folder, *numbers = arguments
    writers: dict[str, Callable[..., object]] = {"many": many, "wide": wide, "hang": hang}
    writers[kind](Path(folder), *map(int, numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
