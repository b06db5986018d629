"""The doctor's causes are kept in a table and joined to the newest rows: repeatably, and nothing of others is lost."""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.exceptions import ConfigurationError, PreconditionFailedError
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_fleet.diagnosis import Diagnosis, causes_by_host, diagnose, join_causes
from ml_diagnostics_fleet.dimensions import change_dimension, dimension_path, read_causes, read_dimension
from ml_diagnostics_fleet.job_rows import JobCauses
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.rows_files import newest_rows, read_table, write_dimensions
from ml_diagnostics_fleet.schemas import DIMENSIONS, JobKey
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
from ml_diagnostics_fleet.synthetic_files import write_event_files
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

FLEET = SyntheticFleet(seed=3, jobs=12, events=6_000, failures_per_job=4)


class Judged(NamedTuple):
    """An attempt, as a doctor returns it."""

    started_ns: int
    ended_ns: int | None
    hosts: tuple[str, ...]
    rule: str
    host: str | None
    confidence: str


class FakeDoctor:
    """A doctor that knows the attempts of the rows of a mirror."""

    def __init__(self, mirror: Path, version: str = "1", *, unknown: str = "", sure: str = "proven") -> None:
        snapshot = newest_rows(mirror)
        assert snapshot is not None
        self.version, self.asked = version, Counter[str]()
        self._rows = read_table(mirror, snapshot, "attempts").to_pylist()
        self._unknown, self._sure = unknown, sure
        self.since: dict[str, int | None] = {}

    def attempts(self, job: str, *, since_ns: int | None) -> list[Judged]:
        self.asked[job] += 1
        self.since[job] = since_ns
        rule = "" if since_ns is None else f"C7 of {self.version}"
        return [
            Judged(row["start_ns"] - 10**9, row["end_ns"] + 10**9, (*row["hosts"], "extra"), rule, "extra", self._sure)
            for row in self._rows
            if row["job"] == job and job != self._unknown
        ]


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A fleet with rows, without causes."""
    write_event_files(tmp_path, FLEET)
    for name in ("causes", "hosts"):
        (tmp_path / "v1" / dimension_path(name)).unlink(missing_ok=True)
    run_local(tmp_path, AS_OF_NS, processes=1)
    return tmp_path


def rows(mirror: Path, name: str) -> list[dict[str, Any]]:
    snapshot = newest_rows(mirror)
    assert snapshot is not None
    found: list[dict[str, Any]] = read_table(mirror, snapshot, name).to_pylist()
    return found


def asked(mirror: Path, doctor: FakeDoctor, **options: Any) -> Diagnosis:
    return diagnose(mirror, doctor, now_ns=AS_OF_NS, **options)


def test_each_disruption_has_its_cause_in_the_newest_rows_and_in_those_of_the_next_run(mirror: Path) -> None:
    before = newest_rows(mirror)
    done = asked(mirror, FakeDoctor(mirror))
    joined = {name: rows(mirror, name) for name in ("disruptions", "attempts", "jobs", "ledger_rows")}
    assert len(joined["disruptions"]) > 10
    assert done.causes == {"C7 of 1": len(joined["disruptions"])}
    assert (done.blamed, done.unknown) == (len(joined["disruptions"]), 0)
    assert {(row["cause"], row["cause_host"], row["confidence"]) for row in joined["disruptions"]} == {
        ("C7 of 1", "extra", "proven")
    }
    assert all("extra" in row["hosts"] for row in joined["attempts"])
    after = newest_rows(mirror)
    assert before is not None
    assert after is not None
    assert (after.as_of_ns, after.jobs, after.events) == (before.as_of_ns, before.jobs, before.events)
    assert after.files["ledger_rows"] == before.files["ledger_rows"]
    run_local(mirror, AS_OF_NS, processes=1)
    assert {name: rows(mirror, name) for name in joined} == joined


def test_what_was_judged_is_asked_about_once_for_each_version_of_the_rules(mirror: Path) -> None:
    asked(mirror, FakeDoctor(mirror))
    snapshot = newest_rows(mirror)
    again = FakeDoctor(mirror)
    assert asked(mirror, again).causes == {}
    assert set(again.since.values()) <= {None}  # Jobs that run are asked for their hosts alone.
    assert newest_rows(mirror) == snapshot
    newer = asked(mirror, FakeDoctor(mirror, "2"))
    assert newer.causes == {"C7 of 2": len(rows(mirror, "disruptions"))}
    assert asked(mirror, FakeDoctor(mirror, "2"), again=True).causes == newer.causes


def test_attempts_that_the_doctor_does_not_know_stay_unknown_and_are_asked_about_again(mirror: Path) -> None:
    job = rows(mirror, "disruptions")[0]["job"]
    done = asked(mirror, FakeDoctor(mirror, unknown=job))
    assert done.unknown == sum(row["job"] == job for row in rows(mirror, "disruptions"))
    assert {row["cause"] for row in rows(mirror, "disruptions") if row["job"] == job} == {None}
    assert asked(mirror, FakeDoctor(mirror)).causes == {"C7 of 1": done.unknown}


def test_a_doctor_that_knows_nothing_more_takes_nothing_back(mirror: Path) -> None:
    asked(mirror, FakeDoctor(mirror))
    known = rows(mirror, "disruptions")
    job = known[0]["job"]
    asked(mirror, FakeDoctor(mirror, "2", unknown=job), jobs=[job])
    assert rows(mirror, "disruptions") == known


def test_what_is_only_possible_is_asked_about_again_for_two_days(mirror: Path) -> None:
    times = sorted(row["resumed_ns"] for row in rows(mirror, "disruptions"))
    shutil.rmtree(mirror / "v1" / "rows")
    shutil.rmtree(mirror / "v1" / "manifests" / "rows")
    run_local(mirror, times[-3] + 2 * 86_400 * 10**9, processes=1)
    unsure = asked(mirror, FakeDoctor(mirror, sure="possible"))
    assert (unsure.causes.total(), unsure.blamed) == (len(times), 0)
    young = times[-3:]
    surer = asked(mirror, FakeDoctor(mirror))
    assert (surer.causes.total(), surer.blamed) == (len(young), len(young))
    assert asked(mirror, FakeDoctor(mirror)).causes == {}
    assert causes_by_host(mirror) == {"extra": {"C7 of 1": len(young)}}


def test_a_job_that_cannot_be_read_costs_itself_alone(mirror: Path) -> None:
    job = rows(mirror, "disruptions")[0]["job"]

    class Failing(FakeDoctor):
        def attempts(self, job_name: str, *, since_ns: int | None) -> list[Judged]:
            if job_name == job:
                raise ValueError("no such record")
            return super().attempts(job_name, since_ns=since_ns)

    done = asked(mirror, Failing(mirror))
    assert [(key.job, text) for key, text in done.errors] == [(job, "ValueError: no such record")]
    assert {row["job"] for row in rows(mirror, "disruptions") if row["cause"] is None} == {job}


def test_only_some_jobs_and_times_are_asked_about(mirror: Path) -> None:
    job = rows(mirror, "disruptions")[0]["job"]
    doctor = FakeDoctor(mirror)
    asked(mirror, doctor, jobs=[job])
    assert set(doctor.asked) == {job}
    last_ns = max(row["last_event_ns"] for row in rows(mirror, "disruptions"))
    late = FakeDoctor(mirror)
    assert asked(mirror, late, since_ns=last_ns + 1).causes == {}
    assert all(since is None for since in late.since.values())


def test_an_unknown_job_and_a_mirror_without_rows_are_errors(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no rows of the job no-job"):
        asked(mirror, FakeDoctor(mirror), jobs=["no-job"])
    with pytest.raises(NotFoundError, match="goodput fleet run"):
        diagnose(tmp_path / "empty", FakeDoctor(mirror), now_ns=AS_OF_NS)


def test_causes_of_others_are_kept(mirror: Path) -> None:
    first = rows(mirror, "disruptions")[0]
    own = {name: first[name] for name in ("log", "job", "number")}
    own |= {"cause": "rack 7 lost power", "cause_host": None, "confidence": "proven"}
    write_dimensions(mirror, {"causes": pa.Table.from_pylist([own])})  # Without the columns that the command adds.
    done = asked(mirror, FakeDoctor(mirror))
    assert done.causes.total() == len(rows(mirror, "disruptions")) - 1
    assert rows(mirror, "disruptions")[0]["cause"] == "rack 7 lost power"


@pytest.mark.parametrize("is_late", [False, True])
def test_causes_of_others_are_kept_also_if_they_are_of_another_moment_or_late(mirror: Path, is_late: bool) -> None:
    first = rows(mirror, "disruptions")[0]
    own = {name: first[name] for name in ("log", "job", "number")}
    own |= {"cause": "rack 7 lost power", "confidence": "proven", "last_event_ns": first["last_event_ns"] + is_late - 1}
    table = pa.Table.from_pylist([own])

    class Slow(FakeDoctor):
        def attempts(self, job: str, *, since_ns: int | None) -> list[Judged]:
            if is_late:
                write_dimensions(mirror, {"causes": table})
            return super().attempts(job, since_ns=since_ns)

    if not is_late:
        write_dimensions(mirror, {"causes": table})
    asked(mirror, Slow(mirror))
    found = {(row["log"], row["job"], row["number"]): row for row in read_dimension(mirror, "causes").to_pylist()}
    assert len(found) == len(rows(mirror, "disruptions"))
    kept = found[first["log"], first["job"], first["number"]]
    assert {name: kept[name] for name in own} == own
    assert rows(mirror, "disruptions")[0]["cause"] == ("rack 7 lost power" if is_late else None)


def test_a_cause_of_another_moment_is_not_that_of_its_number(mirror: Path) -> None:
    asked(mirror, FakeDoctor(mirror))

    def moved(table: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([{**row, "last_event_ns": 5} for row in table.to_pylist()], table.schema)

    change_dimension(mirror, "causes", moved)
    join_causes(mirror, AS_OF_NS)
    assert {row["cause"] for row in rows(mirror, "disruptions")} == {None}
    assert asked(mirror, FakeDoctor(mirror)).causes.total() == len(rows(mirror, "disruptions"))


@pytest.mark.parametrize(
    "damage",
    [b"", b"PAR1 and no more", pa.table({"log": ["a"]}), pa.table({"log": [None], "job": ["a"]})],
    ids=["empty", "text", "columns", "nulls"],
)
@pytest.mark.parametrize("name", ["causes", "hosts"])
def test_a_damaged_table_is_an_error_at_once(mirror: Path, damage: bytes | pa.Table, name: str) -> None:
    path = mirror / "v1" / dimension_path(name)
    path.parent.mkdir()
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        pq.write_table(damage, path)
    doctor = FakeDoctor(mirror)
    with pytest.raises(ConfigurationError, match=f"dimensions/{name}.parquet"):
        asked(mirror, doctor)
    assert not doctor.asked
    with pytest.raises(ConfigurationError, match=f"dimensions/{name}.parquet"):
        run_local(mirror, AS_OF_NS, processes=2)


def test_two_at_once_lose_nothing_of_each_other(mirror: Path) -> None:
    jobs = sorted({row["job"] for row in rows(mirror, "disruptions")})
    halves = jobs[::2], jobs[1::2]
    doctors = [FakeDoctor(mirror) for _ in halves]
    errors: list[BaseException] = []

    def work(doctor: FakeDoctor, names: list[str]) -> None:
        try:
            for name in names:
                asked(mirror, doctor, jobs=[name])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(doctors, halves, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {row["cause"] for row in rows(mirror, "disruptions")} == {"C7 of 1"}
    assert {row["job"] for row in read_dimension(mirror, "causes").to_pylist()} == set(jobs)


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_what_another_process_writes_between_reading_and_writing_is_kept(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_row(table: pa.Table, number: int) -> pa.Table:
        row = {"log": "l", "job": "j", "number": number, "cause": "x", "confidence": "likely"}
        return pa.concat_tables([table, pa.Table.from_pylist([row], table.schema)])

    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        mirror = str(tmp_path) if where == "folder" else "gs://bucket/mirror"
        others = [1, 2, 3]

        def change(table: pa.Table) -> pa.Table:
            if others:
                change_dimension(mirror, "causes", functools.partial(with_row, number=others.pop(0)))
            return with_row(table, 9)

        change_dimension(mirror, "causes", change)
        assert sorted(read_dimension(mirror, "causes")["number"].to_pylist()) == [1, 2, 3, 9]
        others = list(range(100))
        with pytest.raises(PreconditionFailedError):
            change_dimension(mirror, "causes", change)
        storage_for("gs://bucket/x").close()  # type: ignore[attr-defined]


_ASK = """
import sys
from pathlib import Path
from ml_diagnostics_fleet import diagnosis
from tests.fleet.test_diagnosis import AS_OF_NS, FakeDoctor
diagnosis._JOBS_A_WRITE = 1
mirror = Path(sys.argv[1])
print("asking", flush=True)
while True:
    diagnosis.diagnose(mirror, FakeDoctor(mirror), now_ns=AS_OF_NS, again=True)
"""


def test_one_that_is_killed_is_continued_by_the_next(mirror: Path) -> None:
    for number in range(6):
        process = subprocess.Popen([sys.executable, "-c", _ASK, str(mirror)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == "asking\n"
        time.sleep(0.03 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert {row["cause"] for row in rows(mirror, "disruptions")} <= {None, "C7 of 1"}
    asked(mirror, FakeDoctor(mirror))
    assert {row["cause"] for row in rows(mirror, "disruptions")} == {"C7 of 1"}
    assert [row["cause"] for row in read_dimension(mirror, "causes").to_pylist()] == ["C7 of 1"] * len(
        rows(mirror, "disruptions")
    )


def test_files_of_a_replaced_table_stay_a_week_for_queries_that_run(mirror: Path) -> None:
    before = newest_rows(mirror)
    assert before is not None
    asked(mirror, FakeDoctor(mirror))
    old, kept = (mirror / "v1" / before.files[name][0] for name in ("disruptions", "jobs"))
    assert old.is_file()
    run_local(mirror, AS_OF_NS + 1, processes=1, now_ns=AS_OF_NS + 8 * 86_400 * 10**9)
    assert not old.exists()
    assert kept.is_file()  # It is part of a snapshot still.


def test_a_table_may_lack_the_columns_that_may_be_null(tmp_path: Path) -> None:
    table = pa.table({"log": ["l"], "job": ["j"], "number": [1], "cause": ["x"], "confidence": ["likely"]})
    write_dimensions(tmp_path, {"causes": table})
    (found,) = read_causes(tmp_path).values()
    assert isinstance(found, JobCauses)
    assert (found[1].rule, found[1].host, found[1].last_event_ns, found.hosts) == ("x", None, None, {})
    assert read_causes(tmp_path).keys() == {JobKey("l", "j")}
    with pytest.raises(ConfigurationError, match=r"causes\.parquet has no column confidence"):
        write_dimensions(tmp_path, {"causes": table.drop_columns(["confidence"])})
    assert [path.name for path in (tmp_path / "v1" / "dimensions").iterdir()] == ["causes.parquet"]
    assert read_dimension(tmp_path, "causes").schema == DIMENSIONS["causes"]
