"""What is in a profile is read without XProf: which planes have events, and whether the file is whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from google_cloud_mldiagnostics.profiling.verification import Xplane, problem_of, read_xplane, summary_of


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def plane(name: str, *lines: bytes) -> bytes:
    return field(1, b"\x08\x01" + field(2, name.encode()) + b"".join(field(3, line) for line in lines))


def test_planes_with_events_are_named_and_those_without_are_not() -> None:
    named = plane("/host:CPU", b"events") + plane("/device:TPU:0", b"ab" * 200, b"c")
    xspace = named + plane("/empty") + field(4, b"host")
    found = summary_of(xspace)
    assert found == Xplane(len(xspace), ("/host:CPU", "/device:TPU:0"), True, "host")
    assert found.device_planes == ("/device:TPU:0",)


def test_a_file_that_is_cut_off_anywhere_inside_a_plane_is_not_whole() -> None:
    xspace = plane("/host:CPU", b"events" * 50)
    for length in range(1, len(xspace)):
        assert not summary_of(xspace[:length]).is_whole, length
    assert summary_of(xspace).is_whole


def test_a_large_profile_is_stepped_over_not_read(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(plane("/host:CPU", b"e" * 100))
    large.write_bytes(plane("/host:CPU", bytes(50 * 2**20)))

    def seconds(path: Path) -> float:
        started = time.perf_counter()
        read_xplane(path)
        return time.perf_counter() - started

    started = time.perf_counter()
    large.read_bytes()
    to_read_it = time.perf_counter() - started
    assert min(seconds(large) for _ in range(5)) < to_read_it / 5
    assert read_xplane(large).planes == ("/host:CPU",)


@pytest.mark.parametrize("seed", range(20))
def test_junk_is_no_profile_and_no_error(seed: int) -> None:
    junk = random.Random(seed).randbytes(200 + seed)
    found = summary_of(junk)
    assert found.size_bytes == len(junk)
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
def test_what_is_wrong_is_said(xspace: bytes, has_accelerator: bool, problem: str) -> None:
    said = problem_of(summary_of(xspace), has_accelerator=has_accelerator)
    assert problem in said
    assert bool(said) == bool(problem)
