"""The cost of checkpoints, by our library and the public one: from a job's life, and by CheckpointBadputCalculator."""

from __future__ import annotations

import dataclasses
import random
import statistics
from typing import Any

import pytest
from ml_goodput_measurement import checkpoint_badput_calculator

from .accounts import account_of, flat
from .histories import BASE, History, Payload
from .reference.process import Reference, ReferenceRaisedError

OPERATIONS = ("persistent", "local", "persistent_and_local")
SAVE, RESTORE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"

Statistics = dict[str, dict[str, float]]


def statistics_of_ours(entries: list[Payload], operation_type: str) -> Statistics:
    options = checkpoint_badput_calculator.CheckpointLoggerOptions(use_goodput_logger=True)
    calculator = checkpoint_badput_calculator.CheckpointBadputCalculator(options)
    calculator.entries = entries
    saves = calculator.calculate_save_operation_checkpoint_manager_blocking_time(operation_type)
    restores = calculator.calculate_restore_operation_checkpoint_manager_blocking_time(operation_type)
    return {"save": dataclasses.asdict(saves), "restore": dataclasses.asdict(restores)}


def check_statistics(entries: list[Payload], operation_type: str, reference: Reference, why: object = None) -> None:
    reference_answer: Statistics = reference.ask("checkpoints", entries=entries, operation_type=operation_type)
    found = statistics_of_ours(entries, operation_type)
    for operation in ("save", "restore"):
        assert found[operation] == pytest.approx(reference_answer[operation], abs=1e-9), (operation, why)


def checkpoints(seed: int, hosts: int) -> list[Payload]:
    """Saves of some steps to a bucket and a disk, and restores from one; the hosts that report took different times."""
    rng = random.Random(seed)
    event_type = rng.choice(["restore", "emergency_restore"])
    entries: list[Payload] = []
    for step in range(rng.choice([1, 2, 12])):
        for directory in rng.choice([["gs://b/run"], ["/local"], ["gs://b/run", "/local"]]):
            for _ in range(hosts):
                now = rng.uniform(0, 1000)
                entries += History().save(step, now, now + rng.uniform(0, 9), directory).payloads
                entries[-1] |= {
                    f"{part}_duration_secs": rng.uniform(0, 5)
                    for part in ("wait_for_prev", "checkpointer_blocking", "get_old_steps")
                }
        if rng.random() < 0.5:
            entries += [restore(rng, step, event_type) for _ in range(hosts)]
    rng.shuffle(entries)
    return entries


def restore(rng: random.Random, step: int, event_type: str) -> Payload:
    is_local = event_type == "emergency_restore"
    directory = "/local" if is_local else "gs://b/run"
    entry: Payload = History().restore(step, 0, rng.uniform(0, 9), directory).payloads[0]
    entry["event_type"], entry["checkpointer_duration_secs"] = event_type, rng.uniform(0, 9)
    if is_local:
        more = {"is_restoring_slice": True, "in_primary_slice": False}
        entry |= {**more, "broadcast_start_time": BASE, "broadcast_duration_secs": rng.uniform(0, 9)}
    return entry


@pytest.mark.parametrize("hosts", [1, 2, 5])
@pytest.mark.parametrize("operation_type", OPERATIONS)
def test_every_statistic(operation_type: str, hosts: int, reference: Reference) -> None:
    for seed in range(15):
        check_statistics(checkpoints(seed, hosts), operation_type, reference, seed)


def test_statistics_of_broadcasts_are_of_restores_that_broadcast(reference: Reference) -> None:
    """Two of four restores broadcast, 4 and 8 s, a mean of 6 s: the reference counts the others in the rest as 0 s."""
    rng = random.Random(3)
    entries = [restore(rng, step, "emergency_restore") for step in (1, 2)]
    entries[0]["broadcast_duration_secs"], entries[1]["broadcast_duration_secs"] = 4.0, 8.0
    entries += [restore(rng, step, "restore") for step in (3, 4)]
    answer = reference.ask("checkpoints", entries=entries, operation_type="persistent_and_local")["restore"]
    found = statistics_of_ours(entries, "persistent_and_local")["restore"]
    assert (answer["minimum_broadcast_time"], found["minimum_broadcast_time"]) == (0, 4)
    assert answer["standard_deviation_broadcast_time"] == pytest.approx(statistics.stdev([0, 0, 4, 8]))
    assert found["standard_deviation_broadcast_time"] == pytest.approx(statistics.stdev([4, 8]))
    corrected = ("minimum_broadcast_time", "standard_deviation_broadcast_time")
    assert found == pytest.approx({**answer, **{name: found[name] for name in corrected}}, abs=1e-9)


@pytest.mark.parametrize("operation_type", OPERATIONS)
def test_statistics_of_nothing(operation_type: str, reference: Reference) -> None:
    check_statistics([], operation_type, reference)
    check_statistics(History().start(0).step(1, 2).payloads, operation_type, reference)


def reference_answer(history: History, reference: Reference) -> dict[str, Any]:
    answer: dict[str, Any] = reference.ask("life", payloads=history.payloads, now=BASE + history.last_moment())
    return answer


def test_saves_and_restores_of_one_host(reference: Reference) -> None:
    """The first step is the shortest, so that no startup lies in it."""
    for seed in range(25):
        rng = random.Random(seed)
        history, length = History().start(0).restore(0, 1, rng.randint(5, 36) / 4), rng.randint(40, 120) / 4
        history.step(0, 10)
        for step in range(1, 20):
            start = 10 + length / 4 + (step - 1) * length
            history.step(step, start)
            if step < 19 and rng.random() < 0.4:
                history.save(step, start + length / 8, start + length * rng.choice([0.25, 0.5]), "gs://b")
            if step < 19 and rng.random() < 0.3:
                history.save(step, start + length * 0.75, start + length * 0.875, "/local")
        history.end(10 + length / 4 + 19 * length)
        answer = reference_answer(history, reference)
        account = account_of(history)
        badput = flat(account.details["badput_time"])
        for name in (SAVE, RESTORE, "PROGRAM_STARTUP", "OTHER"):
            assert badput[name] == pytest.approx(answer["badput"][name], abs=1e-6), (seed, name)
        assert account.report.goodput_percent == pytest.approx(answer["percent"], abs=1e-6), seed


def test_a_restore_in_each_attempt_counts_in_each(reference: Reference) -> None:
    """Twice the same checkpoint is restored, in 4 and in 6 s: the reference takes the mean of the two, 5 s."""
    history = History().start(0).restore(5, 1, 5).steps(range(6, 12), at=10).start(100).restore(5, 101, 107)
    history.steps(range(6, 12), at=110).end(170)
    assert reference_answer(history, reference)["badput"][RESTORE] == 5
    assert flat(account_of(history).details["badput_time"])[RESTORE] == 10


def test_a_save_that_is_made_again_counts_again(reference: Reference) -> None:
    """The next attempt saves its first step again: the reference takes the mean of 2 and 4 s."""
    history = History().start(0).step(0, 0).steps(range(1, 8), at=5).save(3, 26, 28)
    history.start(100).steps(range(6, 12), at=100).save(3, 112, 116).end(160)
    assert reference_answer(history, reference)["badput"][SAVE] == 3
    assert flat(account_of(history).details["badput_time"])[SAVE] == 6


@pytest.mark.parametrize("wrong", [{"directory": None}, {"checkpoint_manager_blocking_duration_secs": None}])
def test_a_malformed_save_costs_no_query(wrong: dict[str, None], reference: Reference) -> None:
    history = History().start(0).step(0, 0).steps(range(1, 8), at=5).save(3, 26, 28).save(5, 46, 50).end(75)
    history.payloads[-2] |= wrong
    with pytest.raises(ReferenceRaisedError, match=r"AttributeError|TypeError"):
        reference_answer(history, reference)
    expected = 6 if "directory" in wrong else 2  # An operation without a directory still has a length.
    assert flat(account_of(history).details["badput_time"])[SAVE] == expected


def test_a_save_does_not_cause_startup(reference: Reference) -> None:
    """All steps take 10 s, but 1 s of step 2 is a save: without it the others took 9.5 s in the mean."""
    history = History().start(0).steps(range(4), at=2).save(2, 24, 25).end(42)
    assert reference_answer(history, reference)["badput"]["PROGRAM_STARTUP"] == 0
    assert flat(account_of(history).details["badput_time"])["PROGRAM_STARTUP"] == pytest.approx(0.5)


@pytest.mark.parametrize("missing", [None, "absent"])
def test_a_save_or_restore_without_its_start_counts_as_long(missing: str | None, reference: Reference) -> None:
    """The reference needs no start; here it is that of the first part that has one, and the report has a note."""
    history = History().start(0).restore(3, 1, 3).steps(range(4, 12), at=5).save(6, 26, 28).end(85)
    restored = next(entry for entry in history.payloads if entry.get("event_type") == "restore")
    saved = next(entry for entry in history.payloads if entry.get("event_type") == "save")
    for entry, key in ((restored, "checkpoint_manager_start_time"), (saved, "checkpoint_manager_blocking_start_time")):
        entry[key] = None
        if missing:
            del entry[key]
    theirs, ours = reference_answer(history, reference)["badput"], account_of(history)
    assert (theirs[SAVE], theirs[RESTORE]) == (2, 2)
    assert [flat(ours.details["badput_time"])[name] for name in (SAVE, RESTORE)] == [2, 2]
    [note] = ours.report.notes
    assert note.startswith("2 saves or restores recorded without a start")


@pytest.mark.parametrize("missing", [None, "absent"])
def test_a_save_or_restore_without_any_time_counts_as_long(missing: str | None, reference: Reference) -> None:
    """Here it counts from what was logged before it, as this log has no times of its own."""
    history = History().start(0).restore(3, 1, 3).steps(range(4, 12), at=5).save(11, 76, 78).end(85)
    for entry in history.payloads:
        for key in [key for key in entry if "event_type" in entry and key.endswith("_start_time")]:
            entry[key] = None
            if missing:
                del entry[key]
    theirs, ours = reference_answer(history, reference)["badput"], account_of(history)
    assert (theirs[SAVE], theirs[RESTORE]) == (2, 2)
    assert [flat(ours.details["badput_time"])[name] for name in (SAVE, RESTORE)] == [2, 2]
    [note] = ours.report.notes
    assert note.startswith("2 saves or restores recorded without a start")
