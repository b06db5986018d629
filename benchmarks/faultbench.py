"""How often the doctor is right: the score of the last run of faultbench, which takes hours.

`nox -s faultbench` writes it to build/faultbench-results; without one, the table is empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import Row, Table

RESULTS = Path(__file__).parents[1] / "build" / "faultbench-results" / "results.json"
_BARS = (
    ("precision", "answers that something is wrong: right class", 0.95),
    ("recall", "faults: right class", 0.90),
    ("right_culprit", "faults with a culprit: it alone is named", 0.95),
)
_MOST_FALSE_ALARMS = 0.01


def measure(*, quick: bool) -> list[Table]:
    """Read the last score, whatever the size of this run of benchmarks."""
    note = (
        "Faults that were injected into jobs of real JAX processes, of seeds on which no rule was tuned, and simple"
        " methods over the same records; intervals of 95 %. Remade by `nox -s faultbench -- --seeds 4-7 --store"
        " build/faultbench --resume --output build/faultbench-results`; docs/explanation/faultbench.md has the kinds."
    )
    if not RESULTS.is_file():
        return [Table("Faultbench", f"{note} It was not run on this machine.", [])]
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    ours, *others = results["scores"]
    best = {name: max(others, key=lambda score: score[name]["share"] or 0.0) for name, _, _ in _BARS}
    rows = [_row(text, ours[name], best[name]["tool"], best[name][name], bar) for name, text, bar in _BARS]
    alarms = ours["false_alarms"]
    rows.append(
        Row(
            "healthy jobs with an alarm",
            _shown(alarms),
            "",
            "",
            f"<= {100 * _MOST_FALSE_ALARMS:g} %",
            (alarms["share"] or 0.0) <= _MOST_FALSE_ALARMS,
        )
    )
    rows.append(Row("Brier score; first right answer while the job ran", f"{ours['brier']}; {_seconds(ours)}"))
    replayed = results.get("replayed")
    if replayed:
        rows.append(Row("replayed faults, counted apart: right class", _shown(replayed["right_class"])))
    return [Table("Faultbench", note, rows)]


def _row(text: str, rate: Mapping[str, Any], tool: str, other: Mapping[str, Any], bar: float) -> Row:
    met = (rate["share"] or 0.0) >= bar
    return Row(text, _shown(rate), f"{_shown(other)} ({tool})", "", f">= {bar:g}", met)


def _shown(rate: Mapping[str, Any]) -> str:
    low, high = rate["interval"]
    return f"{rate['right']} of {rate['of']} ({low:.2f} to {high:.2f})"


def _seconds(score: Mapping[str, Any]) -> str:
    return "-" if score["seconds_to_verdict"] is None else f"{score['seconds_to_verdict']:.1f} s"
