"""The parts of a capture: names of sessions, paths of hosts, contents of files, and the output."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import (
    NOT_PERMITTED,
    CommandError,
    NotFoundError,
    UsageError,
    exit_code_of,
)
from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError
from ml_diagnostics_common.storage import GoogleCloudStorage, LocalStorage, Parts
from ml_diagnostics_common.xplane import read_xplane, summary_of
from ml_diagnostics_testing._xspace import message, xspace
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status
from xprofiler.capture.capturing import ahead_seconds
from xprofiler.capture.collecting import Collector, problem_of
from xprofiler.capture.outcomes import Outcome, report
from xprofiler.capture.session import Destination, Session, destinations_of, reserved, unused_name
from xprofiler.capture.targets import Target, addresses, check_distinct, is_this_machine
from xprofiler.gcloud.processes import Programs

from ..terminals import run_in_terminal
from .captures import capture_command

_MOMENT = time.struct_time((2025, 4, 3, 18, 13, 49, 3, 93, 0))
_NAME = "session_2025_04_03_18_13_49"


@pytest.fixture
def bucket(cloud_storage_server: CloudStorageServer) -> GoogleCloudStorage:
    cloud_storage_server.create_bucket("bucket")
    return GoogleCloudStorage(environ=cloud_storage_server.environment(), sleep=lambda seconds: None)


# --- Sessions -----------------------------------------------------------------------------------------


def test_a_session_has_the_local_time_and_a_number_if_that_is_in_use() -> None:
    assert unused_name(_MOMENT, lambda name: False) == _NAME
    taken = {_NAME, f"{_NAME}_2"}
    assert unused_name(_MOMENT, taken.__contains__) == f"{_NAME}_3"


@pytest.mark.parametrize("store", ["local", "bucket"])
def test_captures_in_the_same_second_get_different_sessions(
    store: str, tmp_path: Path, cloud_storage_server: CloudStorageServer, bucket: GoogleCloudStorage
) -> None:
    root, storage = (str(tmp_path), LocalStorage()) if store == "local" else ("gs://bucket/run", bucket)
    names: list[str] = []
    met = threading.Barrier(5)

    def take() -> None:
        met.wait()
        with reserved(root, storage, _MOMENT) as session:
            names.append(session.name)
            met.wait()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    met.wait()
    met.wait()
    for thread in threads:
        thread.join()
    assert sorted(names) == [_NAME, *(f"{_NAME}_{number}" for number in (2, 3, 4))]
    assert not list(tmp_path.iterdir())
    assert not cloud_storage_server.names("bucket")


def test_a_session_that_has_files_is_not_taken_again_and_stays(tmp_path: Path, bucket: GoogleCloudStorage) -> None:
    for root, storage in ((str(tmp_path), LocalStorage()), ("gs://bucket/run", bucket)):
        with reserved(root, storage, _MOMENT) as session:
            storage.write(session.path_of("host"), b"x")
        assert storage.read(f"{root}/{_NAME}/host.xplane.pb") == b"x"
        with reserved(root, storage, _MOMENT) as session:
            assert session.name == f"{_NAME}_2"


def test_a_missing_bucket_cannot_contain_a_session(bucket: GoogleCloudStorage) -> None:
    with pytest.raises(NotFoundError, match="the bucket does not exist"), reserved("gs://other/run", bucket, _MOMENT):
        pass


def test_a_user_without_read_access_to_the_bucket_cannot_capture_to_it(
    cloud_storage_server: CloudStorageServer, bucket: GoogleCloudStorage
) -> None:
    cloud_storage_server.faults.always(Status(403), on="list")
    with pytest.raises(StorageError, match="may not") as raised, reserved("gs://bucket/run", bucket, _MOMENT):
        pass
    assert exit_code_of(raised.value) == NOT_PERMITTED


def test_a_user_with_read_access_can_capture_since_the_jobs_write(
    cloud_storage_server: CloudStorageServer, bucket: GoogleCloudStorage
) -> None:
    cloud_storage_server.faults.always(Status(403), on="upload")
    with reserved("gs://bucket/run", bucket, _MOMENT) as session:
        assert session == Session("gs://bucket/run", _NAME)


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CommandError, match="choose another log directory"),
        reserved(f"{tmp_path}/file/logs", LocalStorage(), _MOMENT),
    ):
        pass


# --- Targets and destinations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "localhost:9012"),
        ("localhost:1", "localhost:1"),
        ("10.0.0.2:9013", "10.0.0.2:9013"),
        ("[::1]:9013", "[::1]:9013"),
        ("[::1]", "[::1]:9012"),
        ("tpu-host.internal", "tpu-host.internal:9012"),
    ],
)
def test_addresses_are_hosts_with_a_port_or_without(host: str, address: str) -> None:
    (target,) = addresses([host], 9012).targets
    assert (target.name, target.address) == (host, address)


def test_a_host_that_is_given_twice_is_captured_once() -> None:
    assert len(addresses(["a:1", "a:1", "b:1"], 9012).targets) == 2


@pytest.mark.parametrize(
    "hosts",
    [("127.0.0.1", "127.0.0.1:9012"), ("localhost", "LOCALHOST"), ("localhost", "127.0.0.1"), ("a_9012:1", "a:9012_1")],
)
def test_names_of_one_process_or_one_file_are_refused_before_anything_starts(
    hosts: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ran = capture_command(capsys)("-o", "local", "-n", *hosts, "-l", tmp_path / "logs")
    assert ran.code == 2
    assert "Capturing" not in ran.errors
    assert not (tmp_path / "logs").exists()


def test_a_vm_called_as_a_worker_of_a_slice_is_not_captured_with_it() -> None:
    worker, vm = (Target("tpu-w0", "tpu-w0", 9012, access=_FakeAccess()) for _ in range(2))
    with pytest.raises(UsageError, match="would write to one file"):
        check_distinct([worker, vm])
    check_distinct([worker, Target("tpu-w1", "tpu-w1", 9012, access=_FakeAccess())])


@pytest.mark.parametrize("host", ["", ":1", "a:", "a:0", "a:65536", "a b:1", "a/b:1", "-a;b:1", "a:1\n", "::1"])
def test_an_invalid_address_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        addresses([host], 9012)


def test_this_machine_knows_its_own_addresses() -> None:
    assert all(map(is_this_machine, ("localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1")))
    assert not any(map(is_this_machine, ("10.0.0.2:1", "host.example:1", "[2001:db8::1]:1")))


class _FakeAccess:
    def forward(self, local_port: int, port: int) -> list[str]:
        return ["forward"]

    def execute(self, program: object) -> list[str]:
        return ["execute"]


@pytest.mark.parametrize(
    ("root", "address", "has_access", "expected"),
    [
        ("/logs", "localhost:1", False, ("/logs", "/logs")),
        ("/logs", "10.0.0.2:1", False, ("/logs", "/logs")),
        ("gs://b/r", "localhost:1", False, ("/staging/profile", "/staging/profile")),
        ("gs://b/r", "10.0.0.2:1", False, ("gs://b/r", "gs://b/r")),
        ("gs://b/r", "", True, ("gs://b/r", "/staging/profile")),
        ("/logs", "", True, ("/staging/profile", "/staging/profile")),
    ],
)
def test_a_host_writes_to_a_destination_that_can_be_read(
    root: str, address: str, has_access: bool, expected: tuple[str, str]
) -> None:
    target = Target("host", "host", 9012, address, _FakeAccess() if has_access else None)
    found = destinations_of(target, Session(root, _NAME), "/staging")
    assert tuple(each.root for each in found) == expected
    assert [each.is_final for each in found] == [path == root for path in expected]


@pytest.mark.parametrize(
    ("answer", "ahead"),
    [
        (b"1000\n", 0),
        (b"1002\n", 0),
        (b"998\n", -1.5),
        (b"1003\n", 3.5),
        (b"910\n", -89.5),
        (b"", 0),
        (b"no date\n", 0),
    ],
)
def test_a_clock_that_may_be_right_is_not_corrected(answer: bytes, ahead: float) -> None:
    assert ahead_seconds(answer, 1000.5, 1002.5) == ahead


# --- Files --------------------------------------------------------------------------------------------


def _large_profile() -> bytes:
    """Return several planes of more than a page each, followed by the environment."""
    planes = [
        (1, message((1, number), (2, f"/device:TPU:{number}"), (3, message((1, 1), (2, "x" * 200_000)))))
        for number in range(3)
    ]
    return message(*planes) + xspace("host-a", 1_700_000_000_123_456_789, 100)


def test_a_profile_is_summarised_by_its_relevant_parts(
    tmp_path: Path, cloud_storage_server: CloudStorageServer, bucket: GoogleCloudStorage
) -> None:
    data = _large_profile()
    (tmp_path / "host.xplane.pb").write_bytes(data)
    bucket.write("gs://bucket/host.xplane.pb", data)
    cloud_storage_server.requests.clear()
    whole = read_xplane(tmp_path / "host.xplane.pb")
    assert whole.planes == ("/device:TPU:0", "/device:TPU:1", "/device:TPU:2", "/host:CPU")
    assert (whole.host, whole.start_ns, whole.is_whole) == ("host-a", 1_700_000_000_123_456_789, True)
    assert summary_of(data) == whole
    assert summary_of(Parts(bucket, "gs://bucket/host.xplane.pb")) == whole
    assert len(cloud_storage_server.requests) <= 6


@pytest.mark.parametrize("page", [1, 7, 4096])
def test_parts_are_equal_to_the_whole(tmp_path: Path, page: int) -> None:
    data = bytes(range(256)) * 2
    (tmp_path / "file").write_bytes(data)
    parts = Parts(LocalStorage(), str(tmp_path / "file"), page)
    assert len(parts) == len(data)
    assert bytes(parts[number] for number in range(len(data))) == data
    for start, end in ((0, 0), (0, 1), (5, 20), (500, 600), (511, 512), (20, 5)):
        assert parts[start:end] == data[start:end]


def test_a_missing_object_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        Parts(LocalStorage(), str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (xspace("host", 1, 100)[:-3], "is truncated"),
        (b"<html>", "not a profile"),
        (xspace("host", 1, 100), ""),
    ],
)
def test_an_incomplete_profile_is_rejected(data: bytes, problem: str) -> None:
    answer = problem_of(summary_of(data), "path")
    assert (problem in answer) if problem else not answer


class _FromHere:
    """Access to this machine itself."""

    def forward(self, local_port: int, port: int) -> list[str]:
        raise AssertionError

    def execute(self, program: Sequence[str]) -> list[str]:
        return list(program)


class _Storage(LocalStorage):
    """A storage that counts concurrent writes of files."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._now = self.most = 0

    def write(self, path: str, data: bytes, **options: Any) -> int:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.05)
        with self._lock:
            self._now -= 1
        return super().write(path, data, **options)


@pytest.mark.parametrize("access", [None, _FromHere()])
def test_of_many_hosts_few_files_are_in_memory_at_once(access: _FromHere | None, tmp_path: Path) -> None:
    here = Session(str(tmp_path / "staged"), _NAME)
    targets = [Target(f"h{number}", f"h{number}", 9012, "localhost:1", access) for number in range(16)]
    data = xspace("host", 1, 100)
    for target in targets:
        LocalStorage().write(here.path_of(target.file_name), data)
    storage = _Storage()
    with Programs(Console()) as programs:
        collector = Collector(Session(str(tmp_path / "there"), _NAME), storage, programs)
        outcomes = collector.collect([(target, Destination(here.root, False)) for target in targets])
    assert [outcome.problem for outcome in outcomes] == [""] * 16
    assert [outcome.size_bytes for outcome in outcomes] == [len(data)] * 16
    assert storage.most <= 4
    assert storage.read(f"{tmp_path}/there/{_NAME}/h3.xplane.pb") == data


def test_a_file_without_events_is_kept_but_is_not_a_success() -> None:
    outcome = Outcome.of(Target("host", "host", 1), summary_of(message((1, message((2, "/host:CPU"))))))
    assert (outcome.status, outcome.has_file, outcome.is_captured) == ("no events", True, False)
    assert "nothing ran meanwhile" in outcome.problem


# --- The output ---------------------------------------------------------------------------------------


def _outcomes() -> list[Outcome]:
    return [
        Outcome("vm_name1", "host vm_name1", "vm_name1", "", 129_000, 1_000_000_000, True),
        Outcome("vm_name2", "host vm_name2", "vm_name2", "", 20_600_000, 1_000_700_000, True),
        Outcome("vm_name3", "host vm_name3", "vm_name3", "it refused"),
        Outcome("vm_name4", "host vm_name4", "vm_name4", "its profile shows nothing", 812, 0, True),
    ]


def test_messages_are_those_of_the_readme_and_the_table_has_a_row_for_each_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tensorboard = "gs://b/r/tensorboard"
    report(_outcomes(), Session(f"{tensorboard}/plugins/profile", _NAME), tensorboard, "table", Console())
    captured_text = capsys.readouterr()
    saved = f"Profile saved to {tensorboard} and session id is {_NAME}."
    assert captured_text.out.splitlines() == [
        *(saved, "") * 2,
        "Host      Status     Size     Start",
        "--------  ---------  -------  -------",
        "vm_name1  captured   129 kB   +0 s",
        "vm_name2  captured   20.6 MB  +700 us",
        "vm_name3  failed",
        "vm_name4  no events  812 B",
    ]
    assert captured_text.err.splitlines() == [
        "Starting profile capture on host vm_name1.",
        "Starting profile capture on host vm_name2.",
        "Starting profile capture on host vm_name3.",
        "Failed to profile host vm_name3 with error: it refused",
        "",
        "Starting profile capture on host vm_name4.",
        "Failed to profile host vm_name4 with error: its profile shows nothing",
        "",
    ]


def test_a_terminal_shows_what_the_readme_shows() -> None:
    terminal = io.StringIO()
    outcomes = [Outcome(f"pod_{n}", f"pod_{n}", f"pod_{n}", "", 1000, 10**9, True) for n in (1, 2)]
    report(outcomes, Session("gs://b/r", _NAME), "gs://b/r/tensorboard", "table", Console(out=terminal, err=terminal))
    assert terminal.getvalue().startswith(
        "Starting profile capture on pod_1.\n"
        f"Profile saved to gs://b/r/tensorboard and session id is {_NAME}.\n"
        "\n"
        "Starting profile capture on pod_2.\n"
        f"Profile saved to gs://b/r/tensorboard and session id is {_NAME}.\n"
        "\n"
    )


_REPORT = """
from ml_diagnostics_common.command.console import Console
from xprofiler.capture.outcomes import Outcome, report
from xprofiler.capture.session import Session

names = [f"train-job-slice-0-{number}-{'x' * 20}" for number in range(2)]
outcomes = [Outcome(name, name, name, "", 20_600_000, 1_000_700_000, True) for name in names]
report(outcomes, Session("gs://b/r", "session"), "gs://b/r/tensorboard", "table", Console())
"""


@pytest.mark.parametrize(("columns", "headers"), [(50, 2), (60, 3), (80, 4)])
def test_the_table_fits_the_terminal_and_names_of_hosts_are_not_cut(columns: int, headers: int) -> None:
    shown = run_in_terminal([sys.executable, "-c", _REPORT], columns=columns)
    assert shown.code == 0, shown.errors
    table = shown.output.splitlines()[-4:]
    assert table[0].split() == ["Host", "Status", "Size", "Start"][:headers]
    assert max(map(len, table)) <= columns
    assert [row.split()[0] for row in table[2:]] == [f"train-job-slice-0-{number}-{'x' * 20}" for number in range(2)]


def test_programs_get_records(capsys: pytest.CaptureFixture[str]) -> None:
    report(_outcomes()[1:], Session("gs://b/r", _NAME), "gs://b/r", "json", Console())
    assert json.loads(capsys.readouterr().out) == [
        {
            "host": "vm_name2",
            "status": "captured",
            "problem": None,
            "path": f"gs://b/r/{_NAME}/vm_name2.xplane.pb",
            "size_bytes": 20_600_000,
            "start_ns": 1_000_700_000,
        },
        {
            "host": "vm_name3",
            "status": "failed",
            "problem": "it refused",
            "path": None,
            "size_bytes": None,
            "start_ns": None,
        },
        {
            "host": "vm_name4",
            "status": "no events",
            "problem": "its profile shows nothing",
            "path": f"gs://b/r/{_NAME}/vm_name4.xplane.pb",
            "size_bytes": 812,
            "start_ns": None,
        },
    ]
