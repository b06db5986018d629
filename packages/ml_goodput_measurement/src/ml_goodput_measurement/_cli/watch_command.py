"""`goodput watch`: a job's goodput while it runs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.errors import DONE
from ml_diagnostics_common.command.options import seconds, whole_number

from ml_goodput_measurement._cli.options import add_job_arguments
from ml_goodput_measurement._cli.source_options import add_source_options, with_sources

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement._ledger import Summary
    from ml_goodput_measurement._query.job_state import JobState, Span
    from ml_goodput_measurement.partition import Bucket

__all__ = ["BELOW_LIMIT", "WatchCommand"]

BELOW_LIMIT = 3
"""The exit code if the goodput is below `--fail-under`."""

_HOUR_NS = 3_600 * 10**9
_ASK_NS = 120 * 10**9
"""The time between requests to the job's processes to write to the mirror more often: each is for five minutes."""
_BAR = 21
_BUCKETS_SHOWN = 4


class WatchCommand:
    """Shows a job's goodput while it runs.

    Args:
        sleep: Waits for some seconds.
        clock_ns: The clock.
    """

    name = "watch"
    summary = "show a job's goodput while it runs"

    def __init__(
        self, *, sleep: Callable[[float], None] = time.sleep, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._sleep, self._clock_ns = sleep, clock_ns

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_job_arguments(parser)
        parser.add_argument(
            "--every", metavar="TIME", type=seconds, default=10.0, help="time between refreshes (default: 10s)"
        )
        parser.add_argument(
            "--count",
            metavar="N",
            type=whole_number(1, 10**9),
            help="stop after so many refreshes (default: at the job's end)",
        )
        parser.add_argument(
            "--fail-under",
            metavar="PERCENT",
            type=_percent,
            help="exit with 3 as soon as the goodput is below this; a running job is checked from --grace on",
        )
        parser.add_argument(
            "--grace",
            metavar="TIME",
            type=seconds,
            default=600.0,
            help="age of a running job from which --fail-under counts (default: 10m)",
        )
        add_source_options(parser, with_strict=False)
        parser.add_argument(
            "--format", choices=("table", "json"), default="table", help="output format; json: a line each time"
        )

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the state of the job until it ends."""
        import gc

        from ml_goodput_measurement._cli.search import find_job, hints_if_missing
        from ml_goodput_measurement._query.job_state import JobFollower

        gc.enable()  # Short commands do without; this one may run for days.
        sources = with_sources(options)
        follower = JobFollower(
            *find_job(options.job, options.logger, sources), clock_ns=self._clock_ns, sources=sources
        )
        screen = _Screen(console, is_table=options.format == "table")
        number, asked_ns = 0, 0
        while True:
            with hints_if_missing(follower.job_name, follower.log_id, sources):
                state = follower.read(_hour_before)
            if state.running and self._clock_ns() - asked_ns >= _ASK_NS:
                follower.ask_to_hurry()
                asked_ns = self._clock_ns()
            number += 1
            screen.show(state, self._clock_ns())
            if _is_below(state, options):
                console.warn(
                    f"the goodput of {state.job_name[:200]!r} is {state.goodput_percent:.1f} %, below "
                    f"{options.fail_under:g} %"
                )
                return BELOW_LIMIT
            if not state.running or number == options.count:
                return DONE
            self._sleep(options.every)


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) if text.isascii() else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


def _is_below(state: JobState, options: argparse.Namespace) -> bool:
    if options.fail_under is None or (state.running and state.wall_ns < options.grace * 1e9):
        return False
    return state.goodput_percent < float(options.fail_under)


def _hour_before(summary: Summary) -> Sequence[Span]:
    """Return the window of the job's life up to an hour ago."""
    end_ns = summary.end_ns - _HOUR_NS
    return [(summary.start_ns, end_ns)] if end_ns > summary.start_ns else []


class _Screen:
    """Prints states: over each other on a terminal, else below each other."""

    def __init__(self, console: Console, *, is_table: bool) -> None:
        self._console, self._is_table = console, is_table
        self._lines = 0

    def show(self, state: JobState, now_ns: int) -> None:
        """Print a state."""
        width = self._console.width
        if not self._is_table:
            import json

            self._console.data(json.dumps(_as_dict(state)))
        elif width is None:
            mirror = [] if state.mirror_lag_seconds is None else [_mirror(state, state.mirror_lag_seconds)]
            self._console.data("   ".join([_clock(now_ns), *_facts(state, now_ns), *_parts(state), *mirror]))
        else:
            lines = self._page(state, now_ns, width)
            if self._lines:
                # To the first line of the last state, which is cleared to the end of the screen.
                self._console.out.write(f"\x1b[{self._lines}A\x1b[J")
            self._console.data("\n".join(lines))
            self._lines = len(lines)

    def _page(self, state: JobState, now_ns: int, width: int) -> list[str]:
        from ml_diagnostics_common.texts import one_line

        filled = round(_BAR * state.goodput_percent / 100)
        bar = "\u2588" * filled + "\u2591" * (_BAR - filled)
        name, *parts = _parts(state)
        first, _, rest = name.partition(" ")
        lines = [
            "  ".join(_facts(state, now_ns)),
            "   ".join([f"{first} {bar} {rest}", *parts]),
            *([] if state.mirror_lag_seconds is None else [_mirror(state, state.mirror_lag_seconds)]),
            *(f"Note: {note}" for note in state.notes),
        ]
        return [one_line(line, width - 1) for line in lines]


def _facts(state: JobState, now_ns: int) -> list[str]:
    from ml_diagnostics_common.texts import format_ago, format_percent, one_line

    facts = [one_line(state.job_name, 60), f"attempt {state.attempts}"]
    if state.steps_kept:
        facts.append(f"step {state.last_step:,}")
    facts.append(format_percent(state.goodput_percent))
    change = _change(state)
    if change is not None:
        facts.append(f"{round(change, 1) + 0.0:+.1f} in 1 h")  # + 0.0: not -0.0.
    if not state.running:
        facts.append(state.state)
    return [*facts, f"last event {format_ago(state.last_event_ns, now_ns)}"]


def _mirror(state: JobState, lag_seconds: float) -> str:
    """Return how far the mirror is behind, and if something is missing in it."""
    from ml_diagnostics_common.log_source import INCOMPLETE
    from ml_diagnostics_common.texts import format_duration

    behind = f"mirror {format_duration(lag_seconds)} behind" if lag_seconds else "mirror up to date"
    is_incomplete = any(note.startswith(INCOMPLETE) for note in state.notes)
    return f"{behind}, {'incomplete' if is_incomplete else 'complete; no gap'}"


def _change(state: JobState) -> float | None:
    """Return by how many points the goodput changed in the last hour; None for a shorter job."""
    if not state.windows or not state.windows[0].counted_ns:
        return None
    return state.goodput_percent - state.windows[0].goodput_percent


def _parts(state: JobState) -> list[str]:
    """Return the productive time, and that of the buckets which took most time otherwise."""
    from ml_goodput_measurement._cli.buckets import BUCKET_KEYS
    from ml_goodput_measurement._cli.report import format_ns
    from ml_goodput_measurement.partition import Bucket

    productive = f"PRODUCTIVE {format_ns(state.buckets[Bucket.PRODUCTIVE])}"
    others = sorted(
        ((ns, bucket) for bucket, ns in state.buckets.items() if ns and bucket is not Bucket.PRODUCTIVE),
        key=lambda part: -part[0],
    )
    return [productive, *(f"{_short(bucket, BUCKET_KEYS)} {format_ns(ns)}" for ns, bucket in others[:_BUCKETS_SHOWN])]


def _short(bucket: Bucket, keys: dict[Bucket, str]) -> str:
    from ml_goodput_measurement.partition import Bucket

    names = {
        Bucket.CHECKPOINT_SAVE: "SAVE",
        Bucket.CHECKPOINT_RESTORE: "RESTORE",
        Bucket.INFRASTRUCTURE_RECOVERY: "RECOVERY",
    }
    return names.get(bucket) or keys[bucket].upper()


def _clock(time_ns: int) -> str:
    from ml_diagnostics_common.texts import format_clock

    return format_clock(time_ns)


def _as_dict(state: JobState) -> dict[str, Any]:
    from ml_diagnostics_common.entry import format_timestamp

    return {
        "job_name": state.job_name,
        "state": state.state,
        "attempt": state.attempts,
        "last_step": state.last_step,
        "goodput_percent": state.goodput_percent,
        "change_points_in_1_h": _change(state),
        "wall_seconds": state.wall_ns / 1e9,
        "last_event": format_timestamp(state.last_event_ns),
        "bucket_seconds": {bucket.value: ns / 1e9 for bucket, ns in state.buckets.items() if ns},
        "mirror_lag_seconds": state.mirror_lag_seconds,
        "notes": list(state.notes),
    }
