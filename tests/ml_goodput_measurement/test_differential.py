"""The public library of the same name and ours, side by side: equal wherever the contract does not say it is wrong.

Where it is, its answer is corrected by the documented difference, and ours must equal that (see `reference/cases.py`).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .accounts import calculator_of, flat
from .histories import BASE, MemoryLog
from .reference.cases import CORRECTED, SAME, Case
from .reference.environment import ReferenceUnavailableError, reference_python

SEEDS = range(20)
TOLERANCE = 1e-6  # seconds, and percent

Answer = dict[str, Any]


@pytest.fixture(scope="session")
def reference_answers() -> dict[tuple[str, int], Answer]:
    """What the reference says of every case, by kind and seed."""
    try:
        python = reference_python()
    except ReferenceUnavailableError as error:
        pytest.skip(f"the reference cannot be installed here: {error}")
    keys = [(kind, seed) for kind in {**SAME, **CORRECTED} for seed in SEEDS]
    cases = [_case(kind, seed) for kind, seed in keys]
    lives = [{"payloads": case.history.payloads, "now": BASE + case.now} for case in cases]
    runner = Path(__file__).parent / "reference" / "runner.py"
    done = subprocess.run(
        [str(python), str(runner)], input=json.dumps(lives), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(keys, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("kind", SAME)
def test_ours_equals_the_reference(kind: str, reference_answers: dict[tuple[str, int], Answer], tmp_path: Path) -> None:
    for seed in SEEDS:
        case, reference = _case(kind, seed), reference_answers[kind, seed]
        assert not case.moves
        ours = _ours(case, tmp_path / str(seed))
        _check(ours, reference, reference["productive"], reference["badput"], seed)
        assert ours["percent"] == pytest.approx(reference["percent"], abs=TOLERANCE), seed
        assert ours["shares"] == pytest.approx(reference["shares"], abs=TOLERANCE), seed
        if case.has_ideal:
            assert ours["ideal_step_seconds"] == pytest.approx(reference["ideal_step_seconds"], abs=TOLERANCE)
            assert ours["deviations"] == pytest.approx(reference["deviations"], abs=TOLERANCE), seed


@pytest.mark.parametrize("kind", CORRECTED)
def test_ours_equals_the_reference_corrected(
    kind: str, reference_answers: dict[tuple[str, int], Answer], tmp_path: Path
) -> None:
    for seed in SEEDS:
        case, reference = _case(kind, seed), reference_answers[kind, seed]
        assert case.moves
        productive = reference["productive"] + case.moves.pop("PRODUCTIVE", 0.0)
        badput = dict(reference["badput"])
        for name, move in case.moves.items():
            badput[name] = badput.get(name, 0.0) + move
        in_buckets = [value for name, value in badput.items() if name not in ("OTHER", "DATA_LOADING_ASYNC")]
        badput["OTHER"] = reference["elapsed"] - productive - sum(in_buckets)
        _check(_ours(case, tmp_path / str(seed)), reference, productive, badput, seed, case.disruptions)


def test_the_corrections_matter(reference_answers: dict[tuple[str, int], Answer], tmp_path: Path) -> None:
    """Every corrected kind does differ from the reference: no correction is there for nothing."""
    for kind in CORRECTED:
        reference = reference_answers[kind, 0]
        ours = _ours(_case(kind, 0), tmp_path / kind)
        assert ours["badput"] != pytest.approx(reference["badput"], abs=TOLERANCE), kind


def _case(kind: str, seed: int) -> Case:
    return {**SAME, **CORRECTED}[kind](seed)


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
        "deviations": {str(step): value for step, value in details["step_time_deviation"].items()},
    }


def _check(
    ours: Answer, reference: Answer, productive: float, badput: dict[str, float], seed: int, unseen: int = 0
) -> None:
    assert "error" not in reference, (seed, reference)
    assert ours["elapsed"] == pytest.approx(reference["elapsed"], abs=TOLERANCE), seed
    assert ours["productive"] == pytest.approx(productive, abs=TOLERANCE), seed
    # A bucket that one of the two leaves out has no time in it.
    names = ours["badput"].keys() | badput.keys()
    got = {name: ours["badput"].get(name, 0.0) for name in sorted(names)}
    expected = {name: badput.get(name, 0.0) for name in sorted(names)}
    assert got == pytest.approx(expected, abs=TOLERANCE), seed
    assert ours["last_step"] == reference["last_step"], seed
    assert ours["disruptions"] == reference["disruptions"] + unseen, seed
