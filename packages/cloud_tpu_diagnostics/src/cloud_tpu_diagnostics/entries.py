"""The keys of each kind of entry in the log `tpu.googleapis.com/runtime_monitor`.

All have `verb`, which the documented query of Logs Explorer filters by, `kind`, and `message`, which is for people.

dump            what faulthandler wrote, or the stack of an exception that left the block: `trigger` (timer, signal,
                fault or exception), `threads`, `headline`, `is_cut`, and the text in `message`. A long text is
                split over several entries with the same number `dump`: `part` of `parts`
snapshot        the threads by equal stack: `groups`, `threads`, `time_ns`, `left_out`
process_state   the state of the process at a hang, twice: `states`, `wait_channels`, `system_calls`, `seconds` between
                the samples, and in these `cpu_seconds` and `main_thread_cpu_seconds`
step_summary    the steps of ten seconds: see `_companion.step_summary`
hang_suspected  `phase`, `step`, `stuck_seconds`, `timeout_seconds`, `stuck_frame`
compiles        JAX's compilations of some seconds: `count`, `seconds`, `functions` (`name`, `count`), `time_ns`
left_block      the job has left the block: `how`, `exit_code`, `exception`, `evidence`
job_ended       the process has ended: `how`, `exit_code`, `signal`, `exception`, `evidence`, and `ended_ns`: when
fast_fail       what fast-fail has decided: `state` (decided, or closed), `role` (hub or member), `process_index`,
                `processes`, `first_cause`, `is_first_cause`, `refused`: the hub's count of refused connections
console         the last lines that the job printed, in `message`: `stream` (out, err or out+err), `occasion` (end or
                hang), `times`: pairs of a number of lines and the time by which these were printed, `path` of a file,
                `dropped_bytes`, `is_of_python`: lines of native code are missing
held            `run` keeps a job that has failed for debugging, every minute: `state` (HELD or RELEASED), `reason`,
                `held_seconds`, `limit_seconds`, `until_ns`, `wrapper_pid`, `chips`, `chip_hours`, `chip_hour_price`,
                `cost`, `attach`, `release`, `released_by`
signal          a signal that asks the job to end, seen by `run`: `signal`, `sender_pid`, `sender_uid`
sigterm_handler a handler of SIGTERM that the job has installed: `handler` (default, ignored, c or python), `function`,
                `library`, `replaces`, `time_ns`; without such an entry, it is the default

Dumps and snapshots also have `interval_seconds`; these, `left_block` and `job_ended` also have `phase` and `step` if
the job reports them, and the last two `progress_age_seconds`: how long before. With fast-fail, `job_ended` also has
`first_cause`, `is_first_cause`, and `ended_by`: fast_fail if the process was ended since another one had failed.
Earlier versions wrote `job_ended` with `goes_on` instead of `left_block`.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "COMPILES",
    "CONSOLE",
    "DUMP",
    "FAST_FAIL",
    "HANG_SUSPECTED",
    "HELD",
    "JOB_ENDED",
    "LEFT_BLOCK",
    "LOG_ID",
    "MOST_RETURNS",
    "PROCESS_STATE",
    "SIGNAL",
    "SIGTERM_HANDLER",
    "SNAPSHOT",
    "STEP_SUMMARY",
    "VERB",
    "entry",
    "return_rank",
]

LOG_ID: Final = "tpu.googleapis.com/runtime_monitor"
VERB: Final = "stacktraceanalyzer"

DUMP: Final = "dump"
SNAPSHOT: Final = "snapshot"
STEP_SUMMARY: Final = "step_summary"
PROCESS_STATE: Final = "process_state"
HANG_SUSPECTED: Final = "hang_suspected"
LEFT_BLOCK: Final = "left_block"
COMPILES: Final = "compiles"
CONSOLE: Final = "console"
FAST_FAIL: Final = "fast_fail"
HELD: Final = "held"
SIGNAL: Final = "signal"
SIGTERM_HANDLER: Final = "sigterm_handler"
JOB_ENDED: Final = "job_ended"

MOST_RETURNS: Final = 3
"""The returns from waits in a `step_summary`."""
_STEP_BITS: Final = 64


def entry(kind: str, message: str, **fields: Any) -> dict[str, Any]:
    """Return the payload of an entry.

    Args:
        kind: One of the kinds in this module.
        message: A sentence for people who read the log.
        fields: The further fields of this kind; None is left out.
    """
    return {
        "verb": VERB,
        "kind": kind,
        "message": message,
        **{name: value for name, value in fields.items() if value is not None},
    }


def return_rank(step: int) -> int:
    """Return the rank of a step among those of which a summary has the return from a wait: the lowest ones.

    It is the number with the bits in reverse order: a step with more zeros at its end is before one with fewer. Of any
    2^n steps at equal distances one is before the others of that range and its surroundings, so that hosts with
    windows of that length select the same one, whenever these begin; also if a loop waits in each tenth step only.
    """
    return int(f"{step % 2**_STEP_BITS:0{_STEP_BITS}b}"[::-1], 2)
