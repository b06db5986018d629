"""The public library of the same name and ours, side by side: equal except for the errors that the contract lists.

Where it is, its answer is corrected by the documented difference, and ours must equal that (see `reference/cases.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .accounts import calculator_of, flat
from .histories import BASE, MemoryLog
from .reference.cases import CORRECTED, SAME, Case
from .reference.process import Reference

SEEDS = range(20)
TOLERANCE = 1e-6  # seconds, and percent

Answer = dict[str, Any]


@pytest.mark.parametrize("kind", SAME)
def test_ours_equals_the_reference(kind: str, reference: Reference, tmp_path: Path) -> None:
    for seed in SEEDS:
        case = _case(kind, seed)
        assert not case.moves
        theirs = _theirs(case, reference)
        ours = _ours(case, tmp_path / str(seed))
        _check(ours, theirs, theirs["productive"], theirs["badput"], seed)
        assert ours["percent"] == pytest.approx(theirs["percent"], abs=TOLERANCE), seed
        assert ours["shares"] == pytest.approx(theirs["shares"], abs=TOLERANCE), seed
        if case.has_ideal:
            assert ours["ideal_step_seconds"] == pytest.approx(theirs["ideal_step_seconds"], abs=TOLERANCE)
            assert ours["deviations"] == pytest.approx(theirs["deviations"], abs=TOLERANCE), seed


@pytest.mark.parametrize("kind", CORRECTED)
def test_ours_equals_the_reference_corrected(kind: str, reference: Reference, tmp_path: Path) -> None:
    for seed in SEEDS:
        case = _case(kind, seed)
        assert case.moves
        theirs = _theirs(case, reference)
        productive = theirs["productive"] + case.moves.pop("PRODUCTIVE", 0.0)
        badput = dict(theirs["badput"])
        for name, move in case.moves.items():
            badput[name] = badput.get(name, 0.0) + move
        in_buckets = [value for name, value in badput.items() if name not in ("OTHER", "DATA_LOADING_ASYNC")]
        badput["OTHER"] = theirs["elapsed"] - productive - sum(in_buckets)
        _check(_ours(case, tmp_path / str(seed)), theirs, productive, badput, seed, case.disruptions)


def test_the_corrections_matter(reference: Reference, tmp_path: Path) -> None:
    """Every corrected kind does differ from the reference: no correction is there for nothing."""
    for kind in CORRECTED:
        theirs = _theirs(_case(kind, 0), reference)
        ours = _ours(_case(kind, 0), tmp_path / kind)
        assert ours["badput"] != pytest.approx(theirs["badput"], abs=TOLERANCE), kind


def _case(kind: str, seed: int) -> Case:
    return {**SAME, **CORRECTED}[kind](seed)


def _theirs(case: Case, reference: Reference) -> Answer:
    answer: Answer = reference.ask("life", payloads=case.history.payloads, now=BASE + case.now)
    return answer | {"deviations": dict(answer["deviations"])}


def _ours(case: Case, cache_dir: Path) -> Answer:
    calculator = calculator_of(MemoryLog(case.delivered), case.now, cache_dir)
    percent, breakdown, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
    details = calculator.get_job_goodput_details()
    return {
        "percent": percent,
        "shares": {badput.name: share for badput, share in breakdown.items() if not isinstance(share, dict)},
        "productive": next(iter(details["goodput_time"].values())),
        "elapsed": details["total_elapsed_time"],
        "badput": flat(details["badput_time"]),
        "last_step": last_step,
        "disruptions": details["disruption_count"],
        "ideal_step_seconds": details["ideal_step_time"],
        "deviations": dict(details["step_time_deviation"]),
    }


def _check(
    ours: Answer, theirs: Answer, productive: float, badput: dict[str, float], seed: int, unseen: int = 0
) -> None:
    assert ours["elapsed"] == pytest.approx(theirs["elapsed"], abs=TOLERANCE), seed
    assert ours["productive"] == pytest.approx(productive, abs=TOLERANCE), seed
    # A bucket that one of the two leaves out has no time in it.
    names = ours["badput"].keys() | badput.keys()
    got = {name: ours["badput"].get(name, 0.0) for name in sorted(names)}
    expected = {name: badput.get(name, 0.0) for name in sorted(names)}
    assert got == pytest.approx(expected, abs=TOLERANCE), seed
    assert ours["last_step"] == theirs["last_step"], seed
    assert ours["disruptions"] == theirs["disruptions"] + unseen, seed
