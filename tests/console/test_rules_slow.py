"""The rules on slow jobs, and the statistics that they use."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.reading import RunView, State
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import (
    CompileBatch,
    Fact,
    Facts,
    Pause,
    ProcessFacts,
    StepSummary,
    Times,
    Unknown,
)
from ml_diagnostics_console._facts.profile import read_profile, summary_of
from ml_diagnostics_console._facts.profile_facts import ProfileFacts
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.robust import high_outliers, last_change
from ml_diagnostics_console.verdict import Blame, Confidence, NotChecked, Part, Verdict, VerdictClass

from tests.console.made_facts import after, attempt, facts, metric_of_steps, metrics, process, ref

OF_SLOW_JOBS = ("L1", "L2", "L3", "L4", "L5", "L6", "L7")


def times(seconds: float, steps: int) -> Times:
    return Times(seconds * steps, seconds, seconds, seconds)


def summaries(
    own: float | None,
    *,
    wall: float | Sequence[float] = 0.06,
    data: float | None = None,
    count: int = 6,
    steps: int = 100,
    host: str = "host-0",
    has_wait: bool = True,
) -> tuple[StepSummary, ...]:
    """Return summaries of 10 s each, with the same own time and data loading of a step in all of them."""
    walls = [wall] * count if isinstance(wall, float) else list(wall)
    found = []
    for number, each in enumerate(walls):
        seconds = 10.0 * (number + 1)
        found.append(
            StepSummary(
                after(seconds),
                number * steps,
                (number + 1) * steps - 1,
                steps,
                times(each, steps),
                None if own is None else times(own, steps),
                None if data is None else times(data, steps),
                times(each - own, steps) if own is not None and has_wait else None,
                None,
                None,
                ref(f"summary {number}", seconds=seconds, host=host),
            )
        )
    return tuple(found)


def of_hosts(*own: float | None, **fields: Any) -> list[ProcessFacts]:
    return [
        process(index, step=600, summaries=summaries(each, host=f"host-{index}", **fields))
        for index, each in enumerate(own)
    ]


def judged(known: Facts, rule: str) -> Any:
    return next(each for each in all_rules() if each.id == rule).judge(known)


def verdicts(known: Facts) -> dict[str, Verdict]:
    found = {rule: judged(known, rule) for rule in OF_SLOW_JOBS}
    return {rule: verdict for rule, verdict in found.items() if isinstance(verdict, Verdict)}


def only(known: Facts, rule: str) -> Verdict:
    found = verdicts(known)
    assert list(found) == [rule], {name: verdict.sentence for name, verdict in found.items()}
    verdict = found[rule]
    assert verdict.evidence
    assert verdict.next
    assert all(entry.id and entry.shows for entry in verdict.evidence)
    assert verdict.verdict_class is VerdictClass.SLOW
    return verdict


# --- Statistics ---------------------------------------------------------------------------------------------


def test_an_outlier_stands_apart_by_score_and_ratio() -> None:
    values = {f"host-{index}": 10.0 + index / 10 for index in range(8)}
    assert high_outliers(values, least_ratio=1.5) == []
    assert [each.name for each in high_outliers({**values, "host-3": 20.0}, least_ratio=1.5)] == ["host-3"]
    assert high_outliers({**values, "host-3": 14.0}, least_ratio=1.5) == []
    assert high_outliers({"a": 1.0, "b": 1.0, "c": 9.0}, least_ratio=1.5) == []
    assert high_outliers(dict.fromkeys("abcd", 0.0), least_ratio=1.5) == []
    assert [each.name for each in high_outliers({"a": 5.0, "b": 5.0, "c": 5.0, "d": 8.0}, least_ratio=1.5)] == ["d"]


def test_a_change_of_level_is_found_where_it_is() -> None:
    draw = random.Random(1)
    values = [1.0 + draw.gauss(0, 0.01) for _ in range(40)] + [1.1 + draw.gauss(0, 0.01) for _ in range(30)]
    change = last_change(values)
    assert change is not None
    assert abs(change.start - 40) <= 1
    assert change.after / change.before == pytest.approx(1.1, abs=0.02)


def test_noise_and_a_single_stall_are_no_change_of_level() -> None:
    changes = 0
    for seed in range(100):
        draw = random.Random(seed)
        changes += last_change([1.0 + draw.gauss(0, 0.03) for _ in range(60)]) is not None
    assert changes <= 3
    assert last_change([1.0] * 30 + [9.0] + [1.0] * 30) is None
    assert last_change([]) is None
    assert last_change([1.0] * 50) is None


# --- L1 -----------------------------------------------------------------------------------------------------


def test_l1_reports_the_share_of_data_loading() -> None:
    verdict = only(facts(of_hosts(0.055, 0.055, data=0.05)), "L1")
    assert verdict.sentence.startswith("input-bound: data loading takes 83.3 % of each step of 60.0 ms on host-")
    assert verdict.confidence is Confidence.LIKELY
    assert verdict.blame is Blame.USER


@pytest.mark.parametrize(("data", "is_bound"), [(0.0060, False), (0.0061, True)])
def test_l1_needs_more_than_a_tenth_of_the_step(data: float, is_bound: bool) -> None:
    assert ("L1" in verdicts(facts(of_hosts(0.01, data=data)))) is is_bound


@pytest.mark.parametrize(("data", "is_bound"), [(0.00009, False), (0.00011, True)])
def test_l1_needs_more_than_what_python_takes_to_hand_a_batch_over(data: float, is_bound: bool) -> None:
    """A program with steps of some microseconds, like an example of the docs, has nothing to gain."""
    assert ("L1" in verdicts(facts(of_hosts(0.0002, wall=0.0002, data=data)))) is is_bound


def test_l1_needs_twenty_steps() -> None:
    assert "L1" not in verdicts(facts(of_hosts(0.055, data=0.05, count=1, steps=19)))
    assert "L1" in verdicts(facts(of_hosts(0.055, data=0.05, count=1, steps=20)))


def test_slow_input_of_one_of_two_hosts_is_not_that_of_the_job() -> None:
    slow = process(0, step=600, summaries=summaries(0.055, data=0.05))
    fast = process(1, step=600, summaries=summaries(0.006, data=0.001))
    assert "L1" not in verdicts(facts([slow, fast]))


def test_l1_shows_possibly_of_a_duty_cycle_alone() -> None:
    for duty, is_bound in ((19.0, True), (20.0, False)):
        curves = metrics(("tpu_duty_cycle", "host-0", [duty] * 12))
        known = facts([process(0, step=9)], metrics=curves)
        assert ("L1" in verdicts(known)) is is_bound
        if is_bound:
            assert only(known, "L1").sentence.startswith(
                "possibly input-bound: the accelerators compute for only 19.0 %"
            )
            assert only(known, "L1").confidence is Confidence.POSSIBLE


def test_l1_uses_the_times_of_grain_and_the_profile() -> None:
    curves = metrics(("tpu_pygrain_dataset_next_duration", "host-0", [0.05] * 3))
    profile = Fact(ProfileFacts("session-1", input_percent=72.0), (ref("waits for input"),))
    verdict = only(facts(of_hosts(0.01), metrics=curves, profile=profile), "L1")
    assert "grain takes 50.0 ms for a batch, of a step of 60.0 ms" in verdict.sentence
    assert "in the profile session-1, steps wait for input for 72.0 %" in verdict.sentence
    assert verdict.confidence is Confidence.LIKELY


def test_idle_devices_with_short_data_loading_wait_for_something_else() -> None:
    curves = metrics(("tpu_duty_cycle", "host-0", [5.0] * 12))
    assert "L1" not in verdicts(facts(of_hosts(0.01, data=0.001), metrics=curves))


def test_l1_shows_what_is_missing() -> None:
    assert "heartbeat" in judged(facts(of_hosts(0.01)), "L1").why
    assert isinstance(judged(facts([process(0)]), "L1"), NotChecked)


# --- L2 -----------------------------------------------------------------------------------------------------


def test_l2_names_the_host_that_is_late_in_each_step() -> None:
    verdict = only(facts(of_hosts(0.006, 0.057, 0.006, 0.007)), "L2")
    assert verdict.sentence.startswith(
        "host-1 is late by 51.0 ms of 60.0 ms in each step since 100: it costs 85.0 %, critical"
    )
    assert verdict.hosts == ("host-1",)
    assert verdict.confidence is Confidence.LIKELY
    assert verdict.blame is Blame.UNKNOWN
    assert "swap host-1" in verdict.next[0].why
    assert verdict.cost is not None
    assert verdict.cost.seconds == pytest.approx(0.051 * 500)


def test_l2_decides_with_two_hosts() -> None:
    assert only(facts(of_hosts(0.006, 0.056)), "L2").hosts == ("host-1",)


@pytest.mark.parametrize(
    ("own", "is_late", "is_critical"), [(0.0159, False, False), (0.0161, True, False), (0.0221, True, True)]
)
def test_l2_needs_a_tenth_of_the_step_and_calls_a_fifth_critical(own: float, is_late: bool, is_critical: bool) -> None:
    found = verdicts(facts(of_hosts(0.01, own, 0.01, count=2, steps=20)))
    assert ("L2" in found) is is_late
    assert ("critical" in found["L2"].sentence if is_late else False) is is_critical


@pytest.mark.parametrize(("own", "steps", "is_late"), [(0.0135, 100, False), (0.0147, 100, True), (0.0147, 49, False)])
def test_l2_shows_possibly_of_a_host_that_is_a_tenth_slower(own: float, steps: int, is_late: bool) -> None:
    found = verdicts(facts(of_hosts(0.01, own, 0.01, count=2, steps=steps)))
    assert ("L2" in found) is is_late
    if is_late:
        assert found["L2"].sentence.startswith("possibly host-1 is late by 4.70 ms")
        assert found["L2"].confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(("steps", "is_late"), [(9, False), (10, True)])
def test_l2_needs_twenty_steps_in_a_row(steps: int, is_late: bool) -> None:
    assert ("L2" in verdicts(facts(of_hosts(0.006, 0.056, count=2, steps=steps)))) is is_late


def test_a_single_stall_is_not_lateness() -> None:
    late = summaries(0.006, host="host-1")
    stalled = late[3]._replace(own=Times(5.0, 0.006, 0.006, 4.4), wall=Times(11.0, 0.06, 0.06, 4.5))
    processes = [*of_hosts(0.006), process(1, summaries=(*late[:3], stalled, *late[4:]))]
    assert "L2" not in verdicts(facts(processes))


def test_l2_names_the_cause_only_if_it_explains_most_of_it() -> None:
    for data, is_named in ((0.045, True), (0.030, False)):
        slow = process(1, summaries=summaries(0.057, data=data, host="host-1"))
        others = [process(index, summaries=summaries(0.006, data=0.001)) for index in (0, 2)]
        verdict = verdicts(facts([*others, slow]))["L2"]
        assert ("because of its input" in verdict.sentence) is is_named
        assert verdict.blame is (Blame.USER if is_named else Blame.UNKNOWN)


def test_l2_names_compilation_as_the_cause() -> None:
    batches = tuple(CompileBatch(after(10.0 * number), 5, 5.0, {"step": 5}, ref()) for number in range(2, 7))
    slow = process(1, summaries=summaries(0.057, host="host-1"), compiles=batches)
    verdict = verdicts(facts([*of_hosts(0.006), slow, process(2, summaries=summaries(0.006))]))["L2"]
    assert "because of compilation" in verdict.sentence


def test_l2_blames_the_system_if_lateness_stays_with_the_host() -> None:
    earlier = attempt(of_hosts(0.006, 0.056, 0.006), number=1)
    moved = [
        process(index, host=host, step=600, summaries=summaries(own, host=host))
        for index, (host, own) in enumerate([("host-1", 0.056), ("host-0", 0.006), ("host-2", 0.006)])
    ]
    verdict = verdicts(facts(earlier, attempt(moved, number=2)))["L2"]
    assert verdict.blame is Blame.SYSTEM
    assert "it stays with the host" in verdict.sentence


def test_equal_hosts_are_not_late_and_one_process_cannot_be() -> None:
    assert "L2" not in verdicts(facts(of_hosts(0.006, 0.0065, 0.0061, 0.0068)))
    assert judged(facts(of_hosts(0.05)), "L2") is None


def test_l2_shows_what_is_missing() -> None:
    assert 'phase="sync"' in judged(facts(of_hosts(None, None)), "L2").why
    assert "diagnose()" in judged(facts([process(0), process(1)]), "L2").why


def test_one_of_128_hosts_is_found() -> None:
    processes = of_hosts(*(0.006 if index != 77 else 0.05 for index in range(128)), count=60)
    assert verdicts(facts(processes))["L2"].hosts == ("host-77",)


# --- L3 -----------------------------------------------------------------------------------------------------


def walls(*levels: tuple[float, int]) -> list[float]:
    draw = random.Random(3)
    return [level * (1 + draw.gauss(0, 0.005)) for level, count in levels for _ in range(count)]


def test_l3_reports_since_which_step_it_is_slower_and_which_part_grew() -> None:
    known = summaries(0.02, wall=walls((0.1, 20), (0.12, 20)))
    grown = tuple(each if number < 20 else each._replace(wait=times(0.1, 100)) for number, each in enumerate(known))
    verdict = only(facts([process(0, step=4000, summaries=grown)]), "L3")
    assert verdict.step == 2000
    assert "longer since step 2,000" in verdict.sentence
    assert "the wait for the devices grew from 79.9 ms to 100 ms" in verdict.sentence
    assert verdict.confidence is Confidence.LIKELY


@pytest.mark.parametrize(("level", "is_slower"), [(0.104, False), (0.107, True), (0.09, False)])
def test_l3_needs_five_percent(level: float, is_slower: bool) -> None:
    known = facts([process(0, summaries=summaries(0.02, wall=walls((0.1, 20), (level, 20))))])
    assert ("L3" in verdicts(known)) is is_slower


def test_l3_needs_twenty_steps_on_both_sides() -> None:
    for steps, is_slower in ((1, False), (2, True)):
        known = facts([process(0, summaries=summaries(0.02, wall=walls((0.1, 16), (0.2, 15)), steps=steps))])
        assert ("L3" in verdicts(known)) is is_slower


def test_l3_judges_the_last_level() -> None:
    recovered = facts([process(0, summaries=summaries(0.02, wall=walls((0.1, 20), (0.2, 20), (0.1, 20))))])
    assert "L3" not in verdicts(recovered)


def test_l3_uses_the_metric_of_step_times() -> None:
    values: list[float | str] = [*walls((0.1, 100), (0.15, 100))]
    verdict = only(facts([process(0)], metrics=metric_of_steps("step_time", values)), "L3")
    assert verdict.step == 100


def test_l3_shows_what_is_missing() -> None:
    assert "step_time" in judged(facts([process(0)]), "L3").why


# --- L4 -----------------------------------------------------------------------------------------------------


def compiled(
    count: int, *, seconds: float = 1.0, first: int = 0, function: str = "train_step"
) -> tuple[CompileBatch, ...]:
    return tuple(
        CompileBatch(
            after(10.0 * (first + number) + 5), 1, seconds, {function: 1}, ref(f"batch {number}", seconds=number)
        )
        for number in range(count)
    )


@pytest.mark.parametrize(("count", "is_recompiled"), [(6, False), (7, True)])
def test_l4_needs_more_than_five_compilations_after_the_first_steps(count: int, is_recompiled: bool) -> None:
    known = facts([process(0, summaries=summaries(0.05, count=8), compiles=compiled(count))])
    assert ("L4" in verdicts(known)) is is_recompiled
    if is_recompiled:
        verdict = only(known, "L4")
        assert verdict.sentence.startswith("host-0 recompiles train_step: 6 times after the first steps, 6.00 s in all")
        assert verdict.blame is Blame.USER


def test_l4_counts_each_function_by_itself_and_only_what_costs_time() -> None:
    many = tuple(each for name in "abcdef" for each in compiled(5, first=1, function=name))
    assert "L4" not in verdicts(facts([process(0, summaries=summaries(0.05), compiles=many)]))
    cheap = compiled(20, seconds=0.001, first=1)
    assert "L4" not in verdicts(facts([process(0, summaries=summaries(0.05), compiles=cheap)]))


def test_l4_shows_what_is_missing_and_trusts_a_companion_without_events() -> None:
    assert isinstance(judged(facts([process(0)]), "L4"), NotChecked)
    assert judged(facts(of_hosts(0.05)), "L4") is None


# --- L5 -----------------------------------------------------------------------------------------------------


def test_l5_reports_busy_cores_only_if_the_accelerators_wait() -> None:
    for cpu, duty, is_bound in ((95.0, 40.0, True), (89.0, 40.0, False), (95.0, 80.0, False)):
        curves = metrics(("host_cpu_share", "host-0", [cpu] * 6), ("tpu_duty_cycle", "host-0", [duty] * 6))
        found = verdicts(facts([process(0)], metrics=curves))
        assert ("L5" in found) is is_bound
    assert "L5" not in verdicts(facts([process(0)], metrics=metrics(("host_cpu_share", "host-0", [99.0] * 60))))


def test_l5_reports_memory_at_its_limit() -> None:
    for used, is_bound in ((94.9, False), (95.0, True)):
        curves = metrics(("container_memory_utilization", "host-1", [used] * 6))
        known = facts([process(0), process(1)], metrics=curves)
        assert ("L5" in verdicts(known)) is is_bound
        if is_bound:
            verdict = only(known, "L5")
            assert verdict.sentence.startswith("bound by memory on host-1: 95.0 % of its container's limit")
            assert verdict.process_indices == (1,)
    few = metrics(("container_memory_utilization", "host-1", [99.0] * 5))
    assert "L5" not in verdicts(facts([process(0), process(1)], metrics=few))


def test_l5_reports_the_bandwidth_of_the_devices_as_a_contribution() -> None:
    verdict = only(facts([process(0)], metrics=metrics(("tpu_hbm_util", "host-0", [85.0] * 6))), "L5")
    assert "85.0 % of the memory bandwidth" in verdict.sentence
    assert verdict.part is Part.CONTRIBUTING
    assert "L5" not in verdicts(facts([process(0)], metrics=metrics(("tpu_hbm_util", "host-0", [79.0] * 6))))


def test_l5_shows_possibly_of_a_rate_that_does_not_vary_while_data_is_loaded() -> None:
    for data, rates, is_bound in (
        (0.05, [200e6] * 30, True),
        (0.001, [200e6] * 30, False),
        (0.05, [20e6] * 30, False),
        (0.05, [200e6, 90e6] * 15, False),
    ):
        curves = metrics(("host_disk_read_throughput", "host-0", rates))
        found = verdicts(facts([process(0, summaries=summaries(0.055, data=data))], metrics=curves))
        assert ("L5" in found) is is_bound
        if is_bound:
            assert found["L5"].sentence.startswith("possibly bound by disk on host-0: reading from disk at 200 MB/s")


def test_l5_shows_what_is_missing() -> None:
    assert isinstance(judged(facts([process(0)]), "L5"), NotChecked)


# --- L6 -----------------------------------------------------------------------------------------------------


def test_l6_reports_a_job_on_the_cpu_of_a_host_with_accelerators() -> None:
    curves = metrics(("gpu_duty_cycle", "host-0", [0.0] * 3))
    verdict = only(facts([process(0, hardware={"accelerator_type": "cpu"})], metrics=curves), "L6")
    assert verdict.sentence.startswith("host-0 computes on the CPU, though the host has GPUs")
    assert "jax[cuda12]" in verdict.next[0].command
    on_tpu = process(0, hardware={"accelerator_type": "cpu", "tpu_accelerator_type": "v5litepod-8"})
    assert "TPUs" in only(facts([on_tpu]), "L6").sentence


def test_l6_shows_possibly_of_accelerators_that_did_nothing() -> None:
    curves = metrics(("gpu_duty_cycle", "host-0", [0.0] * 6))
    found = verdicts(facts([process(0, step=9, hardware={"accelerator_type": "gpu"})], metrics=curves))
    assert found["L6"].sentence.startswith("possibly host-0 computes on the CPU")
    used = metrics(("gpu_duty_cycle", "host-0", [0.0] * 5 + [3.0]))
    assert "L6" not in verdicts(facts([process(0, step=9, hardware={"accelerator_type": "gpu"})], metrics=used))


def test_a_job_on_a_laptop_is_not_accused_of_using_its_cpu() -> None:
    assert judged(facts([process(0, step=9, hardware={"accelerator_type": "cpu"})]), "L6") is None


def test_l6_shows_what_is_missing() -> None:
    assert isinstance(judged(facts([process(0)]), "L6"), NotChecked)


# --- L7 -----------------------------------------------------------------------------------------------------


def saving(phase: str, *saves: tuple[int, float]) -> Facts:
    """Return the facts of a host with 6 s of steps in each summary, and so many pauses of so many seconds in all."""
    known = summaries(None, count=len(saves))
    paused = (Pause(phase, count, seconds, seconds / max(1, count)) for count, seconds in saves)
    pairs = zip(known, paused, strict=True)
    return facts([process(0, summaries=tuple(each._replace(pauses=(pause,)) for each, pause in pairs))])


@pytest.mark.parametrize(("seconds", "is_slow"), [(1.99, False), (2.01, True)])
def test_l7_needs_a_fifth_of_the_time(seconds: float, is_slow: bool) -> None:
    assert ("L7" in verdicts(saving("checkpoint", (2, seconds), (2, seconds)))) is is_slow


def test_l7_reports_how_many_saves_took_how_long() -> None:
    verdict = only(saving("checkpoint", (4, 4.8), (4, 4.8)), "L7")
    assert verdict.sentence.startswith("saves take 41.2 % of the time between steps on host-0: 8 saves of 1.20 s")
    assert "fails every 3.5" in verdict.sentence
    assert verdict.blame is Blame.USER
    assert verdict.cost is not None
    assert verdict.cost.seconds == pytest.approx(8.4)


def test_one_long_save_or_an_evaluation_is_not_slow_saving() -> None:
    assert "L7" not in verdicts(saving("checkpoint", (1, 30.0), (4, 0.1)))
    assert "L7" not in verdicts(saving("eval", (4, 30.0), (4, 30.0)))
    assert isinstance(judged(facts([process(0)]), "L7"), NotChecked)


# --- All ----------------------------------------------------------------------------------------------------


def test_a_healthy_job_is_not_slow() -> None:
    curves = metrics(
        *((name, "host-0", [level] * 40) for name, level in (("host_cpu_share", 30.0), ("tpu_duty_cycle", 95.0))),
        ("host_memory_utilization", "host-0", [40.0] * 40),
    )
    processes = of_hosts(0.006, 0.0065, data=0.002, wall=walls((0.06, 40)))
    assert verdicts(facts(processes, metrics=curves)) == {}


def test_slowness_only_contributes_to_a_job_that_has_failed() -> None:
    processes = of_hosts(0.006, 0.057, 0.006)
    failed = process(3, end="exception: ValueError: x", ended=70)
    assert verdicts(facts([*processes, failed]))["L2"].part is Part.CONTRIBUTING
    assert verdicts(facts(processes))["L2"].part is Part.INITIATING


# --- Profiles -----------------------------------------------------------------------------------------------


SUMMARY = {
    "session": "s",
    "device": "TPU v5p",
    "steps": [{"name": "1"}, {"name": "2"}],
    "step_times": {"mean_us": 61_000.0},
    "idle_percent": 40.0,
    "input": {"waiting_percent": 33.0},
    "cause": {"kind": "Input", "percent": 33.0, "text": "Input takes 33.0 % of the step"},
    "slow_host": {"host": "host-1", "ratio": 1.4},
    "compilations": {"count": 2, "seconds": 1.0, "percent": 3.0},
    "operations": [{"name": "fusion.1", "percent": 21.0}],
    "notes": ["a note"],
}


def test_a_summary_becomes_facts_whatever_form_its_values_have() -> None:
    found = summary_of("s", SUMMARY)
    assert found.step_seconds == pytest.approx(0.061)
    assert (found.steps, found.input_percent, found.slow_host) == (2, 33.0, "host-1")
    assert found.operations == {"fusion.1": 21.0}
    assert summary_of("s", dict.fromkeys(SUMMARY)) == ProfileFacts("s", operations={})
    assert summary_of("s", {}) == ProfileFacts("s", operations={})


def view(folder: str | None) -> RunView:
    from google_cloud_mldiagnostics._reading.session_view import HostProfile, SessionView

    sessions = []
    if folder is not None:
        sessions = [SessionView("s", folder=folder, started_ns=after(5), hosts=[HostProfile("h", 0, "SUCCEEDED")])]
    return RunView("run-1", "", "", State.ACTIVE, "", None, None, None, "", "", {}, {}, [], sessions, [])


def test_only_a_profile_on_this_machine_is_read(tmp_path: Any) -> None:
    asked = []

    def summarise(folder: str) -> Any:
        asked.append(folder)
        return SUMMARY

    for folder, reason in (
        (None, "mldiagnostics profile run-1"),
        ("gs://bucket/x", "in a bucket"),
        (str(tmp_path / "gone"), "not on this machine"),
        (str(tmp_path), "not on this machine"),
    ):
        found = read_profile(view(folder), summarise=summarise)
        assert isinstance(found, Unknown)
        assert reason in found.why
    assert asked == []
    (tmp_path / "h.xplane.pb").write_bytes(b"x")
    found = read_profile(view(str(tmp_path)), summarise=summarise)
    assert isinstance(found, Fact)
    assert found.value.cause == "Input takes 33.0 % of the step"
    assert found.refs[0].shows == "profile s: Input takes 33.0 % of the step; steps wait for input for 33.0 %"
    refused = read_profile(view(str(tmp_path)), summarise=lambda _: "install XProf")
    assert isinstance(refused, Unknown)
    assert "install XProf" in refused.why


def test_a_real_profile_is_summarised_by_xprofiler_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    pytest.importorskip("xprof")
    jax = pytest.importorskip("jax")
    product = jax.jit(lambda matrix: (matrix @ matrix).sum())
    matrix = jax.numpy.ones((100, 100))
    product(matrix).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        for step in range(20):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                product(matrix).block_until_ready()
    (folder,) = tmp_path.glob("plugins/profile/*")
    files = set(folder.iterdir())
    found = read_profile(view(str(folder)))
    assert isinstance(found, Fact), found
    assert (found.value.steps, found.value.device) == (20, "CPU")
    assert found.value.cause
    assert set(folder.iterdir()) == files  # XProf's caches are elsewhere.
    for file in files:
        file.write_bytes(b"damaged")
    damaged = read_profile(view(str(folder)))
    assert isinstance(damaged, Unknown)
    assert "cannot be summarised" in damaged.why


def test_curves_without_points_are_judged_by_no_rule() -> None:
    assert verdicts(facts([process(0)], metrics=Curves())) == {}
