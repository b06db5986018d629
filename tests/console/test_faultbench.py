"""faultbench: stored runs of every kind are diagnosed right, whatever their clocks; live jobs; and scores."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console.faultbench import (
    BASELINES,
    KINDS,
    Answer,
    Case,
    Evidence,
    History,
    Label,
    ProcessEvidence,
    Rate,
    Sample,
    command_tool,
    doctor,
    first_cause_under_offsets,
    histories_in,
    hosts_of,
    is_right_class,
    is_right_culprit,
    plan_of,
    plans_of,
    read,
    run_all,
    score,
    score_all,
    seeds_of,
    shift_clocks,
)
from ml_diagnostics_console.verdict import Blame, VerdictClass

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc are those of Linux")

HISTORIES = histories_in(Path(__file__).parent / "histories")
_MOST_BYTES = 2_000_000
_OFFSET_SECONDS = 60.0
_TOGETHER_SECONDS = 30.0
"""Longer than any part of that job took."""
_NOT_ALONE = {
    "wrong_coordinator": "a process does not record the coordinator that it was given",
}
"""Kinds in which the records do not show which of the processes that wait is to blame."""
_MACHINE_FOLDERS = (b"/work/", b"/root", b"/home/", b"/tmp/faultbench", b"site-packages/../")


def _runs() -> list[Any]:
    """Return all stored runs as parameters of a test."""
    return [pytest.param(archive, id=archive.name.removesuffix(".tar.xz")) for archive in HISTORIES]


# --- Stored runs ------------------------------------------------------------------------------------------


def _check(history: History) -> None:
    """Assert that the doctor's headline has an accepted class, and names the culprit: alone, where that is known."""
    label, answer = history.label, doctor(history)
    assert is_right_class(label, answer), answer
    if history.kind in _NOT_ALONE:
        assert label.culprit in answer.culprits, answer
    elif label.culprit is not None:
        assert is_right_culprit(label, answer), answer


@pytest.mark.parametrize("archive", _runs())
def test_the_doctor_is_right_about_a_stored_run(archive: Path, tmp_path: Path) -> None:
    with read(archive, tmp_path) as history:
        _check(history)


@pytest.mark.parametrize("archive", _runs())
def test_the_doctor_is_right_though_clocks_differ_by_two_minutes(archive: Path, tmp_path: Path) -> None:
    with read(archive, tmp_path) as history:
        hosts = hosts_of(history.diagnostics)
        offsets = {host: _OFFSET_SECONDS * (-1) ** number for number, host in enumerate(hosts)}
        shift_clocks(history.diagnostics, offsets)
        _check(history)


def test_there_is_a_stored_run_of_each_kind() -> None:
    assert {_kind_of(archive) for archive in HISTORIES} == set(KINDS)


def test_stored_runs_are_small_and_without_folders_of_the_machine() -> None:
    assert sum(archive.stat().st_size for archive in HISTORIES) < _MOST_BYTES
    for archive in HISTORIES:
        with tarfile.open(archive) as opened:
            for member in opened.getmembers():
                file = opened.extractfile(member)
                data = b"" if file is None else file.read()
                found = [folder for folder in _MACHINE_FOLDERS if folder in data]
                assert not found, f"{archive.name} {member.name}: {found}"


def test_the_first_cause_is_right_in_155_of_160_draws_of_clocks() -> None:
    found = first_cause_under_offsets(HISTORIES, draws=4)
    right, draws = (sum(column) for column in zip(*found.values(), strict=True))
    assert (len(found), draws) == (8, 32)
    assert right >= 31  # 155 of 160 is the share of the bar; the command draws 20 for each.


def _without_start(path: Path) -> tuple[str, str, str]:
    """Return the log of a file of the journal, and its writer without the time of its start."""
    host_and_pid, _, number = path.name.rsplit("-", 2)
    return path.parent.name, host_and_pid, number


def _kind_of(archive: Path) -> str:
    with tarfile.open(archive) as opened:
        file = opened.extractfile("history.json")
        assert file is not None
        name: str = json.load(file)["plan"]["kind"]
        return name


def test_all_processes_of_a_host_have_the_clock_that_its_plan_shows(tmp_path: Path) -> None:
    archive = next(archive for archive in HISTORIES if archive.name.startswith("clock-offset-"))
    with read(archive, tmp_path) as history:
        offsets = history.about["plan"]["clock_offsets_seconds"]
        assert max(offsets) - min(offsets) > 2 * _TOGETHER_SECONDS
        for path in history.diagnostics.rglob("*.jsonl"):  # Of trainers and of their companions.
            header, *lines = map(json.loads, path.read_text().splitlines())
            offset_ns = offsets[int(header["labels"]["process_index"])] * 1e9
            for line in lines:
                assert abs(line["t"] - offset_ns - history.ended_ns) < _TOGETHER_SECONDS * 1e9


# --- Live jobs --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(180)
def test_live_jobs_are_diagnosed_right(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    output = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-m", "ml_diagnostics_console.faultbench", "--smoke", "--output", str(output)],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((output / "results.json").read_text())
    assert results["void"] == []
    assert [(run["kind"], run["is_right"]) for run in results["runs"]] == [
        ("sigkill", True),
        ("exception_late", True),
        ("healthy", True),
    ], done.stdout
    assert results["scores"][0]["right_culprit"]["share"] == 1.0
    assert (output / "results.md").read_text() in done.stdout + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disk_full", "cgroup_memory", "partition", "packet_loss"])
def test_an_injection_that_needs_rights_has_its_effect_or_is_skipped_with_the_reason(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    lines: list[str] = []
    archives = run_all([plan_of(kind, "0")], tmp_path / "histories", lines.append, is_live=False)
    if not archives:
        assert "skipped: " in lines[0]
        pytest.skip(lines[0])
    folder = tmp_path / "history"
    folder.mkdir()
    with read(archives[0], folder) as history:
        assert history.void == ""


# --- Plans ------------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 50))
def test_a_seed_gives_the_same_plan_each_time_and_the_culprit_is_one_of_its_processes(kind: str, seed: int) -> None:
    plan = plan_of(kind, str(seed))
    assert plan == plan_of(kind, str(seed))
    assert 0 <= plan.culprit < plan.processes
    assert plan.processes >= KINDS[kind].least_processes
    assert plan.step < plan.planned_steps
    json.dumps(plan.to_json())


def test_half_of_all_runs_are_negatives_and_no_two_have_one_name() -> None:
    plans = list(plans_of(seeds_of("0-7")))
    negatives = [plan for plan in plans if not KINDS[plan.kind].is_fault]
    assert len(negatives) == len(plans) / 2
    assert len({plan.name for plan in plans}) == len(plans)


def test_seeds_are_read_from_a_text() -> None:
    assert seeds_of("0-3,6") == (0, 1, 2, 3, 6)
    with pytest.raises(ValueError, match="invalid literal"):
        seeds_of("all")


# --- Proofs of injections ---------------------------------------------------------------------------------


def _evidence(states: str, *, channel: str = "", step: int = 30, status: int | None = None) -> Evidence:
    samples = [Sample(number * 10**9, state, channel, 0.0, step, "step") for number, state in enumerate(states)]
    guilty = ProcessEvidence(1, 4711, status, None, samples)
    return Evidence(1, 30, [ProcessEvidence(0, 4710, 0), guilty], [{"what": "injected", "index": 1, "step": 30}])


def test_a_run_is_void_if_its_fault_had_no_effect() -> None:
    assert KINDS["sigkill"].check(_evidence("S", status=-9)) == ""
    assert "not by SIGKILL" in KINDS["sigkill"].check(_evidence("S", status=1))
    assert KINDS["sigstop"].check(_evidence("STTTT")) == ""
    assert KINDS["sigstop"].check(_evidence("SSSSS")) == "its states were SSSSS"
    assert KINDS["deadlock"].check(_evidence("SSSS", channel="futex_do_wait")) == ""
    assert "hrtimer_nanosleep" in KINDS["deadlock"].check(_evidence("SSSS", channel="hrtimer_nanosleep"))
    assert "0% of a core" in KINDS["busy_loop"].check(_evidence("RRRR"))


# --- Scores -----------------------------------------------------------------------------------------------

_CRASH = Label((VerdictClass.CRASH,), (Blame.USER,), culprit=1, step=30, cascade=(0,))
_HEALTHY = Label((VerdictClass.HEALTHY,), is_fault=False)


def _case(label: Label, reported: VerdictClass, *culprits: int, probability: float | None = None) -> Case:
    blame = Blame.USER if reported is VerdictClass.CRASH else None
    return Case("run", "sigkill", label, Answer(reported, culprits, blame, probability))


def test_a_score_counts_classes_culprits_and_false_alarms() -> None:
    cases = [
        _case(_CRASH, VerdictClass.CRASH, 1, probability=1.0),
        _case(_CRASH, VerdictClass.CRASH, 0, probability=0.5),  # The wrong process.
        _case(_CRASH, VerdictClass.STUCK, 1, probability=0.5),
        _case(_CRASH, VerdictClass.UNKNOWN),
        _case(_HEALTHY, VerdictClass.HEALTHY, probability=1.0),
        _case(_HEALTHY, VerdictClass.CRASH, 0),
    ]
    found = score("doctor", cases)
    assert found.recall[:2] == (2, 4)
    assert found.precision[:2] == (2, 4)
    assert found.right_culprit[:2] == (2, 4)
    assert found.false_alarms[:2] == (1, 2)
    assert found.unknown[:2] == (1, 6)
    assert found.by_class[VerdictClass.CRASH].precision[:2] == (2, 3)
    assert found.brier == pytest.approx((0 + 0.25 + 0.25 + 0) / 4)
    assert found.confused[("crash", "stuck")] == 1
    json.dumps(found.to_json())


def test_a_right_answer_on_a_negative_counts_as_right() -> None:
    asked = Label((VerdictClass.HEALTHY,), with_blame=Blame.PREEMPTION, is_fault=False)
    answer = Answer(VerdictClass.CRASH, (), Blame.PREEMPTION)
    assert is_right_class(asked, answer)
    assert score("doctor", [Case("run", "sigterm_saved", asked, answer)]).false_alarms == (0, 1)


def test_unknown_on_a_negative_is_a_false_alarm_and_on_a_fault_a_miss() -> None:
    found = score("doctor", [_case(_HEALTHY, VerdictClass.UNKNOWN), _case(_CRASH, VerdictClass.UNKNOWN)])
    assert (found.false_alarms, found.recall) == ((1, 1), (0, 1))
    assert found.precision == (0, 1)


def test_a_fault_that_the_job_survives_is_scored_as_a_negative() -> None:
    survived = Label((VerdictClass.HEALTHY,), with_blame=Blame.PREEMPTION)
    found = score("doctor", [_case(survived, VerdictClass.HEALTHY), _case(survived, VerdictClass.SLOW)])
    assert (found.false_alarms, found.recall) == ((1, 2), (0, 0))


def test_the_interval_of_a_rate_is_that_of_wilson() -> None:
    low, high = Rate(8, 10).interval
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert Rate(0, 0).interval == (0.0, 1.0)
    assert Rate(5, 5).interval[0] == pytest.approx(0.5655, abs=1e-4)


@given(st.integers(0, 300), st.integers(1, 300))
def test_an_interval_contains_its_share(right: int, of: int) -> None:
    rate = Rate(min(right, of), of)
    low, high = rate.interval
    assert 0 <= low <= (rate.share or 0) + 1e-12
    assert (rate.share or 0) - 1e-12 <= high <= 1
    assert math.isfinite(high - low)


# --- Tools ------------------------------------------------------------------------------------------------


def test_all_tools_are_in_one_table_and_a_command_of_others_too(tmp_path: Path) -> None:
    archives = [archive for archive in HISTORIES if archive.name.startswith(("sigkill-", "healthy-"))]
    program = tmp_path / "tool.py"
    program.write_text(
        "import json, pathlib, sys\n"
        "assert pathlib.Path(sys.argv[1], 'diagnostics', 'journal').is_dir()\n"
        "print(json.dumps({'class': 'crash', 'process_indices': [7], 'probability': 0.25}))\n"
    )
    tools = {"mine": command_tool([sys.executable, str(program)])}
    page, results = score_all(archives, "A comparison", tools=tools)
    names = [each["tool"] for each in results["scores"]]
    assert names == ["doctor", *BASELINES, "mine"]
    mine = results["scores"][-1]
    assert mine["recall"]["share"] == 1.0
    assert mine["right_culprit"]["share"] == 0.0
    assert mine["false_alarms"]["share"] == 1.0
    assert all(f"| {name} |" in page for name in names)


def test_without_jax_the_extra_to_install_is_shown_and_nothing_is_run(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; sys.modules['jax'] = None; "
        "runpy.run_module('ml_diagnostics_console.faultbench', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--smoke"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'ml-diagnostics-console[faultbench]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_command_without_an_answer_knows_nothing(tmp_path: Path) -> None:
    archive = next(archive for archive in HISTORIES if archive.name.startswith("sigkill-"))
    with read(archive, tmp_path) as history:
        answer = command_tool([sys.executable, "-c", "print('no idea')"])(history)
    assert answer.verdict_class is VerdictClass.UNKNOWN


def test_a_file_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.tar.xz"
    (tmp_path / "x").write_text("{}")
    with tarfile.open(path, "w:xz") as archive:
        archive.add(tmp_path / "x", "../x")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ValueError, match="does not belong to a history"), read(path, folder):
        pass


def test_changed_clocks_move_all_times_of_a_host_and_of_no_other(tmp_path: Path) -> None:
    archive = next(archive for archive in HISTORIES if archive.name.startswith("clock-offset-"))
    before, after = tmp_path / "before", tmp_path / "after"
    with read(archive, before) as old, read(archive, after) as new:
        first, *others = hosts_of(old.diagnostics)
        assert others
        shift_clocks(new.diagnostics, {first: 60.0})
        moved = 0
        paths, twins = (sorted(folder.rglob("*.jsonl"), key=_without_start) for folder in (old.folder, new.folder))
        for path, twin in zip(paths, twins, strict=True):
            header, *lines = path.read_text().splitlines()
            header_after, *lines_after = twin.read_text().splitlines()
            assert json.loads(header)["labels"] == json.loads(header_after)["labels"]
            assert len(lines) == len(lines_after)
            difference = 60 * 10**9 if json.loads(header)["labels"]["host"] == first else 0
            for line, line_after in zip(lines, lines_after, strict=True):
                one, other = json.loads(line), json.loads(line_after)
                assert other["t"] - one["t"] == difference
                if "ended_ns" in one["p"]:
                    assert other["p"]["ended_ns"] - one["p"]["ended_ns"] == difference
                    moved += bool(difference)
        assert moved
