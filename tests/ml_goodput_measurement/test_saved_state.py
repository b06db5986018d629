"""The saved state: another process continues from it, and no other user can read or write it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement._query.job_reader import state_path
from ml_goodput_measurement._query.saved_state import load_state, save_state

from .accounts import moment_ns
from .histories import BASE, JOB, History, Payload
from .lives import lives, thorough
from .states import LIFE, NOW_NS, calculator, contents_of, record, recorders_of, root, save, saved_file

# --- Going on -----------------------------------------------------------------------------------------------------

ANOTHER_PROCESS = """
import json, os, sys
read = 0
pread = os.pread
def counting(descriptor, length, offset):
    global read
    data = pread(descriptor, length, offset)
    read += len(data)
    return data
os.pread = counting
from ml_goodput_measurement.goodput import GoodputCalculator
subject = GoodputCalculator("job", "goodput_job", _clock_ns=lambda: int(sys.argv[1]))
report = subject.report()
buckets = {bucket.value: length for bucket, length in report.buckets.items()}
print(json.dumps({"read": read, "buckets": buckets, "pieces": len(report.timeline), "steps": report.steps_kept}))
"""


def ask_another_process() -> dict[str, Any]:
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(NOW_NS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_another_process_reads_only_what_is_new() -> None:
    long = History().start(0).steps(range(3000), at=1, each=1)
    record(long.payloads)
    everything = ask_another_process()
    save()
    record(History().steps(range(3000, 3010), at=3001, each=1).payloads)
    resumed = ask_another_process()
    assert resumed["steps"] == everything["steps"] + 10 == 3009
    assert resumed["read"] < everything["read"] / 50

    saved_file().unlink()
    from_scratch = ask_another_process()
    assert from_scratch["read"] > everything["read"]
    del from_scratch["read"], resumed["read"]
    assert from_scratch == resumed


def test_much_that_is_new_is_saved_without_being_asked() -> None:
    payloads = History().start(0).steps(range(19_999), at=1, each=0.1).payloads
    record(payloads[:-1])
    subject = calculator()
    subject.get_job_goodput()
    assert not (root() / "state" / "goodput").exists()
    record(payloads[-1:])
    subject.get_job_goodput()
    assert saved_file().stat().st_size > 0


@thorough(150)
@given(lives(), st.data())
def test_saving_and_loading_at_any_point_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, life: tuple[list[Payload], float], data: st.DataObject
) -> None:
    payloads, now = life
    path = tmp_path_factory.mktemp("state") / "job.goodput"
    payloads = data.draw(st.permutations(payloads)) if data.draw(st.booleans()) else payloads
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payloads)), min_size=1, max_size=4)))
    processes = data.draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=len(payloads), max_size=len(payloads)))
    never_saved, saved = Recorders(JOB), Recorders(JOB)
    for start, end in zip([0, *cuts], [*cuts, len(payloads)], strict=True):
        for payload, process in zip(payloads[start:end], processes[start:end], strict=True):
            never_saved.add(Writer(process), [payload])
            saved.add(Writer(process), [payload])
        assert save_state(path, saved, {"journal": end})
        loaded = load_state(path, JOB)
        assert loaded is not None
        assert loaded.position == {"journal": end}
        saved = loaded.recorders
        assert contents_of(saved, moment_ns(now)) == contents_of(never_saved, moment_ns(now))


def test_nothing_of_any_kind_is_forgotten(tmp_path: Path) -> None:
    """Checkpoint progress, waits, step ends and all other events, and their effect on the reports."""
    life = (
        History()
        .start(0)
        .steps(range(10), at=10)
        .add(checkpoint_progress_step=7, checkpoint_progress_started=BASE + 95)
    )
    life = life.wait(20, 25).wait(30, 31, "scale_up").start(200).steps(range(8, 12), at=210)
    recorders = recorders_of(life.payloads + LIFE.payloads[:12])
    assert save_state(tmp_path / "s", recorders, {})
    loaded = load_state(tmp_path / "s", JOB)
    assert loaded is not None
    assert contents_of(loaded.recorders) == contents_of(recorders)
    for both in (loaded.recorders, recorders):
        both.add(Writer(0), LIFE.payloads[12:])
    assert (
        contents_of(loaded.recorders)
        == contents_of(recorders)
        == contents_of(recorders_of(life.payloads + LIFE.payloads))
    )


def test_what_is_inferred_is_not_forgotten(tmp_path: Path) -> None:
    inferred = {"inferred_activity": "step", "inferred_from": "calls of f", "inferred_certainty": "medium"}
    compiled = {"compiled_by": "host 1", "compiled_functions": 3, "compiled_seconds": 1.5}
    compiled |= {"compilation_cache_hits": 0, "compilation_cache_misses": 1}
    recorders = recorders_of([*LIFE.payloads, {"job_name": JOB, **inferred}, {"job_name": JOB, **compiled}])
    assert save_state(tmp_path / "s", recorders, {})
    loaded = load_state(tmp_path / "s", JOB)
    assert loaded is not None
    assert list(loaded.recorders.inferred) == list(recorders.inferred)
    assert len(recorders.inferred) == 1
    assert loaded.recorders.notes() == recorders.notes()


def test_what_was_lost_and_passed_over_is_not_forgotten(tmp_path: Path) -> None:
    recorders = recorders_of([*LIFE.payloads, {"job_name": JOB, "lost_entries": {"disk_full": 3}}])
    recorders.add(Writer(0), [{"job_name": JOB, "job_start_time": None}])
    recorders.add(Writer(4), LIFE.payloads)
    assert save_state(tmp_path / "s", recorders, {})
    loaded = load_state(tmp_path / "s", JOB)
    assert loaded is not None
    assert len(recorders.notes()) == 3
    assert loaded.recorders.notes() == recorders.notes()


# --- Privacy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_state_is_private_whatever_the_umask(umask: int) -> None:
    record(LIFE.payloads)
    before = os.umask(umask)
    try:
        path = save()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("planted", [".{}.new", ".{}.lock", "{}"])
def test_a_planted_link_is_not_written_through(tmp_path: Path, planted: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "shared" / "job.goodput"
    path.parent.mkdir()
    (path.parent / planted.format(path.name)).symlink_to(victim)
    save_state(path, recorders_of(LIFE.payloads), {})
    assert victim.read_text() == "precious"
    victim.unlink()
    save_state(path, recorders_of(LIFE.payloads), {})
    assert not victim.exists()


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "a" * 10_000, "nul\0", "", "火\udc80", "."])
def test_no_name_of_a_job_or_log_leaves_the_folder(name: str) -> None:
    path = state_path(Path("/r"), "/tmp", name, "log")
    assert path.parent == Path("/r/state/goodput")
    assert len(path.name) < 64
    assert path not in {state_path(Path("/r"), "/tmp", "log", name), state_path(Path("/r"), "/tmp", "other", "log")}


def test_a_folder_of_the_users_own_is_honoured(tmp_path: Path) -> None:
    record(LIFE.payloads)
    folder = tmp_path / "new" / "cache"
    subject = calculator(cache_dir=str(folder))
    assert subject.report().steps_kept == 20
    subject.save_state()
    [file] = folder.glob("*.goodput")
    assert load_state(file, JOB) is not None
    assert not (root() / "state" / "goodput").exists()


def test_columns_are_raw_numbers(tmp_path: Path) -> None:
    """A state is restored quickly, since a step costs 24 bytes and no parsing."""

    def saved(count: int) -> bytes:
        assert save_state(tmp_path / "s", recorders_of(History().steps(range(count), at=0, each=1).payloads), {})
        return (tmp_path / "s").read_bytes()

    small, large = saved(1000), saved(11_000)
    assert 16 <= (len(large) - len(small)) / 10_000 <= 25
    assert array("q", [int(BASE) * 10**9]).tobytes() in large


def test_the_state_of_another_project_or_reach_is_not_gone_on_from() -> None:
    paths = {
        state_path(Path("/r"), "/tmp", JOB, "log", project, retention_ns)
        for project in ("", "here", "there")
        for retention_ns in (None, 10**9, 2 * 10**9)
    }
    assert len(paths) == 9
