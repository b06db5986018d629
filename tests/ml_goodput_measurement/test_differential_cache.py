"""The files of a GoodputCache are the same from either library, and each continues from the other's."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from ml_goodput_measurement.goodput_cache import GoodputCache

from .histories import BASE, History
from .reference.process import Reference

HISTORY = (
    History()
    .start(0)
    .init(1, 9)
    .custom(10, 12, 'a "type", é')
    .steps(range(5), at=12)
    .save(3, 46, 48)
    .wait(62, 70)
    .end(80)
)


def moment(second: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BASE + second, datetime.timezone.utc)


def files(folder: Path) -> dict[str, bytes]:
    """The files that the public library reads; a lock is not one of them."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("second", [80, 80.25])
def test_the_files_are_the_same_to_the_byte(second: float, reference: Reference, tmp_path: Path) -> None:
    for job in ("job", "llama-70b_run.3"):
        GoodputCache(job, str(tmp_path / "ours")).update_cached_entries(HISTORY.payloads, (moment(second), "id-7"))
        reference.ask(
            "write_cache",
            folder=str(tmp_path / "theirs"),
            job=job,
            entries=HISTORY.payloads,
            moment=BASE + second,
            identity="id-7",
        )
        assert f"{job}_timeline.jsonl" in files(tmp_path / "ours")
        assert files(tmp_path / "ours") == files(tmp_path / "theirs")


def test_what_the_public_library_wrote_is_gone_on_from(reference: Reference, tmp_path: Path) -> None:
    first, rest = HISTORY.payloads[:8], HISTORY.payloads[8:]
    target = {"folder": str(tmp_path), "job": "job"}
    reference.ask("write_cache", **target, entries=first, moment=BASE + 42, identity="7")
    cache = GoodputCache("job", str(tmp_path))
    assert cache.get_cached_entries() == first
    assert cache.get_last_entry_info() == (moment(42), "7")
    assert cache.get_job_start_time() == moment(0)
    cache.update_cached_entries(rest, (moment(80), "9"))
    read = reference.ask("read_cache", **target)
    assert read["entries"] == HISTORY.payloads
    assert read["steps"] == cache.get_step_entries() == [entry for entry in HISTORY.payloads if "step_count" in entry]
    assert not read["is_empty"]


def test_the_public_library_goes_on_from_what_is_written(reference: Reference, tmp_path: Path) -> None:
    first, rest = HISTORY.payloads[:8], HISTORY.payloads[8:]
    target = {"folder": str(tmp_path), "job": "job"}
    GoodputCache("job", str(tmp_path)).update_cached_entries(first, (moment(42), "7"))
    assert reference.ask("read_cache", **target)["entries"] == first
    reference.ask("write_cache", **target, entries=rest, moment=BASE + 80, identity="9")
    cache = GoodputCache("job", str(tmp_path))
    assert cache.get_cached_entries() == HISTORY.payloads
    assert cache.get_last_entry_info() == (moment(80), "9")


def test_an_entry_that_is_added_twice_is_kept_once(reference: Reference, tmp_path: Path) -> None:
    """Two processes that start together each add what they read: the reference keeps it twice."""
    target = {"folder": str(tmp_path / "theirs"), "job": "job"}
    for _ in range(2):
        GoodputCache("job", str(tmp_path)).update_cached_entries(HISTORY.payloads, (moment(80), "9"))
        reference.ask("write_cache", **target, entries=HISTORY.payloads, moment=BASE + 80, identity="9")
    assert len(reference.ask("read_cache", **target)["entries"]) == 2 * len(HISTORY.payloads)
    assert GoodputCache("job", str(tmp_path)).get_cached_entries() == HISTORY.payloads


def test_what_stands_behind_half_a_line_is_read(reference: Reference, tmp_path: Path) -> None:
    """A process died while it wrote: the reference omits all later entries."""
    cache = GoodputCache("job", str(tmp_path))
    cache.update_cached_entries(HISTORY.payloads, (moment(80), "9"))
    timeline = tmp_path / "job_timeline.jsonl"
    lines = timeline.read_bytes().splitlines(keepends=True)
    timeline.write_bytes(b"".join([*lines[:3], b'{"job_name": "jo\n', *lines[3:]]))
    assert reference.ask("read_cache", folder=str(tmp_path), job="job")["entries"] == HISTORY.payloads[:3]
    assert GoodputCache("job", str(tmp_path)).get_cached_entries() == HISTORY.payloads
