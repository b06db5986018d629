"""The faults that are injected: one list.

Times are those of the bench: hang floors of 5 s, where a job in production has 30 s; pauses are shortened likewise.
"""

from __future__ import annotations

from typing import Final

from ml_diagnostics_console.faultbench._kinds import At, Culprit, Expected, Kind
from ml_diagnostics_console.faultbench._verification import (
    all_of,
    completed,
    exited,
    failed_with,
    has_computed,
    has_event,
    has_gone_on,
    is_asleep_in,
    is_stopped,
    never_started_steps,
    of_attempts,
    replayed,
)
from ml_diagnostics_console.verdict import Blame, VerdictClass

__all__ = ["FAULTS"]

_CRASH, _STUCK, _SLOW = VerdictClass.CRASH, VerdictClass.STUCK, VerdictClass.SLOW
_START, _NUMBERS, _RESTARTS = VerdictClass.BEFORE_START, VerdictClass.NUMBERS, VerdictClass.RESTARTS
_USER, _SYSTEM, _UNKNOWN, _PREEMPTION = Blame.USER, Blame.SYSTEM, Blame.UNKNOWN, Blame.PREEMPTION

_LONG_SECONDS: Final = 75.0
"""For a job that goes on to its end."""
_USER_CRASH = Expected((_CRASH,), (_USER,))
_USER_STUCK = Expected((_STUCK,), (_USER, _UNKNOWN))
_ASKED = Expected((_CRASH,), (_PREEMPTION,))

_ENDS: Final = (
    Kind(
        "sigkill",
        "SIGKILL, by itself or by the bench",
        Expected((_CRASH,), (_SYSTEM, _UNKNOWN)),
        exited(signals=("SIGKILL",)),
        At.EITHER,
        is_ending=True,
    ),
    Kind(
        "sigsegv",
        "reads address 0 in native code, or SIGSEGV by the bench",
        Expected((_CRASH,), (_UNKNOWN, _USER)),
        exited(signals=("SIGSEGV",)),
        At.EITHER,
        is_ending=True,
    ),
    Kind(
        "sigabrt",
        "abort() in its main thread",
        Expected((_CRASH,), (_UNKNOWN, _USER)),
        exited(signals=("SIGABRT",)),
        is_ending=True,
    ),
    Kind("os_exit_0", "os._exit(0)", _USER_CRASH, exited(code=0), is_ending=True),
    Kind("sys_exit_0", "sys.exit(0)", _USER_CRASH, has_event("injected"), is_ending=True),
    Kind("sys_exit_3", "sys.exit(3)", _USER_CRASH, has_event("injected"), is_ending=True),
    Kind(
        "exception_early_all",
        "ValueError at the first step, on all",
        Expected((_START, _CRASH), (_USER,), Culprit.ALL),
        failed_with("ValueError: batch", on_all=True),
        is_ending=True,
        settings={"step": 0, "is_on_all": True},
    ),
    Kind(
        "exception_early_one",
        "ValueError at the first step, on one",
        Expected((_CRASH, _START), (_USER,)),
        failed_with("ValueError: batch"),
        is_ending=True,
        settings={"step": 0},
    ),
    Kind("exception_late", "ValueError in a step", _USER_CRASH, failed_with("ValueError: batch"), is_ending=True),
    Kind(
        "exception_in_thread",
        "ValueError in the thread that loads batches; the main thread waits for it",
        _USER_STUCK,
        all_of(failed_with("is truncated"), is_asleep_in("futex")),
    ),
    Kind("exception_in_input", "ValueError in the input", _USER_CRASH, failed_with("cannot decode"), is_ending=True),
    Kind("exception_in_save", "RuntimeError in a save", _USER_CRASH, failed_with("its metadata"), is_ending=True),
)

_STOPS: Final = (
    Kind("sigstop", "SIGSTOP", Expected((_STUCK,), (_SYSTEM, _UNKNOWN)), is_stopped(), At.EITHER),
    Kind("deadlock", "acquires a lock twice", _USER_STUCK, is_asleep_in("futex")),
    Kind("gil_held", "sleeps in native code with the GIL", _USER_STUCK, is_asleep_in("nanosleep")),
    Kind("busy_loop", "computes in Python for ever", _USER_STUCK, has_computed),
    Kind("input_stuck", "reads a pipe that nothing writes", _USER_STUCK, is_asleep_in("pipe_read")),
    Kind(
        "diverged_program",
        "runs another collective than the others",
        Expected((_STUCK, _CRASH), (_USER, _UNKNOWN)),
        has_event("injected"),
        least_processes=3,
    ),
)

_SLOW_ONES: Final = (
    *(
        Kind(
            f"slow_host_{factor:g}",
            f"host work of each step longer, by {factor - 1:.0%} of a step",
            Expected((_SLOW,), (_SYSTEM, _USER, _UNKNOWN)),
            all_of(has_gone_on(100), completed),
            steps_after=240,
            observe_seconds=_LONG_SECONDS,
            settings={"fault": "slow_host", "size": factor},
        )
        for factor in (1.1, 1.3, 2.0)
    ),
    Kind(
        "slow_input",
        "each batch takes as long as the rest of the step, or up to three times as long, on all",
        Expected((_SLOW,), (_USER,), Culprit.ALL),
        all_of(has_gone_on(60), completed),
        steps_after=130,
        observe_seconds=_LONG_SECONDS,
        settings={"is_on_all": True, "size_range": (1, 4)},
    ),
    Kind(
        "slow_save",
        "saves take half of the time, on all",
        Expected((_SLOW, _RESTARTS), (_USER, _SYSTEM), Culprit.ALL),
        all_of(has_gone_on(60), completed),
        steps_after=130,
        observe_seconds=_LONG_SECONDS,
        settings={"is_on_all": True, "pause_seconds": 1.2, "save_every": 20},
    ),
    Kind(
        "recompiling",
        "a new shape in each step, on all",
        Expected((_SLOW,), (_USER,), Culprit.ALL),
        all_of(has_gone_on(10), completed),
        steps_after=24,
        observe_seconds=_LONG_SECONDS,
        settings={"is_on_all": True},
    ),
)

_VALUES: Final = (
    Kind(
        "nan_loss",
        "infinite inputs on one process; the loss is not finite",
        Expected((_NUMBERS,), (_USER, _SYSTEM, _UNKNOWN), Culprit.NONE),
        all_of(has_event("not_finite"), completed),
        steps_after=40,
        observe_seconds=_LONG_SECONDS,
    ),
)

_LIMITS: Final = (
    Kind(
        "disk_full",
        "saves to a file system of 1 MiB",
        Expected((_CRASH,), (_USER, _SYSTEM)),
        failed_with("No space left on device", "requested and"),
        is_ending=True,
        needs="mount",
    ),
    Kind(
        "io_error",
        "a read of the input fails with EIO",
        Expected((_CRASH,), (_USER, _SYSTEM)),
        failed_with("Input/output error"),
        is_ending=True,
    ),
    Kind(
        "memory_limit",
        "RLIMIT_AS, and arrays above it",
        _USER_CRASH,
        failed_with("Unable to allocate"),
        is_ending=True,
    ),
    Kind(
        "cgroup_memory",
        "a control group with less memory than it uses",
        _USER_CRASH,
        exited(signals=("SIGKILL",)),
        is_ending=True,
        needs="control_group",
    ),
)

_ASKED_ONES: Final = (
    Kind(
        "sigterm_no_handler",
        "SIGTERM to one; JAX's handler takes it, and the job goes on to its end",
        Expected((VerdictClass.HEALTHY,), (), Culprit.NONE, with_blame=_PREEMPTION),
        all_of(has_event("signalled"), completed),
        At.OUTSIDE,
        settings={"signal": "SIGTERM"},
        steps_after=60,
        observe_seconds=_LONG_SECONDS,
    ),
    Kind(
        "sigterm_handler_before",
        "SIGTERM to one; a handler from before jax.distributed.initialize",
        Expected((_CRASH, VerdictClass.HEALTHY), (), Culprit.NONE, with_blame=_PREEMPTION),
        has_event("signalled"),
        At.OUTSIDE,
        settings={"signal": "SIGTERM", "sigterm": "before"},
        steps_after=60,
        observe_seconds=_LONG_SECONDS,
    ),
    Kind(
        "sigterm_handler_after",
        "SIGTERM to one; a later handler of Python that exits with 0",
        Expected((_CRASH,), (_PREEMPTION, _USER)),
        has_event("signalled"),
        At.OUTSIDE,
        settings={"signal": "SIGTERM", "sigterm": "after"},
    ),
    Kind(
        "sigterm_then_sigkill",
        "SIGTERM to one, and SIGKILL 5 s later",
        _ASKED,
        exited(signals=("SIGKILL",)),
        At.OUTSIDE,
        is_ending=True,
        steps_after=400,
        settings={"signal": "SIGTERM", "kill_after_seconds": 5.0},
    ),
)

_LAUNCHES: Final = (
    Kind(
        "process_missing",
        "one process is not started",
        Expected((_START,), (_UNKNOWN, _SYSTEM, _USER)),
        never_started_steps,
        At.LAUNCHER,
        observe_seconds=14.0,
        settings={"startup_floor_seconds": 8.0},
    ),
    Kind(
        "index_twice",
        "two processes with one index, and none with another",
        Expected((_START,), (_USER,), Culprit.ONE),
        never_started_steps,
        At.LAUNCHER,
        least_processes=3,
        observe_seconds=14.0,
        settings={"startup_floor_seconds": 8.0},
    ),
    Kind(
        "wrong_coordinator",
        "one process has another coordinator's address",
        Expected((_START,), (_UNKNOWN, _SYSTEM, _USER)),
        never_started_steps,
        At.LAUNCHER,
        observe_seconds=14.0,
        settings={"startup_floor_seconds": 8.0, "not_process_0": True},
    ),
    Kind(
        "version_skew",
        "another version of a package on one host; the job completes",
        Expected((_START,), (_USER,)),
        completed,
        At.LAUNCHER,
        least_processes=3,
        steps_after=20,
        observe_seconds=_LONG_SECONDS,
    ),
    Kind(
        "config_skew",
        "another learning rate in the configs of one host; the job completes",
        Expected((_START,), (_USER,)),
        completed,
        At.LAUNCHER,
        least_processes=3,
        steps_after=20,
        observe_seconds=_LONG_SECONDS,
    ),
    Kind(
        "restart_loop",
        "three attempts that end with the same exception",
        Expected((_RESTARTS,), (_USER,)),
        all_of(failed_with("ValueError: batch"), of_attempts(3)),
        settings={"attempts": 3, "short_timeouts": True},
    ),
    Kind(
        "stale_restore",
        "killed, then started from a much older checkpoint than the last; the job completes",
        Expected((_RESTARTS,), (_USER,), Culprit.NONE),
        all_of(completed, of_attempts(2)),
        At.OUTSIDE,
        steps_after=20,
        observe_seconds=_LONG_SECONDS,
        settings={"attempts": 2, "first_steps": (0, 2), "step": 90, "save_every": 20, "signal": "SIGKILL"},
    ),
)

_CLOCKS: Final = (
    Kind(
        "clock_offset",
        "SIGKILL, with clocks that differ by up to a minute",
        Expected((_CRASH,), (_SYSTEM, _UNKNOWN)),
        exited(signals=("SIGKILL",)),
        is_ending=True,
        settings={"fault": "sigkill", "clock_offset_seconds": 60.0, "hosts": "own"},
    ),
    Kind(
        "clock_drift",
        "ValueError, with clocks that drift by up to 10 %",
        _USER_CRASH,
        failed_with("ValueError: batch"),
        is_ending=True,
        settings={"clock_drift_ppm": 100_000.0, "hosts": "own"},
    ),
)

_NETWORK: Final = (
    Kind(
        "partition",
        "a network namespace a process; the culprit's link is taken down",
        Expected((_STUCK, _CRASH), (_SYSTEM, _UNKNOWN)),
        has_event("signalled"),
        At.OUTSIDE,
        least_processes=3,
        observe_seconds=16.0,
        settings={"network": "down", "short_timeouts": True, "not_process_0": True, "hosts": "own"},
        needs="network",
    ),
    Kind(
        "packet_loss",
        "a network namespace a process; the culprit's link drops most packets",
        Expected((_STUCK, _SLOW), (_SYSTEM, _UNKNOWN), Culprit.NONE),
        has_event("signalled"),
        At.OUTSIDE,
        observe_seconds=16.0,
        settings={"network": "loss", "not_process_0": True, "hosts": "own"},
        needs="network",
    ),
)

_HARDWARE: Final = (
    Kind(
        "replayed_ici",
        "a link between chips is reported to be unusable",
        Expected((_SLOW, _STUCK, _CRASH), (_SYSTEM,)),
        completed,
        At.REPLAYED,
        observe_seconds=_LONG_SECONDS,
        settings={"hosts": "own"},
    ),
    Kind(
        "replayed_hbm",
        "a GPU is reported to have an uncorrectable error of its memory",
        Expected((_SLOW, _STUCK, _CRASH), (_SYSTEM,)),
        completed,
        At.REPLAYED,
        observe_seconds=_LONG_SECONDS,
        settings={"hosts": "own"},
    ),
    Kind(
        "replayed_thermal",
        "a chip is reported to be throttled by 40 %, for over a minute",
        Expected((_SLOW,), (_SYSTEM,)),
        completed,
        At.REPLAYED,
        steps_after=2300,
        observe_seconds=150.0,
        settings={"hosts": "own"},
    ),
)

_WAITING: Final = VerdictClass.WAITING
_CLUSTER: Final = (
    *(
        Kind(name, how, Expected(classes, blames, Culprit.NONE), replayed, At.REPLAYED)
        for name, how, classes, blames in (
            ("replayed_no_node", "pods Pending: no node has enough chips", (_WAITING,), ()),
            ("replayed_quota", "pods are not created: the quota is in use", (_WAITING,), (_SYSTEM, _USER)),
            ("replayed_no_capacity", "pods Pending: the autoscaler gets no machines", (_WAITING,), (_SYSTEM,)),
            ("replayed_image_pull", "pods Pending: the image does not exist", (_WAITING,), (_USER,)),
            ("replayed_mount", "pods Pending: a secret to be mounted does not exist", (_WAITING,), (_USER,)),
            ("replayed_too_large", "pods Pending: larger than any node", (_START, _WAITING), (_USER,)),
            ("replayed_gang", "one pod Pending, the others run", (_WAITING,), (_SYSTEM, _USER, _UNKNOWN)),
        )
    ),
    *(
        Kind(
            name,
            how,
            Expected((_CRASH,), (_SYSTEM,)),
            exited(signals=("SIGKILL",)),
            At.REPLAYED,
            settings={"fault": "sigkill", "hosts": "own"},
        )
        for name, how in (
            ("replayed_eviction", "SIGKILL, and a pod that the kubelet has evicted"),
            ("replayed_node_loss", "SIGKILL, and a pod on a node that was lost"),
        )
    ),
)

FAULTS: Final = (
    *_ENDS,
    *_STOPS,
    *_SLOW_ONES,
    *_VALUES,
    *_LIMITS,
    *_ASKED_ONES,
    *_LAUNCHES,
    *_CLOCKS,
    *_NETWORK,
    *_HARDWARE,
    *_CLUSTER,
)
