"""The result is right and the job is not disturbed, whatever happens to the file of a saved state."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement._query.saved_state import _MAGIC, _front, load_state, save_state
from ml_goodput_measurement.partition import JobReport

from .histories import JOB, History
from .states import LIFE, NOW_NS, calculator, record, recorders_of, root, save


@pytest.fixture
def truth() -> JobReport:
    """The report of LIFE, which this fixture writes to the journal."""
    record(LIFE.payloads)
    return calculator().report()


def check_nothing_is_lost(path: Path, truth: JobReport) -> None:
    """The answer is right from scratch, and the next state is a good one again."""
    subject = calculator()
    assert subject.report() == truth
    subject.save_state()
    if path.is_file():
        assert load_state(path, JOB) is not None
        assert calculator().report() == truth


def test_a_truncated_state_is_rebuilt(truth: JobReport) -> None:
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


def framed(head: Any, rest: bytes = b"") -> bytes:
    """A state with a head and columns of our making, and all that is checked of it in order."""
    text = json.dumps(head).encode()
    whole = _front(JOB, 1, len(text)) + text + rest
    return whole + zlib.crc32(whole).to_bytes(4, "little")


def head(**ledger: Any) -> dict[str, Any]:
    return {"position": {}, "skipped": {}, "lost": {}, "ledgers": {"0": ledger}}


ODD_FILES: dict[str, bytes] = {
    "empty": b"",
    "another version": b"goodput state of 0.9.9 little\n" + bytes(100),
    "zeros": bytes(4096),
    "a line without end": b"x" * 100_000,
    "JSON of another program": b'{"job": "job", "facts": 1}',
    "nothing behind the first line": _MAGIC,
    "a second line without end": _MAGIC + b"x" * 100_000,
    "a second line of something else": _MAGIC + b"[1, 2]\n",
    "a head of a terabyte": _front(JOB, 1, 2**40) + b"{}",
    "a head less than nothing": _front(JOB, 1, -5) + b"{}",
    "no JSON": _front(JOB, 1, 5) + b"hello1234",
    "nested JSON": _front(JOB, 1, 200_000) + b"[" * 200_004,
    "a list": framed([1, 2]),
    "an empty object": framed({}),
    "the wrong types": framed({"position": 3, "skipped": 5, "lost": [], "ledgers": []}),
    "no ledgers": framed({**head(), "ledgers": {"x": 1}}),
    "a ledger of nothing": framed(head(columns=[])),
    "columns without end": framed(head(columns=[["q", 2**60]])),
    "columns less than nothing": framed(head(columns=[["q", -1]])),
    "columns of text": framed(head(columns=[["u", 2]]), bytes(16)),
    "columns of nothing known": framed(head(columns=[["?", 2]]), bytes(16)),
    "unknown columns": framed(head(columns=[["q", 2]]), bytes(16)),
}


@pytest.mark.parametrize("content", ODD_FILES.values(), ids=ODD_FILES)
def test_a_foreign_file_at_its_path_is_replaced(truth: JobReport, content: bytes) -> None:
    path = save()
    path.write_bytes(content)
    assert load_state(path, JOB) is None
    check_nothing_is_lost(path, truth)


def test_a_flipped_bit_anywhere_is_noticed(truth: JobReport) -> None:
    path = save()
    whole = path.read_bytes()
    draw = random.Random(3)
    for offset in [*range(0, 200, 3), *(draw.randrange(len(whole)) for _ in range(200)), len(whole) - 1]:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1 << draw.randrange(8)]) + whole[offset + 1 :])
        assert load_state(path, JOB) is None, offset
        if offset % 10 == 0:
            check_nothing_is_lost(path, truth)


def test_bytes_behind_the_end_are_noticed(truth: JobReport) -> None:
    path = save()
    path.write_bytes(path.read_bytes() + b"\0")
    assert load_state(path, JOB) is None
    check_nothing_is_lost(path, truth)


def test_a_named_pipe_at_its_path_is_not_waited_for(truth: JobReport) -> None:
    path = save()
    path.unlink()
    os.mkfifo(path)
    check_nothing_is_lost(path, truth)


def test_the_state_of_another_job_is_not_taken(tmp_path: Path) -> None:
    assert save_state(tmp_path / "s", recorders_of(LIFE.payloads), {})
    assert load_state(tmp_path / "s", "another job") is None


def test_a_folder_at_its_path_is_one_warning(truth: JobReport, caplog: pytest.LogCaptureFixture) -> None:
    path = save()
    path.unlink()
    path.mkdir()
    check_nothing_is_lost(path, truth)
    assert [str(path) in line.getMessage() for line in caplog.records] == [True, True]  # reading, and writing
    assert path.is_dir()


def test_a_folder_that_cannot_be_created_is_one_warning(
    truth: JobReport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tests may run as root, which a read-only folder does not stop: a file at the folder's path does."""
    (tmp_path / "taken").write_text("")
    subject = calculator(cache_dir=str(tmp_path / "taken" / "below"))
    assert subject.report() == truth
    subject.save_state()
    assert "could not be saved" in caplog.messages[-1]
    assert subject.report() == truth


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_warning(truth: JobReport, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o500)
    subject = calculator(cache_dir=str(tmp_path))
    assert subject.report() == truth
    subject.save_state()
    tmp_path.chmod(0o700)
    assert "could not be saved" in caplog.messages[-1]


def test_a_folder_of_positions_that_cannot_be_created_is_one_warning(
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
from ml_goodput_measurement.goodput import GoodputCalculator
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
