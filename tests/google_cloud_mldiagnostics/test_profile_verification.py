"""Problems of a profile are reported, and a complete profile has none."""

from __future__ import annotations

import random

import pytest
from google_cloud_mldiagnostics._profiling.sessions import problem_of
from ml_diagnostics_common.xplane import summary_of
from ml_diagnostics_testing._xspace import message


def plane(name: str, *lines: bytes) -> bytes:
    return message((1, message((1, 1), (2, name), *((3, line) for line in lines))))


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_not_a_profile_and_raise_nothing(seed: int) -> None:
    junk = random.Random(seed).randbytes(200 + seed)
    found = summary_of(junk)
    assert problem_of(found, has_accelerator=False) or found.planes


@pytest.mark.parametrize(
    ("xspace", "has_accelerator", "problem"),
    [
        (b"", False, "empty"),
        (plane("/host:CPU", b"e")[:-1], False, "cut off"),
        (plane("/host:CPU"), False, "no events"),
        (plane("/host:CPU", b"e"), True, "no device"),
        (plane("/host:CPU", b"e"), False, ""),
        (plane("/host:CPU", b"e") + plane("/device:GPU:0", b"e"), True, ""),
    ],
)
def test_each_problem_is_named(xspace: bytes, has_accelerator: bool, problem: str) -> None:
    problem_found = problem_of(summary_of(xspace), has_accelerator=has_accelerator)
    assert problem in problem_found
    assert bool(problem_found) == bool(problem)
