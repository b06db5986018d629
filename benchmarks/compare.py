"""Name each measurement that became worse between two runs by more than their noise; exit with 1 if there is one.

    python -m benchmarks compare [--before FILE|REVISION ...] [--after FILE|REVISION ...]

The noise is the spread of the runs of a side, so pass two or three files for each side if you can. With one file for
each side it is assumed: 25 %; 50 % for a 99th percentile, 100 % for a maximum. A measurement that the same run
compared with something else counts as worse only if its ratio to that became worse too; between two
machines only ratios count.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import measurements
from benchmarks.measurements import ROOT
from benchmarks.results import seconds

RESULTS = "benchmarks/RESULTS.json"
RUNS = ROOT / "out" / "benchmarks"
LEAST_NOISE = 0.05
ASSUMED_NOISE = 0.25
ASSUMED_NOISE_OF = {"p99": 0.5, "max": 1.0, "at most": 1.0}

Key = tuple[str, str, str]
"""Title of the table, work of the row, label of the figure."""


@dataclass
class Samples:
    """One measurement, in all runs of one side."""

    machine: str
    unit: str = ""
    better: str = ""
    step: float = 0.0
    values: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """To what the same run compared it with, where it did."""


@dataclass(frozen=True)
class Change:
    """The change of a measurement between two sides.

    Attributes:
        worse_by: The change as a share of the value before; below 0 if it became better.
        noise: The share by which runs of the same code may differ.
        step: The share that rounding alone may be.
    """

    key: Key
    before: str
    after: str
    worse_by: float
    noise: float
    step: float

    @property
    def is_worse(self) -> bool:
        return self.worse_by > self.noise + self.step

    @property
    def is_better(self) -> bool:
        return -self.worse_by > self.noise + self.step

    def __str__(self) -> str:
        name = ": ".join(filter(None, self.key))
        return f"{name}: {self.before} -> {self.after} ({self.worse_by:+.0%} worse; noise {self.noise:.0%})"


@dataclass
class Comparison:
    """All that two sides have in common, and what one of them lacks."""

    changes: list[Change] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """Rows that met their target before, and miss it now."""
    failed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    other_machine: list[str] = field(default_factory=list)
    """Absolute results of another machine."""

    @property
    def worse(self) -> list[Change]:
        return [change for change in self.changes if change.is_worse]


def compare(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Comparison:
    """Compare the runs of two sides; tables that were not measured after are left out.

    Raises:
        ValueError: Some runs are quick, others are full: their sizes differ.
    """
    if len({run["quick"] for run in [*before, *after]}) > 1:
        raise ValueError("a quick run cannot be compared with a full one: their sizes differ; measure both alike")
    found = Comparison()
    old, new = _samples(before), _samples(after)
    titles = {table["title"] for run in after for table in run["tables"]}
    found.failed = sorted(title for title in titles if title.endswith(": failed"))
    for key, samples in old.items():
        if key[0] not in titles:
            continue
        name = ": ".join(filter(None, key))
        if key not in new:
            found.gone.append(name)
        elif (change := _change(key, samples, new[key])) is not None:
            found.changes.append(change)
        elif samples.better:
            found.other_machine.append(name)
    was_met, is_met = _verdicts(before), _verdicts(after)
    found.missed = sorted(row for row, met in is_met.items() if met is False and was_met.get(row) is True)
    return found


def report(found: Comparison) -> str:
    """Return a line for each measurement that needs attention, and a summary."""
    lines = [f"failed: {title.removesuffix(': failed')}" for title in found.failed]
    lines += [f"worse: {change}" for change in sorted(found.worse, key=lambda change: -change.worse_by)]
    lines += [f"target missed now: {row}" for row in found.missed]
    lines += [f"not measured now: {name}" for name in found.gone]
    better = sum(change.is_better for change in found.changes)
    summary = f"{len(found.changes)} measurements compared: {len(found.worse)} worse, {better} better"
    if found.other_machine:
        summary += f"; {len(found.other_machine)} of another machine not compared"
    return "\n".join([*lines, summary])


def main(argv: Sequence[str]) -> int:
    """Compare files; return 1 if a measurement became worse, a target is missed now or a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--before",
        nargs="+",
        default=["HEAD"],
        metavar="FILE|REVISION",
        help=f"JSON files of runs, or commits and tags with a {RESULTS} (default: HEAD)",
    )
    parser.add_argument(
        "--after",
        nargs="+",
        default=[],
        metavar="FILE|REVISION",
        help="the same for the runs to judge (default: the newest file in out/benchmarks)",
    )
    arguments = parser.parse_args(argv)
    try:
        before = [_read(name) for name in arguments.before]
        after = [_read(name) for name in arguments.after or map(str, sorted(RUNS.glob("*.json"))[-1:])]
        if not after:
            raise ValueError("no run in out/benchmarks; measure first: nox -s bench")
        found = compare(before, after)
    except (OSError, ValueError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    print(report(found))
    return 1 if found.worse or found.missed or found.failed else 0


def _change(key: Key, old: Samples, new: Samples) -> Change | None:
    """Return the change of a measurement, or None if nothing can be concluded."""
    if not old.better or old.better != new.better or old.unit != new.unit:
        return None
    sides = [(_middle(old.ratios), _middle(new.ratios))] if old.ratios and new.ratios else []
    if old.machine == new.machine:
        sides.append((_middle(old.values), _middle(new.values)))
    if not sides or not all(before > 0 and after > 0 for before, after in sides):
        return None
    sign = 1 if old.better == "lower" else -1
    changes = [sign * (after / before - 1) for before, after in sides]
    # A busy machine slows the reference too, and a reference may become faster by itself: both must agree.
    worse_by = 0.0 if min(changes) < 0 < max(changes) else min(changes, key=abs)
    several = [samples for samples in (old, new) if len(samples.values) > 1]
    noise = max([LEAST_NOISE, *map(_spread, several)]) if several else _assumed_noise(key)
    before, after = _middle(old.values), _middle(new.values)
    step = max(old.step, new.step) / before
    return Change(key, _text(before, old.unit), _text(after, new.unit), worse_by, noise, step)


def _assumed_noise(key: Key) -> float:
    _, work, label = key
    return max(
        [ASSUMED_NOISE, *(noise for word, noise in ASSUMED_NOISE_OF.items() if word in f"{work}, {label}".split(", "))]
    )


def _samples(runs: Iterable[Mapping[str, Any]]) -> dict[Key, Samples]:
    found: dict[Key, Samples] = {}
    for run in runs:
        for table, work, row in _rows(run):
            for measurement in row["figures"]:
                samples = found.setdefault((table["title"], work, measurement["label"]), Samples(table["machine"]))
                samples.unit, samples.better = measurement["unit"], measurement["better"]
                samples.step = max(samples.step, measurement["step"])
                samples.values.append(measurement["value"])
                if measurement["compared_with"]:
                    samples.ratios.append(measurement["value"] / measurement["compared_with"])
    return found


def _verdicts(runs: Iterable[Mapping[str, Any]]) -> dict[str, bool | None]:
    return {f"{table['title']}: {work}": row["met"] for run in runs for table, work, row in _rows(run)}


def _rows(run: Mapping[str, Any]) -> Iterable[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    """Yield each row with its table and a name that no other row of the table has."""
    for table in run["tables"]:
        seen: dict[str, int] = {}
        for row in table["rows"]:
            work = row["work"]
            seen[work] = seen.get(work, 0) + 1
            yield table, work if seen[work] == 1 else f"{work} ({seen[work]})", row


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def _spread(samples: Samples) -> float:
    middle = _middle(samples.values)
    return (max(samples.values) - min(samples.values)) / middle if middle else 0.0


def _text(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    return f"{value:,.3g} {unit}".rstrip() if value < 1000 else f"{value:,.0f} {unit}".rstrip()


def _read(name: str) -> dict[str, Any]:
    if Path(name).is_file():
        return measurements.read(Path(name).read_text(encoding="utf-8"), name)
    asked = subprocess.run(
        ["git", "show", f"{name}:{RESULTS}"], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    if asked.returncode:
        raise ValueError(f"{name} is neither a file nor a revision with {RESULTS}")
    return measurements.read(asked.stdout, f"{name}:{RESULTS}")
