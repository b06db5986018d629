"""How often processes write to a mirror: the first one of a job for those who watch it, the others seldom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.log_source import LogSource, notes_of
from ml_diagnostics_common.mirror._pace import Pace
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.writer import Mirror

from ..journals import LOG, Clock
from .mirrors import flat, mirror_by_hand, objects, write


def journal_of(root: Path, process_index: int, **options: Any) -> Journal:
    labels = {"job": "run7", "process_index": str(process_index)}
    return Journal(LOG, root=root, labels=labels, clock_ns=Clock(), **options)


def test_processes_other_than_the_first_write_every_ten_minutes(tmp_path: Path, round_of: Any) -> None:
    mirror = str(tmp_path / "mirror")
    for index, seconds in ((0, 30.0), (3, 600.0)):
        journal_of(tmp_path / str(index), index).append({"n": 1})
        round_, pace = round_of(mirror, tmp_path / str(index)), Pace(30.0, lambda: 0.0)
        assert write(round_)
        pace.is_of_first_process = round_.is_of_first_process()
        assert pace.seconds() == seconds


def test_a_process_of_which_nothing_is_known_counts_as_the_first(tmp_path: Path, round_of: Any) -> None:
    Journal(LOG, root=tmp_path / "root", labels={}).append({"n": 1})
    round_ = round_of(str(tmp_path / "mirror"), tmp_path / "root")
    assert round_.is_of_first_process()
    assert write(round_)
    assert round_.is_of_first_process()


def test_a_slow_process_writes_at_once_if_its_program_asks_for_it(tmp_path: Path) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    journal = journal_of(root, 3)
    thread = Mirror(mirror, root=root, seconds=0.01, start_seconds=0.0)
    thread.add(LOG)
    for n in range(3):
        journal.append({"n": n})
        assert thread.flush(20)
    assert len(objects(mirror)) == 3
    assert thread.close()


@pytest.mark.parametrize(("process_index", "silent_after"), [(0, 300), (3, 900)])
def test_a_process_is_silent_only_after_its_own_pace(tmp_path: Path, process_index: int, silent_after: int) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    journal_of(root, process_index).append({"job_name": "run7", "n": 1})
    mirror_by_hand(root, mirror)
    for seconds, is_complete in ((silent_after - 1, True), (silent_after, False)):
        clock = Clock(Clock().now_ns + seconds * 10**9)
        source = LogSource(LOG, root=tmp_path / "elsewhere", job_name="run7", mirror=mirror, clock_ns=clock)
        assert len(flat(source.read_new())) == 1
        assert (source.is_complete(), not notes_of([source])) == (is_complete, is_complete)


def test_a_command_that_watches_asks_the_first_process_of_its_job_alone(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for index in range(3):
        journal_of(root, index).append({"job_name": "run7", "n": index})
    Journal(LOG, root=root, labels={"job": "other"}, clock_ns=Clock()).append({"job_name": "other", "n": 4})
    mirror_by_hand(root, mirror)
    reader = MirrorReader(LOG, mirror=mirror)
    assert len(flat(reader.read_new())) == 4
    assert reader.ask_to_hurry(Clock().now_ns, job="run7") == 1
    assert reader.ask_to_hurry(Clock().now_ns) == 2
    assert reader.ask_to_hurry(Clock().now_ns + 2 * 3600 * 10**9) == 0


def test_the_first_process_that_records_is_asked_and_writes_as_often_as_process_0(mirror: str, tmp_path: Path) -> None:
    now, root = [0.0], tmp_path / "root"
    for index in (7, 3, 3):
        journal_of(root, index).append({"job_name": "run7", "n": index})
    mirror_by_hand(root, mirror)
    reader = MirrorReader(LOG, mirror=mirror)
    assert len(flat(reader.read_new())) == 3
    assert reader.ask_to_hurry(Clock().now_ns) == 2
    pace = Pace(30.0, lambda: now[0])
    pace.is_of_first_process = False
    assert pace.is_old()
    assert pace.seconds() == 600.0
    pace.note_watch("x.watch", 1)
    assert pace.seconds() == 30.0
    now[0] += 301
    assert pace.seconds() == 600.0


def test_recorders_that_are_idle_for_an_hour_are_not_asked_about(
    tmp_path: Path, round_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook may have made thousands: each round would request an object of each."""
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    round_, pace = round_of(mirror, root), Pace(30.0, lambda: 0.0)
    for index in range(20):
        journal_of(root, 0).append({"n": index})
    assert write(round_)
    for upload in list(round_._uploads.values())[:19]:
        upload.note = upload.note._replace(written_ns=upload.note.written_ns - 2 * 3600 * 10**9)
    before = round_._counters["requests"]
    round_.check_watch(pace)
    assert round_._counters["requests"] - before == 1
