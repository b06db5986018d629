"""A mirror that fails, and a host that fails it: nothing happens to the job, and everything is left for later."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Header, Journal, list_segments, log_directory, log_folder_name
from ml_diagnostics_common.journal._layout import encode_header
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._upload import Upload
from ml_diagnostics_common.mirror.rest import push
from ml_diagnostics_common.mirror.status import status
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Delay

from ..journals import LOG, new_journal, read_all
from .jobs import assert_the_mirror_has_the_journal_once, finish, recorded_and_killed, run
from .mirrors import ends, objects, raw_identities

# --- The host -----------------------------------------------------------------------------------------


def test_a_program_with_too_many_open_files_is_mirrored_once_it_has_closed_some(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    body = """
import resource
mirror_writer._CHECK_SECONDS = 0.01
m = Mirror(os.environ["ML_DIAGNOSTICS_MIRROR"], root=root, seconds=3600, start_seconds=0.0)
m.add("goodput_run7")
journal.append({"n": 1})
assert m.flush(20)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
time.sleep(0.5)
assert m.statistics().state != "stopped", m.statistics()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
journal.append({"n": 2})
assert m.close(20), m.statistics()
"""
    _, errors = (process := run(body, root, mirror)).communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert [end["by"] for end in ends(mirror).values()] == ["self"]


def test_a_disk_that_takes_no_more_is_one_warning_and_has_everything_once_it_does(tmp_path: Path) -> None:
    """The kernel refuses larger files: as a full disk, it takes notes, and no objects."""
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    body = """
import resource
from ml_diagnostics_common.backoff import Backoff
again = {"backoff": Backoff(0.01, 0.02), "access_backoff": Backoff(0.01, 0.02)}
m = Mirror(os.environ["ML_DIAGNOSTICS_MIRROR"], root=root, seconds=0.01, start_seconds=0.01, **again)
for _ in range(5):
    journal.append({"noise": os.urandom(9_000).hex()})
resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
m.add("goodput_run7")
assert not m.flush(0.5)
give_up = time.monotonic() + 20
while sum(count for name, count in m.statistics().counts.items() if name.startswith("failed_")) <= 1:
    assert time.monotonic() < give_up, m.statistics()
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append({"n": 2})
assert m.close(20), m.statistics()
"""
    _, errors = (process := run(body, root, mirror)).communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert errors.decode().count("cannot be written") == 1
    assert "The job goes on" in errors.decode()
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert not [path for path in Path(mirror).rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("where", ["/proc/mirror", "a file/mirror"])
def test_a_folder_that_cannot_be_made_is_one_warning_and_the_job_goes_on(tmp_path: Path, where: str) -> None:
    (tmp_path / "a file").touch()
    mirror = str(tmp_path / where)
    body = "start_mirror('goodput_run7', root)\nfor n in range(100): journal.append({'n': n})"
    _, errors = (process := run(body, tmp_path / "root", mirror)).communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert errors.decode().count(f"The mirror {mirror} cannot be written") == 1
    assert len(read_all(tmp_path / "root")) == 100
    other = str(tmp_path / "other")
    assert [pushed.entries for pushed in push(tmp_path / "root", other)] == [100]


def test_a_missing_client_of_cloud_storage_is_one_warning_with_its_command_and_the_job_goes_on(tmp_path: Path) -> None:
    body = """
sys.modules["google.cloud.storage"] = None
m = start_mirror("goodput_run7", root)
for n in range(100): journal.append({"n": n})
assert not m.flush(20)
assert m.statistics().state == "waiting"
"""
    _, errors = (process := run(body, tmp_path, "gs://bucket/m")).communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert errors.decode().count("pip install 'ml-diagnostics-common[gcs]'") == 1
    assert len(read_all(tmp_path)) == 100


# --- The bucket ---------------------------------------------------------------------------------------


def test_a_slow_bucket_delays_no_recording_call_and_gets_everything(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    cloud_storage_server.faults.always(Delay(0.3))
    body = """
m = Mirror(os.environ["ML_DIAGNOSTICS_MIRROR"], root=root, seconds=0.01, start_seconds=0.0, grace_period_seconds=30.0)
m.add("goodput_run7")
deadline, calls = time.monotonic() + 3, 0
while time.monotonic() < deadline:
    journal.append({"n": 1})
    calls += 1
    time.sleep(0.001)
assert calls > 100, calls  # With a request for each, there would be ten.
"""
    finish(run(body, tmp_path, "gs://bucket/m"))
    assert_the_mirror_has_the_journal_once("gs://bucket/m", tmp_path)
    assert [end["by"] for end in ends("gs://bucket/m").values()] == ["self"]


def test_a_push_to_a_bucket_that_does_not_exist_is_an_error(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    new_journal(tmp_path).append({"n": 1})
    recorded_and_killed(tmp_path, "")
    with pytest.raises(StorageError, match="no such bucket"):
        list(push(tmp_path, "gs://no-such-bucket/m"))
    assert list(push(tmp_path, "gs://bucket/m"))


def test_a_journal_that_cannot_be_read_is_named_and_the_others_are_pushed(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    recorded_and_killed(root, "")
    whole = len(read_all(root))
    folder = log_directory(root, LOG)
    (folder / "w-1-1-0.0.jsonl").symlink_to(next(folder.glob("*.jsonl")))  # A link, which no journal has.
    unreadable: list[str] = []
    pushed = list(push(root, mirror, on_left_out=lambda writer, error: unreadable.append(f"{writer}: {error}")))
    assert sum(each.entries for each in pushed) == whole
    assert [each.partition(":")[0] for each in unreadable] == ["w-1-1-0"]


# --- Signals ------------------------------------------------------------------------------------------

_IN_NATIVE_CODE = """
import ctypes, signal
sleep = ctypes.CDLL(None).usleep if RELEASES else ctypes.PyDLL(None).usleep
m = mirror(0.01)
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
for n in range(100):
    journal.append({"n": n})
print(flush=True)
deadline = time.monotonic() + 1.5
while time.monotonic() < deadline:
    journal.append({"n": -1})
    sleep(20_000)
print(flush=True)
time.sleep(0.3)
assert got
"""


@pytest.mark.parametrize("releases", [True, False], ids=["GIL released", "GIL held"])
def test_a_signal_of_the_user_in_native_code_arrives_while_a_mirror_writes(tmp_path: Path, releases: bool) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    process = run(f"RELEASES = {releases}" + _IN_NATIVE_CODE, root, mirror)
    assert process.stdout is not None
    process.stdout.readline()
    while not select.select([process.stdout], [], [], 0.002)[0]:
        os.kill(process.pid, signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert_the_mirror_has_the_journal_once(mirror, root)


@pytest.mark.parametrize("releases", [True, False], ids=["GIL released", "GIL held"])
def test_sigterm_in_native_code_ends_a_program_while_a_mirror_writes(tmp_path: Path, releases: bool) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    process = run(f"RELEASES = {releases}" + _IN_NATIVE_CODE, root, mirror)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    list(push(root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)


# --- Two processes at once ----------------------------------------------------------------------------


def test_processes_that_take_over_at_once_write_everything_once(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for _ in range(3):
        recorded_and_killed(root, mirror)
    body = """
m = mirror(0.1)
journal.append({"n": -1})
deadline = time.monotonic() + 40
from ml_diagnostics_common.mirror.status import status
while sum(not each.has_ended for each in status(root, os.environ["ML_DIAGNOSTICS_MIRROR"])) > 4:
    assert time.monotonic() < deadline
    time.sleep(0.05)
"""
    for process in [run(body, root, mirror) for _ in range(4)]:
        finish(process)
    list(push(root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)


def test_a_push_by_hand_while_a_recorder_is_idle_makes_nothing_double(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    journal = new_journal(root)
    folder_name = log_folder_name(LOG)
    upload = Upload.claim(Bucket(mirror), root, folder_name, journal.writer, Counters())
    assert upload is not None

    def write(n: int, writer: Upload) -> None:
        journal.append({"n": n})
        assert writer.write_next(writer.segments(), ended=False) is not None

    write(1, upload)
    upload.release()  # As a process with many recorders does.
    other = Upload.claim(Bucket(mirror), root, folder_name, journal.writer, Counters())
    assert other is not None
    write(2, other)
    other.release()
    assert upload.hold()
    write(3, upload)
    upload.release()
    assert [name.last - name.first for name in objects(mirror)] == [0, 0, 0]
    assert sorted(raw_identities(mirror)) == [f"{journal.writer}.{10**11 + n}" for n in range(3)]


# --- What is not for a mirror -------------------------------------------------------------------------


def test_entries_that_stay_on_the_machine_are_not_shown_as_missing(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    Journal(LOG, root=root, labels={"job": "run7"}, mirrored=False).append({"text": "what the job printed"})
    assert status(root, mirror) == []
    private = log_directory(root, LOG) / "w-1-1-0.0.jsonl"
    private.write_bytes(encode_header(Header(LOG, "w-1-1-0", mirror=False)) + b'\n{"t":1,"s":100000000000,"p":{}}')
    assert status(root, mirror) == []
    list(push(root, mirror))
    assert not Path(mirror).exists()
    assert len(list_segments(log_directory(root, LOG))) == 2
