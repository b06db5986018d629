"""The saved state: another process goes on from it, and whatever becomes of the file, the answer is right."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement.calculator import GoodputCalculator, _state_path
from ml_goodput_measurement.partition import JobReport
from ml_goodput_measurement.recorders import Recorders
from ml_goodput_measurement.saved_state import load_state, save_state

from .accounts import moment_ns
from .histories import BASE, JOB, History, Payload
from .test_ledger_properties import lives

LOG = "goodput_job"
NOW_NS = moment_ns(5000)
LIFE = (
    History()
    .start(0)
    .init(0, 5)
    .load(8, 9)
    .steps(range(10), at=10)
    .save(5, 60, 63)
    .custom(70, 74)
    .start(300)
    .restore(5, 301, 305)
    .steps(range(6, 20), at=310)
    .step_end(19, 449)
    .add(checkpoint_progress_step=15, checkpoint_progress_started=BASE + 400)
    .end(450)
)


def root() -> Path:
    return Path(os.environ["ML_DIAGNOSTICS_DIR"])


def record(payloads: Iterable[Payload], process_index: int = 0) -> None:
    journal = Journal(LOG, root=root(), labels={"job": JOB, "process_index": str(process_index)})
    for payload in payloads:
        journal.append(payload)
    journal.close()


def calculator(**arguments: Any) -> GoodputCalculator:
    return GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS, **arguments)


def saved_file() -> Path:
    [path] = (root() / "state" / "goodput").glob("[!.]*")
    return path


def save() -> Path:
    """Queries the job and saves; returns the file."""
    subject = calculator()
    subject.report()
    subject.save_state()
    return saved_file()


def recorders_of(payloads: Iterable[Payload], process_index: int = 0) -> Recorders:
    recorders = Recorders(JOB)
    recorders.add(process_index, payloads)
    return recorders


def told(recorders: Recorders, now_ns: int = NOW_NS) -> tuple[Any, ...]:
    """Everything that recorders can say."""
    ledger = recorders.ledger
    return (
        ledger.summary(now_ns),
        ledger.timeline(now_ns),
        ledger.attempts(now_ns),
        ledger.disruptions(ledger.attempts(now_ns)),
        ledger.step_seconds(),
        len(ledger.facts),
        recorders.notes(),
    )


@pytest.fixture
def truth() -> JobReport:
    """What there is to say of LIFE, which is in the journal from now on."""
    record(LIFE.payloads)
    return calculator().report()


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
from ml_goodput_measurement.calculator import GoodputCalculator
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


def test_much_that_is_new_is_saved_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from ml_goodput_measurement import calculator as module

    monkeypatch.setattr(module, "_SAVE_AFTER_EVENTS", 30)
    record(LIFE.payloads[:29])
    subject = calculator()
    subject.get_job_goodput()
    assert not (root() / "state" / "goodput").exists()
    record(LIFE.payloads[29:30])
    subject.get_job_goodput()
    assert saved_file().stat().st_size > 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    for begin, end in zip([0, *cuts], [*cuts, len(payloads)], strict=True):
        for payload, process in zip(payloads[begin:end], processes[begin:end], strict=True):
            never_saved.add(process, [payload])
            saved.add(process, [payload])
        assert save_state(path, saved, {"journal": end})
        loaded = load_state(path, JOB)
        assert loaded is not None
        assert loaded.position == {"journal": end}
        saved = loaded.recorders
        assert told(saved, moment_ns(now)) == told(never_saved, moment_ns(now))


def test_nothing_of_any_kind_is_forgotten(tmp_path: Path) -> None:
    """Checkpoint progress, waits, step ends and all, and what of it the reports say."""
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
    assert told(loaded.recorders) == told(recorders)
    for both in (loaded.recorders, recorders):
        both.add(0, LIFE.payloads[12:])
    assert told(loaded.recorders) == told(recorders) == told(recorders_of(life.payloads + LIFE.payloads))


def test_what_was_lost_and_passed_over_is_not_forgotten(tmp_path: Path) -> None:
    recorders = recorders_of([*LIFE.payloads, {"job_name": JOB, "lost_entries": {"disk_full": 3}}])
    recorders.add(0, [{"job_name": JOB, "job_start_time": None}])
    recorders.add(4, LIFE.payloads)
    assert save_state(tmp_path / "s", recorders, {})
    loaded = load_state(tmp_path / "s", JOB)
    assert loaded is not None
    assert len(recorders.notes()) == 3
    assert loaded.recorders.notes() == recorders.notes()


# --- A file that is not what it was -------------------------------------------------------------------------------


def check_nothing_is_lost(path: Path, truth: JobReport) -> None:
    """The answer is right from scratch, and the next state is a good one again."""
    subject = calculator()
    assert subject.report() == truth
    subject.save_state()
    if path.is_file():
        assert load_state(path, JOB) is not None
        assert calculator().report() == truth


def test_a_state_that_ends_anywhere_is_made_anew(truth: JobReport) -> None:
    path = save()
    whole = path.read_bytes()
    head_ends = whole.index(b"}", whole.index(b'"columns"')) if b'"columns"' in whole else len(whole) // 2
    offsets = {0, 1, 10, 18, 19, 20, 26, 27, 28, 100, head_ends, len(whole) // 2, len(whole) - 9, len(whole) - 1}
    for offset in offsets | {random.Random(1).randrange(len(whole)) for _ in range(10)}:
        path.write_bytes(whole[:offset])
        assert load_state(path, JOB) is None, offset
        check_nothing_is_lost(path, truth)
    path.write_bytes(whole)
    assert load_state(path, JOB) is not None


HEAD = b"goodput state 1 " + sys.byteorder.encode() + b"\n"


def framed(head: Any) -> bytes:
    text = json.dumps(head).encode()
    return HEAD + len(text).to_bytes(8, "little") + text


ODD_FILES: dict[str, bytes] = {
    "empty": b"",
    "another version": b"goodput state 0 little\n" + bytes(100),
    "zeros": bytes(4096),
    "a line without end": b"x" * 100_000,
    "JSON of somebody else": b'{"job": "job", "facts": 1}',
    "a length without end": HEAD + b"\xff" * 8 + b"{}",
    "a length of a terabyte": HEAD + (2**40).to_bytes(8, "little") + b"{}",
    "no JSON": HEAD + (5).to_bytes(8, "little") + b"hello",
    "nested JSON": HEAD + (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "a list": framed([1, 2]),
    "an empty object": framed({}),
    "the wrong types": framed({"job": JOB, "facts": "many", "position": 3, "skipped": 5, "lost": [], "ledgers": []}),
    "no ledgers": framed({"job": JOB, "facts": 1, "position": {}, "skipped": {}, "lost": {}, "ledgers": {"x": 1}}),
    "columns without end": framed(
        {
            "job": JOB,
            "facts": 1,
            "position": {},
            "skipped": {},
            "lost": {},
            "ledgers": {"0": {"columns": [["q", 2**60]]}},
        }
    ),
    "columns less than nothing": framed(
        {"job": JOB, "facts": 1, "position": {}, "skipped": {}, "lost": {}, "ledgers": {"0": {"columns": [["q", -1]]}}}
    ),
}


@pytest.mark.parametrize("content", ODD_FILES.values(), ids=ODD_FILES)
def test_a_file_of_something_else_in_its_place_is_replaced(truth: JobReport, content: bytes) -> None:
    path = save()
    path.write_bytes(content)
    assert load_state(path, JOB) is None
    check_nothing_is_lost(path, truth)


def test_a_flipped_byte_at_the_front_is_noticed(truth: JobReport) -> None:
    path = save()
    whole = path.read_bytes()
    for offset in range(len(HEAD) + 8):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x41]) + whole[offset + 1 :])
        assert load_state(path, JOB) is None
    check_nothing_is_lost(path, truth)


def test_the_state_of_another_job_is_not_taken(tmp_path: Path) -> None:
    assert save_state(tmp_path / "s", recorders_of(LIFE.payloads), {})
    assert load_state(tmp_path / "s", "another job") is None


def test_a_folder_in_its_place_is_said_and_survived(truth: JobReport, caplog: pytest.LogCaptureFixture) -> None:
    path = save()
    path.unlink()
    path.mkdir()
    check_nothing_is_lost(path, truth)
    assert [str(path) in line.getMessage() for line in caplog.records] == [True, True]  # reading, and writing
    assert path.is_dir()


def test_a_folder_that_cannot_be_is_said_and_survived(
    truth: JobReport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read-only folder would not stop root, as whom tests may run: a file where the folder should be does."""
    (tmp_path / "taken").write_text("")
    subject = calculator(cache_dir=str(tmp_path / "taken" / "below"))
    assert subject.report() == truth
    subject.save_state()
    assert "could not be saved" in caplog.messages[-1]
    assert subject.report() == truth


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_said_and_survived(
    truth: JobReport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o500)
    subject = calculator(cache_dir=str(tmp_path))
    assert subject.report() == truth
    subject.save_state()
    tmp_path.chmod(0o700)
    assert "could not be saved" in caplog.messages[-1]


def test_a_place_for_positions_that_cannot_be_is_said_and_survived(
    truth: JobReport, caplog: pytest.LogCaptureFixture
) -> None:
    (root() / "state").mkdir()
    (root() / "state" / "readers").write_text("")
    subject = calculator()
    subject.report()
    subject.save_state()
    assert "could not be saved" in caplog.messages[-1]
    assert calculator().report() == truth


FULL_DISK = """
import resource, sys
from ml_goodput_measurement.calculator import GoodputCalculator
subject = GoodputCalculator("job", "goodput_job", _clock_ns=lambda: int(sys.argv[1]))
subject.report()
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
subject.save_state()
print(subject.report().steps_kept)
"""


def test_a_full_disk_is_survived_and_the_old_state_stays(truth: JobReport) -> None:
    path = save()
    before = path.read_bytes()
    record(History().start(500).steps(range(20, 40), at=501, each=1).payloads)
    command = [sys.executable, "-c", FULL_DISK, str(NOW_NS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == truth.steps_kept + 19
    assert "could not be saved" in done.stderr
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


# --- Several at once, and deaths ----------------------------------------------------------------------------------

SAVER = """
import sys
from pathlib import Path
from ml_goodput_measurement.recorders import Recorders
from ml_goodput_measurement.saved_state import save_state
recorders = Recorders("job")
recorders.add(0, [{"job_name": "job", "step_count": i, "step_start_time": 1.7e9 + i} for i in range(200_000)])
path = Path(sys.argv[1])
print("ready", flush=True)
while True:
    recorders.add(0, [{"job_name": "job", "step_count": i, "step_start_time": 1.7e9 + i}])
    i += 1
    save_state(path, recorders, {"saved": len(recorders.ledger.facts)})
""".replace("while True:", "i = 200_000\nwhile True:")


def test_a_process_killed_while_it_saves_leaves_a_whole_state(tmp_path: Path) -> None:
    path = tmp_path / "state" / "job.goodput"
    known = 0
    draw = random.Random(7)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.05 + draw.random() / 5)
            process.send_signal(signal.SIGKILL)
        loaded = load_state(path, JOB)
        if loaded is None:
            assert known == 0
            assert not path.exists()
            continue
        assert loaded.position["saved"] == len(loaded.recorders.ledger.facts) >= known
        known = loaded.position["saved"]
    assert known > 200_000
    leftovers = {file.name for file in path.parent.iterdir()} - {path.name, f".{path.name}.lock"}
    assert len(leftovers) <= 1  # Not one a death: they are as large as the state.
    recorders = recorders_of(History().steps(range(known + 1), at=0, each=1).payloads)
    assert save_state(path, recorders, {})
    assert {file.name for file in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


def test_an_older_state_never_replaces_one_that_knows_more(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert save_state(path, recorders_of(LIFE.payloads), {"is": "newer"})
    assert not save_state(path, recorders_of(LIFE.payloads[:-1]), {"is": "older"})
    loaded = load_state(path, JOB)
    assert loaded is not None
    assert loaded.position == {"is": "newer"}
    # As much is replaced: its position may be further on, behind entries of other jobs.
    assert save_state(path, recorders_of(LIFE.payloads), {"is": "newest"})


def test_a_process_that_hangs_while_it_saves_makes_nobody_wait(
    truth: JobReport, caplog: pytest.LogCaptureFixture
) -> None:
    path = save()
    with path.with_name(f".{path.name}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subject = calculator()
        subject.save_state()
        assert subject.report() == truth
        assert caplog.messages == []
        assert not save_state(path, recorders_of(LIFE.payloads), {})
    assert save_state(path, recorders_of(LIFE.payloads), {})


def test_two_that_query_and_save_at_once_are_both_right(truth: JobReport) -> None:
    """Two processes' worth of calculators, and a job that goes on meanwhile."""
    more = History().start(500).steps(range(20, 220), at=501, each=1).payloads
    failures: list[BaseException] = []
    stop = threading.Event()

    def monitor() -> None:
        try:
            while not stop.is_set():
                subject = calculator()
                kept = subject.report().steps_kept
                subject.save_state()
                assert subject.report().steps_kept >= kept >= truth.steps_kept
        except BaseException as error:
            failures.append(error)

    monitors = [threading.Thread(target=monitor) for _ in range(2)]
    for thread in monitors:
        thread.start()
    journal = Journal(LOG, root=root(), labels={"job": JOB, "process_index": "0"})
    for payload in more:
        journal.append(payload)
        time.sleep(0.001)
    stop.set()
    for thread in monitors:
        thread.join()
    assert failures == []
    resumed = calculator().report()
    saved_file().unlink()
    assert resumed == calculator().report()
    assert resumed.steps_kept == truth.steps_kept + 199


def test_two_processes_that_query_and_save_at_once_are_both_right(truth: JobReport) -> None:
    script = """
import sys
from ml_goodput_measurement.calculator import GoodputCalculator
kept = set()
for _ in range(20):
    subject = GoodputCalculator("job", "goodput_job", _clock_ns=lambda: int(sys.argv[1]))
    kept.add(subject.report().steps_kept)
    subject.save_state()
print(sorted(kept))
"""
    command = [sys.executable, "-c", script, str(NOW_NS)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (out.decode().strip(), err.decode()) == (str([truth.steps_kept]), "")
    assert load_state(saved_file(), JOB) is not None


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
    path = _state_path(Path("/r"), "/tmp", name, "log")
    assert path.parent == Path("/r/state/goodput")
    assert len(path.name) < 64
    assert path not in {_state_path(Path("/r"), "/tmp", "log", name), _state_path(Path("/r"), "/tmp", "other", "log")}


def test_a_folder_of_the_users_own_is_honoured(tmp_path: Path, truth: JobReport) -> None:
    folder = tmp_path / "new" / "cache"
    subject = calculator(cache_dir=str(folder))
    assert subject.report() == truth
    subject.save_state()
    [file] = folder.glob("*.goodput")
    assert load_state(file, JOB) is not None
    assert not (root() / "state" / "goodput").exists()


def test_columns_are_raw_numbers(tmp_path: Path) -> None:
    """What makes a state quick to restore: a step costs 24 bytes and no parsing."""

    def saved(count: int) -> bytes:
        assert save_state(tmp_path / "s", recorders_of(History().steps(range(count), at=0, each=1).payloads), {})
        return (tmp_path / "s").read_bytes()

    small, large = saved(1000), saved(11_000)
    assert 16 <= (len(large) - len(small)) / 10_000 <= 25
    assert array("q", [int(BASE) * 10**9]).tobytes() in large


def test_the_state_of_another_project_or_reach_is_not_gone_on_from() -> None:
    paths = {
        _state_path(Path("/r"), "/tmp", JOB, "log", project, retention_ns)
        for project in ("", "here", "there")
        for retention_ns in (None, 10**9, 2 * 10**9)
    }
    assert len(paths) == 9
