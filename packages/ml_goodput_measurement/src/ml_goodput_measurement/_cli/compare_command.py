"""`goodput compare`: how the shares of two jobs differ, and what that costs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.formats import add_format_option

from ml_goodput_measurement._cli.options import add_cost_options
from ml_goodput_measurement._cli.source_options import add_source_options, strict_code, with_sources

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement._query.job_state import JobState
    from ml_goodput_measurement._query.sources import Sources
    from ml_goodput_measurement.money import Price
    from ml_goodput_measurement.partition import Bucket

__all__ = ["CompareCommand"]

_FIELDS = ("bucket", "name", "before_percent", "now_percent", "difference_points", "difference_micro")
_NOT_COMPARABLE = "not comparable"


class CompareCommand:
    """Compares the goodput of two jobs."""

    name = "compare"
    summary = "compare the goodput of two jobs"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("before", metavar="A", help="the name of the job to compare with")
        parser.add_argument("now", metavar="B", help="the name of the job that is compared; last: the last job")
        for option, name in (("--logger-a", "A"), ("--logger-b", "B")):
            parser.add_argument(
                option, metavar="NAME", help=f"the log of {name} (default: goodput_{name}, else its only log)"
            )
        add_cost_options(parser, "also show differences as money, over the time of B", "both jobs have")
        add_source_options(parser)
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the shares before and now."""
        from ml_diagnostics_common.command.formats import format_data

        from ml_goodput_measurement._cli.options import chips_of
        from ml_goodput_measurement.money import MICRO

        sources = with_sources(options)
        before = _state(options.before, options.logger_a, "--logger-a", sources)
        now = _state(options.now, options.logger_b, "--logger-b", sources)
        chips: int | None = None
        if options.cost is not None:
            both = [
                chips_of(options.chips, state.chips, state.job_name, state.log_id, console) for state in (before, now)
            ]
            chips = both[0] if both[0] == both[1] else None
        rows = list(_rows(before, now, options.cost, chips))
        if options.format == "table":
            console.data("\n".join(_text(before, now, rows, options.cost, chips, console.width)))
        else:
            data = [
                {**row.as_dict(), "difference_micro": amount}
                for row, amount in zip(rows, _amounts(rows, MICRO), strict=True)
            ]
            document = {
                "before": _summary(before),
                "now": _summary(now),
                "currency": options.cost.currency if options.cost else None,
                "money_is_comparable": chips is not None,
                "rows": data,
            }
            console.data(format_data(document, options.format, data, _FIELDS))
        return strict_code(options, console, (*before.notes, *now.notes))


@dataclass(frozen=True, slots=True)
class _Row:
    """The shares of a kind of time: exact, of the counted time of each job."""

    bucket: Bucket
    name: str
    before: Fraction
    now: Fraction
    cost: Fraction | None
    """Cost of the difference over the time of the second job; None if it is not comparable."""

    @property
    def points(self) -> Fraction:
        return 100 * (self.now - self.before)

    def as_dict(self) -> dict[str, Any]:
        return {
            "bucket": self.bucket.value,
            "name": self.name,
            "before_percent": float(100 * self.before),
            "now_percent": float(100 * self.now),
            "difference_points": float(self.points),
        }


def _amounts(rows: Sequence[_Row], unit: Fraction) -> list[int | None]:
    """Return the costs in whole units, which sum to their rounded sum; None for each that is not comparable."""
    from ml_goodput_measurement.money import apportion

    known = iter(apportion([row.cost for row in rows if row.cost is not None], unit))
    return [None if row.cost is None else next(known) for row in rows]


def _state(job: str, logger: str | None, option: str, sources: Sources) -> JobState:
    from ml_goodput_measurement._cli.search import follow_job, hints_if_missing

    follower = follow_job(job, logger, sources, option=option)
    with hints_if_missing(follower.job_name, follower.log_id, sources, option=option):
        return follower.read()


def _rows(before: JobState, now: JobState, cost: Price | None, chips: int | None) -> Iterator[_Row]:
    """Yield a row for each kind of counted time that either job has."""
    from ml_goodput_measurement._cli.buckets import BUCKET_NAMES
    from ml_goodput_measurement._cli.report import rows
    from ml_goodput_measurement.partition import Bucket

    both: list[dict[str, tuple[Bucket, int]]] = [{}, {}]
    for parts, state in zip(both, (before, now), strict=True):
        for bucket, name, ns in rows(state):  # Types of custom events may have the same name where it is shown.
            parts[name] = bucket, ns + parts.get(name, (bucket, 0))[1]
    buckets = {name: found[0] for parts in both for name, found in parts.items()}
    order = list(BUCKET_NAMES)
    for name, bucket in sorted(buckets.items(), key=lambda item: (order.index(item[1]), item[0])):
        if bucket is Bucket.EXCLUDED:
            continue
        shares = [
            Fraction(parts[name][1], state.counted_ns) if name in parts and state.counted_ns else Fraction(0)
            for parts, state in zip(both, (before, now), strict=True)
        ]
        money = None
        if cost is not None and chips is not None:
            money = (shares[1] - shares[0]) * cost.of(now.counted_ns * chips)
        yield _Row(bucket, name, shares[0], shares[1], money)


def _text(
    before: JobState, now: JobState, rows: list[_Row], cost: Price | None, chips: int | None, width: int | None
) -> Iterator[str]:
    from ml_diagnostics_common.command.formats import format_table, shortened
    from ml_diagnostics_common.texts import format_percent, one_line

    from ml_goodput_measurement._cli.report import format_ns
    from ml_goodput_measurement.money import format_amount, unit_of

    for title, state in (("before", before), ("now", now)):
        yield (
            f"{title:6}  {shortened(state.job_name, 60, width)}: {format_percent(state.goodput_percent, 2)} goodput, "
            f"wall time {format_ns(state.wall_ns)} ({state.state})"
        )
    yield ""
    headers = ["bucket", "before", "now", "points"]
    columns = [
        [
            f"{float(100 * row.before):.2f}",
            f"{float(100 * row.now):.2f}",
            f"{round(float(row.points), 2) + 0.0:+.2f}",  # + 0.0: not -0.00.
        ]
        for row in rows
    ]
    if cost is not None:
        headers.append("money")
        unit = unit_of(max((abs(row.cost) for row in rows if row.cost is not None), default=Fraction(0)))
        for amount, cells in zip(_amounts(rows, unit), columns, strict=True):
            cells.append(_NOT_COMPARABLE if amount is None else _signed(format_amount(amount, unit, cost.currency)))
    table = [(row.name, *cells) for row, cells in zip(rows, columns, strict=True)]
    yield from format_table(headers, table, "<" + ">" * (len(headers) - 1), width=width, cut=["bucket"], indent="  ")
    if cost is not None and chips is None:
        yield ""
        names = " and ".join(one_line(state.job_name) for state in (before, now))
        yield f"Note: money is not comparable: {names} have different numbers of chips"
    elif cost is not None:
        yield ""
        name = one_line(now.job_name)
        yield f"money: what the difference costs over the time of {name}, at {cost} and {chips:,} chips"
    for state in (before, now):
        for note in state.notes:
            yield f"Note: {one_line(state.job_name)}: {note}"


def _signed(amount: str) -> str:
    return amount if amount.startswith("-") or not any(digit in amount for digit in "123456789") else f"+{amount}"


def _summary(state: JobState) -> dict[str, Any]:
    return {
        "job_name": state.job_name,
        "state": state.state,
        "wall_seconds": state.wall_ns / 1e9,
        "goodput_percent": state.goodput_percent,
        "chips": state.chips,
        "disruptions": state.disruptions,
        "steps_kept": state.steps_kept,
        "notes": list(state.notes),
    }
