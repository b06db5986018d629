"""Synthetic fleets: the same from one seed, with what is planted in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ml_diagnostics_fleet.job_rows import job_rows
from ml_diagnostics_fleet.schemas import EVENTS, GROUPS, group_of
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet, dimension_tables
from ml_diagnostics_fleet.synthetic_files import write_event_files

FLEET = SyntheticFleet(seed=1, jobs=60, events=60_000, all_hosts=True)


def test_a_seed_makes_the_same_fleet_and_another_seed_another() -> None:
    first, same, other = (SyntheticFleet(seed=seed, jobs=4, events=800) for seed in (7, 7, 8))
    assert [job.table() for job in first] == [job.table() for job in same]
    assert [job.table() for job in first] != [job.table() for job in other]
    assert first.job(2).table() == list(first)[2].table()


def test_a_fleet_has_about_as_many_events_as_it_should() -> None:
    for all_hosts in (False, True):
        fleet = SyntheticFleet(seed=3, jobs=40, events=80_000, all_hosts=all_hosts)
        assert 0.8 < sum(job.table().num_rows for job in fleet) / 80_000 < 1.5


def test_its_tables_have_the_schema_and_its_jobs_add_up() -> None:
    for job in FLEET:
        table = job.table()
        assert table.schema.equals(EVENTS)
        rows = job_rows(job.key, table.to_batches(), AS_OF_NS)
        (found,) = rows.table("jobs").to_pylist()
        assert sum(row[6] for row in rows.ledger_rows) == found["end_ns"] - found["start_ns"] > 0
        assert found["disruptions"] == max([0, *(failure.disruption for failure in job.failures())])
        assert found["running"] == (job.end == "running")
        assert found["end_ns"] <= AS_OF_NS


def test_nothing_is_recorded_after_the_end_of_the_history() -> None:
    fleet = SyntheticFleet(seed=1, jobs=100, events=60_000, all_hosts=True)
    assert max(job.table()["t_ns"][-1].as_py() for job in fleet) < AS_OF_NS


def test_one_host_fails_far_more_often_and_one_team_saves_rarely() -> None:
    failures = Counter(failure.host for job in FLEET for failure in job.failures())
    assert failures.most_common(1)[0][0] == FLEET.lemon
    others = [job.save_every for job in FLEET if job.team != FLEET.rarely_saving_team]
    rarely = [job.save_every for job in FLEET if job.team == FLEET.rarely_saving_team]
    assert min(rarely) > 3 * max(others)


def test_dimensions_name_every_job() -> None:
    tables = dimension_tables(FLEET)
    assert [row["job"] for row in tables["jobs"].to_pylist()] == [job.key.job for job in FLEET]
    used = {(row["accelerator"], row["zone"], row["spot"]) for row in tables["jobs"].to_pylist()}
    assert used <= {(row["accelerator"], row["zone"], row["spot"]) for row in tables["prices"].to_pylist()}


def test_files_of_events_are_by_group(tmp_path: Path) -> None:
    fleet = SyntheticFleet(seed=1, jobs=30, events=1_000)
    manifest = write_event_files(tmp_path, fleet)
    assert {entry.group for entry in manifest.files} == {group_of(job.key) for job in fleet}
    assert len(manifest.files) <= GROUPS
    assert sum(entry.jobs for entry in manifest.files) == 30
