"""A profile is read without XProf: the planes with events, its start, and whether the file is complete."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from ml_diagnostics_common.xplane import Xplane, read_xplane, summary_of
from ml_diagnostics_testing._xspace import message, xspace


def plane(name: str, *lines: bytes) -> bytes:
    return message((1, message((1, 1), (2, name), *((3, line) for line in lines))))


def test_planes_with_events_are_named_and_those_without_are_not() -> None:
    named = plane("/host:CPU", b"events") + plane("/device:TPU:0", b"ab" * 200, b"c")
    profile = named + plane("/empty") + message((4, "host"))
    found = summary_of(profile)
    assert found == Xplane(len(profile), ("/host:CPU", "/device:TPU:0"), True, "host")
    assert found.device_planes == ("/device:TPU:0",)


def test_a_file_that_is_cut_off_anywhere_inside_a_plane_is_not_whole() -> None:
    profile = plane("/host:CPU", b"events" * 50)
    for length in range(1, len(profile)):
        assert not summary_of(profile[:length]).is_whole, length
    assert summary_of(profile).is_whole


@pytest.mark.timing
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


def test_the_start_is_that_of_the_plane_of_the_environment() -> None:
    first_ns = 1_795_293_255_420_725_489
    found = summary_of(xspace("host", first_ns, 100))
    assert (found.start_ns, found.host, found.planes) == (first_ns, "host", ("/host:CPU",))
    assert summary_of(plane("/host:CPU", b"events")).start_ns == 0


@pytest.mark.parametrize("seed", range(20))
def test_junk_is_not_an_error(seed: int) -> None:
    junk = random.Random(seed).randbytes(200 + seed)
    assert summary_of(junk).size_bytes == len(junk)
