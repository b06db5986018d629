"""Which attempt a process joins, and how its end changes the attempt and the run."""

from __future__ import annotations

import copy
from collections.abc import Collection

import pytest
from google_cloud_mldiagnostics._run_state.attempts import (
    END_NOT_RECORDED,
    Member,
    end,
    explain,
    join,
    last_attempt,
    new_run,
    renumber,
    unexplained_attempt,
)
from google_cloud_mldiagnostics.control_plane import Resource

from .sample_entries import END_NOT_RECORDED_BEFORE

NOW = "2026-03-10T01:02:03Z"
LATER = "2026-03-10T02:00:00Z"


def member(index: int = 0, pid: int = 100, host: str = "a") -> Member:
    return Member(host, index, pid, f"ticks-{pid}")


def new(participant: Member, token: str = "life-1", number: int = 1) -> Resource:
    return new_run({"displayName": "train", "labels": {}}, participant, token=token, number=number, now=NOW)


def joined(
    run: Resource, participant: Member, token: str = "life-1", number: int = 1, alive: Collection[int] = ()
) -> Resource:
    change = join(
        {"displayName": "train"},
        participant,
        token=token,
        number=number,
        now=LATER,
        is_alive=lambda process: process["pid"] in alive,
    )
    joined = change(copy.deepcopy(run))
    assert joined is not None
    return joined


def ended(run: Resource, participant: Member, phase: str = "COMPLETED", reason: str = "") -> Resource:
    changed = end(participant, phase, reason, now=LATER)(copy.deepcopy(run))
    return run if changed is None else changed


def phases(run: Resource) -> list[str]:
    return [attempt["phase"] for attempt in run["attempts"]]


# --- Starting -----------------------------------------------------------------------------------------


def test_the_first_process_starts_the_first_attempt() -> None:
    run = new(member())
    assert (run["runPhase"], run["labels"], phases(run)) == ("ACTIVE", {"attempt": "1"}, ["ACTIVE"])


def test_a_process_with_the_same_token_joins_the_attempt() -> None:
    run = joined(new(member(0)), member(1, 101))
    assert phases(run) == ["ACTIVE"]
    assert [process["process_index"] for process in run["attempts"][0]["processes"]] == [0, 1]


def test_a_process_with_another_token_starts_another_attempt_while_earlier_processes_live() -> None:
    run = joined(new(member(0)), member(1, 101), token="life-2", alive={100})
    assert phases(run) == ["FAILED", "ACTIVE"]


def test_a_process_without_a_token_joins_the_attempt_of_living_processes() -> None:
    run = joined(new(member(0), token=""), member(1, 101), token="", alive={100})
    assert phases(run) == ["ACTIVE"]


def test_a_process_without_a_token_starts_another_attempt_if_no_process_lives() -> None:
    run = joined(new(member(0), token=""), member(1, 101), token="")
    assert phases(run) == ["FAILED", "ACTIVE"]


def test_a_restarted_process_of_the_same_index_starts_another_attempt() -> None:
    run = joined(new(member(0)), member(0, 101), alive=set())
    assert phases(run) == ["FAILED", "ACTIVE"]
    assert run["attempts"][0]["reason"] == END_NOT_RECORDED
    assert run["attempts"][0]["processes"][0]["phase"] == "FAILED"


def test_a_pid_that_is_used_again_is_another_process() -> None:
    again = Member("a", 0, 100, "later-ticks")
    assert phases(joined(new(member(0)), again)) == ["FAILED", "ACTIVE"]


@pytest.mark.parametrize("phase", ["COMPLETED", "FAILED"])
def test_an_attempt_that_has_ended_is_followed_by_another_which_is_active(phase: str) -> None:
    run = joined(ended(new(member()), member(), phase, "x"), member(0, 101))
    assert phases(run) == [phase, "ACTIVE"]
    assert (run["runPhase"], run["labels"]["attempt"]) == ("ACTIVE", "2")
    assert not {"endTime", "errorDetails"} & set(run)


def test_attempts_are_counted_at_least_as_far_as_the_scheduler_does() -> None:
    assert last_attempt(new(member(), number=4))["number"] == 4
    run = joined(ended(new(member()), member()), member(0, 101), token="life-2", number=7)
    assert [attempt["number"] for attempt in run["attempts"]] == [1, 7]
    assert run["labels"]["attempt"] == "7"


def test_new_configs_and_labels_are_merged_into_the_stored_run() -> None:
    kept = {
        **new(member()),
        "configs": {"userConfigs": {"lr": "0.1", "old": "1"}},
        "labels": {"attempt": "1", "x": "y"},
    }
    change = join(
        {"displayName": "new", "configs": {"userConfigs": {"lr": "0.2"}}, "labels": {"framework": "jax"}},
        member(1, 101),
        token="life-1",
        number=1,
        now=LATER,
        is_alive=lambda *_: True,
    )
    run = change(kept)
    assert run["configs"]["userConfigs"] == {"lr": "0.2", "old": "1"}
    assert run["labels"] == {"framework": "jax", "attempt": "1"}
    assert run["displayName"] == "new"


def test_an_attempt_gets_the_number_of_the_other_processes() -> None:
    run = renumber(member(), 5)(new(member()))
    assert (run["attempts"][0]["number"], run["labels"]["attempt"]) == (5, "5")
    assert renumber(member(1, 101), 6)(run) is None  # type: ignore[arg-type]


# --- Ending -------------------------------------------------------------------------------------------


def test_the_end_of_process_0_is_the_runs() -> None:
    run = ended(joined(new(member(0)), member(1, 101)), member(0))
    assert (run["runPhase"], run["endTime"], phases(run)) == ("COMPLETED", LATER, ["COMPLETED"])


def test_the_end_of_a_worker_does_not_end_the_run() -> None:
    run = ended(joined(new(member(0)), member(1, 101)), member(1, 101))
    assert (run["runPhase"], phases(run)) == ("ACTIVE", ["ACTIVE"])


def test_on_a_host_without_process_0_the_end_of_the_last_is_the_runs() -> None:
    run = joined(new(member(2, 102)), member(3, 103))
    run = ended(run, member(2, 102))
    assert run["runPhase"] == "ACTIVE"
    assert ended(run, member(3, 103))["runPhase"] == "COMPLETED"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_failure_of_any_process_is_the_runs_and_is_never_overwritten(order: tuple[int, int]) -> None:
    members = {0: member(0), 1: member(1, 101)}
    run = joined(new(members[0]), members[1])
    for index in order:
        run = ended(run, members[index], *(("FAILED", "boom") if index == 1 else ("COMPLETED", "")))
    assert (run["runPhase"], run["errorDetails"], phases(run)) == ("FAILED", "boom", ["FAILED"])


def test_the_first_failure_is_the_reason() -> None:
    run = joined(new(member(0)), member(1, 101))
    run = ended(run, member(1, 101), "FAILED", "nan loss")
    run = ended(run, member(0), "FAILED", "SIGTERM")
    assert (run["errorDetails"], run["attempts"][0]["reason"]) == ("nan loss", "nan loss")
    assert [process["reason"] for process in run["attempts"][0]["processes"]] == ["SIGTERM", "nan loss"]


def test_the_end_of_an_attempt_before_does_not_end_the_run() -> None:
    run = joined(new(member(0)), member(0, 101))
    late = ended(run, member(0), "FAILED", "late")
    assert late["runPhase"] == "ACTIVE"
    assert phases(late) == ["FAILED", "ACTIVE"]


def test_the_end_of_an_unknown_process_changes_nothing() -> None:
    run = new(member())
    assert end(member(0, 999), "FAILED", "", now=LATER)(run) is None


def test_an_exit_reason_can_be_added_later() -> None:
    run = joined(new(member(0)), member(0, 101))
    assert unexplained_attempt(run)["number"] == 1
    explained = explain(1, "FAILED", "out of memory")(run)
    assert explained["attempts"][0]["reason"] == "out of memory"
    assert unexplained_attempt(explained) is None  # type: ignore[arg-type]
    assert explain(1, "FAILED", "something else")(explained) is None  # type: ignore[arg-type]


def test_an_exit_reason_can_be_added_to_a_run_of_an_earlier_release() -> None:
    run = joined(new(member(0)), member(0, 101))
    run["attempts"][0]["reason"] = END_NOT_RECORDED_BEFORE
    assert unexplained_attempt(run)["number"] == 1
    assert explain(1, "FAILED", "out of memory")(run)["attempts"][0]["reason"] == "out of memory"
