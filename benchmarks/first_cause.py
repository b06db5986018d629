"""The first cause of stored runs with a fault, though the clocks of their hosts are up to a minute off."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import Row, Table

HISTORIES = Path(__file__).parents[1] / "tests" / "console" / "histories"
_DRAWS = 20
_KINDS = 8
_LEAST = 155


def measure(*, quick: bool) -> list[Table]:
    """Measure the benchmark's table."""
    from ml_diagnostics_console.faultbench import BASELINES, first_cause_under_offsets, histories_in

    draws = _DRAWS // 5 if quick else _DRAWS
    archives = histories_in(HISTORIES)
    found = first_cause_under_offsets(archives, draws=draws)
    by_time = first_cause_under_offsets(archives, draws=draws, tool=BASELINES["first entry by time"])
    right, of = (sum(column) for column in zip(*found.values(), strict=True))
    right_by_time = sum(right for right, _ in by_time.values())
    least = _LEAST * of / (_KINDS * _DRAWS)
    row = Row(
        "culprits named alone, as the first cause",
        f"{right} of {of}",
        f"{right_by_time} by the time of the first entry",
        "",
        f">= {least:g}",
        right >= least and len(found) == _KINDS,
    )
    note = (
        f"{_KINDS} faults, each in a real job of processes with clocks of their own; {draws} draws of offsets of up"
        " to 60 s for each host. `python -m ml_diagnostics_console.faultbench --score HISTORIES --first-cause` has the"
        " same."
    )
    return [Table("The first cause under wrong clocks", note, [row])]
