"""The rules on hosts: versions and configs that differ, links, throttled chips, latencies, errors of GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google_cloud_mldiagnostics.reading import State
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import (
    CompileBatch,
    Fact,
    Facts,
    HangVerdict,
    KernelState,
    MainStack,
    Pause,
    ProcessFacts,
    StepSummary,
    Times,
)
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.observations import observations
from ml_diagnostics_console.report import format_verdict
from ml_diagnostics_console.verdict import Blame, Confidence, NotChecked, Part, Verdict, VerdictClass

from tests.console.made_facts import after, attempt, facts, process, ref

OF_HOSTS = ("B5", "H1", "H2", "H3", "H4")
MINE = (*OF_HOSTS, "L7", "B3", "K1", "K1s", "K2", "K3", "K4", "K5", "K6", "L1", "L2", "L3", "L4", "L5", "L6")


def states(name: str, host: str, *points: tuple[float, Sequence[float], Mapping[str, Any]], curves: Curves) -> None:
    """Record a metric of devices: at some second its values, and what is beside them."""
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": host, "pid": "4000"}, writer=f"{host}-4000-1")
    for seconds, values, beside in points:
        payload = {"values": list(values), "unit": "1", "hostname": host, **beside}
        curves.add(name, LogEntry(after(seconds), 100_000_000_000 + round(seconds), payload, context))


def made(name: str, host: str, *points: tuple[float, Sequence[float], Mapping[str, Any]]) -> Curves:
    curves = Curves()
    states(name, host, *points, curves=curves)
    return curves


def judged(known: Facts, rule: str) -> Any:
    return next(each for each in all_rules() if each.id == rule).judge(known)


def only(known: Facts, rule: str) -> Verdict:
    found = {each: verdict for each in OF_HOSTS if isinstance(verdict := judged(known, each), Verdict)}
    assert list(found) == [rule], {name: verdict.sentence for name, verdict in found.items()}
    verdict = found[rule]
    assert verdict.evidence
    assert verdict.next
    assert all(entry.id and entry.shows for entry in verdict.evidence)
    return verdict


# --- B5 -----------------------------------------------------------------------------------------------------


def of_versions(*versions: str, key: str = "jax_version") -> list[ProcessFacts]:
    return [process(index, software={key: version}) for index, version in enumerate(versions)]


def test_b5_names_the_host_with_another_version() -> None:
    verdict = only(facts(of_versions("0.10.2", "0.10.2", "0.9.1", "0.10.2")), "B5")
    assert verdict.sentence == "the hosts differ: host-2 runs jax 0.9.1, the 3 others 0.10.2"
    assert verdict.hosts == ("host-2",)
    assert verdict.blame is Blame.USER
    assert verdict.confidence is Confidence.LIKELY
    assert verdict.verdict_class is VerdictClass.BEFORE_START


def test_a_job_whose_hosts_differ_and_that_makes_steps_has_not_failed_before_the_first_one() -> None:
    processes = of_versions("0.10.2", "0.10.2", "0.9.1")
    waiting = facts(processes)
    assert format_verdict(only(waiting, "B5"), 80, waiting)[0].startswith("Failed before the first step: the hosts")
    training = facts([replace(each, last_step=Fact(30, (ref(),), after(30.0))) for each in processes])
    assert format_verdict(only(training, "B5"), 80, training)[0].startswith("The hosts differ: host-2")


def test_b5_of_two_hosts_names_both() -> None:
    verdict = only(facts(of_versions("0.10.2", "0.9.1")), "B5")
    assert verdict.sentence == "the hosts differ: host-0 runs jax 0.10.2, host-1 runs jax 0.9.1"
    assert verdict.hosts == ("host-0", "host-1")


def test_what_differs_on_healthy_hosts_does_not_count() -> None:
    for key in ("command_line", "cpu_count", "git_branch"):
        assert judged(facts(of_versions("a", "b", "a", key=key)), "B5") is None
    assert judged(facts(of_versions("1", "1", "1")), "B5") is None
    assert judged(facts(of_versions("", "n/a", "n/a", key="libtpu_version")), "B5") is None


def of_configs(*configs: Mapping[str, str], known: bool = True) -> list[ProcessFacts]:
    return [
        process(
            index,
            config_digest=json.dumps(dict(each)),
            user_configs=each if known else {},
            software={"framework": "JAX"},
        )
        for index, each in enumerate(configs)
    ]


def test_b5_names_the_config_that_differs_and_its_values() -> None:
    verdict = only(facts(of_configs({"batch": "8"}, {"batch": "16"}, {"batch": "8"})), "B5")
    assert verdict.sentence == "the hosts differ: host-1 runs config batch 16, the 2 others 8"


def test_configs_of_each_process_do_not_count() -> None:
    for key in ("process_index", "data_seed", "shard_id", "rank"):
        assert judged(facts(of_configs({key: "1"}, {key: "2"}, {key: "2"})), "B5") is None
    assert judged(facts(of_configs({"part": "1"}, {"part": "2"}, {"part": "3"})), "B5") is None


def test_b5_uses_digests_alone_only_if_most_hosts_agree() -> None:
    verdict = only(facts(of_configs({"a": "1"}, {"a": "2"}, {"a": "1"}, known=False)), "B5")
    assert verdict.sentence == "the hosts differ: host-1 has other configs than the 2 others"
    assert judged(facts(of_configs({"a": "1"}, {"a": "2"}, known=False)), "B5") is None


def test_b5_shows_what_is_missing() -> None:
    assert "machinelearning_run() on each of them" in judged(facts([process(0), process(1)]), "B5").why
    assert judged(facts([process(0)]), "B5") is None


# --- H1 -----------------------------------------------------------------------------------------------------

LINKS = {
    "links": ["tray1.chip3.ici0.int", "tray1.chip2.ici0.int"],
    "trays": [1, 1],
    "chips": [3, 2],
    "ports": ["ici0.int", "ici0.int"],
}


@pytest.mark.parametrize(("health", "is_bad"), [(0, False), (5, False), (6, True), (9, True), (10, True)])
def test_h1_reports_links_that_are_persistently_bad(health: int, is_bad: bool) -> None:
    curves = made("tpu_ici_link_health", "host-1", (0, [0, 0], LINKS), (60, [health, 0], LINKS))
    known = facts([process(0), process(1)], metrics=curves)
    if not is_bad:
        assert judged(known, "H1") is None
        return
    verdict = only(known, "H1")
    state = "is unusable" if health == 10 else f"has persistent errors (state {health} of 10)"
    assert verdict.sentence.startswith(f"the ICI link of tray 1, chip 3, port ici0.int of host-1 {state} since ")
    assert verdict.confidence is Confidence.PROVEN
    assert verdict.blame is Blame.SYSTEM
    assert verdict.hosts == ("host-1",)
    assert verdict.process_indices == (1,)
    assert verdict.since_ns == after(60)


def test_an_unusable_link_explains_a_stuck_job_and_one_with_errors_contributes() -> None:
    stack = MainStack(after(100), ("step (/job/train.py:8)",), 30, "sync", 0.0, "snapshot", ref("stack"))
    hang = HangVerdict(after(95), "step", 30, 40.0, 30.0, "", ref("hang", seconds=95))
    stuck = [process(index, step=30, stacks=(stack,), hangs=(hang,), last_event_ns=after(100)) for index in range(3)]
    for health, part in ((10, Part.INITIATING), (6, Part.CONTRIBUTING)):
        curves = made("tpu_ici_link_health", "host-1", (60, [health, 0], LINKS))
        verdict = only(facts(stuck, metrics=curves), "H1")
        assert verdict.verdict_class is VerdictClass.STUCK
        assert verdict.part is part
    assert next(rule for rule in all_rules() if rule.id == "H1").replaces == ("K2",)


def test_h1_reports_an_nvlink_that_went_down() -> None:
    up = {"accelerator_labels": ["g0", "g1"], "links": [18, 18], "inactive_links": [[], []]}
    down = {**up, "inactive_links": [[], [3]]}
    curves = made("gpu_nvlink_active_links", "host-1", (0, [18, 18], up), (60, [18, 17], down))
    assert only(facts([process(0), process(1)], metrics=curves), "H1").sentence.startswith(
        "NVLink 3 of g1 of host-1 is down"
    )
    none = {"accelerator_labels": ["g0", "g1"], "links": [4, 4], "inactive_links": [[0, 1, 2, 3], [0, 1, 2, 3]]}
    never = made("gpu_nvlink_active_links", "host-1", (0, [0, 0], none), (60, [0, 0], none))
    assert judged(facts([process(0)], metrics=never), "H1") is None


# --- H2 -----------------------------------------------------------------------------------------------------

CHIPS = {"accelerator_labels": ["host-1-tpu0", "host-1-tpu1"], "accelerator_type": "tpu"}


def test_h2_reports_by_how_much_a_chip_is_throttled_and_for_how_long() -> None:
    curves = made("tpu_throttle_score", "host-1", (0, [0, 0], CHIPS), (30, [0, 3], CHIPS), (90, [0, 3], CHIPS))
    verdict = only(facts([process(0), process(1)], metrics=curves), "H2")
    assert verdict.sentence == "host-1-tpu1 is throttled by 30 % for 1 min 30 s"
    assert verdict.blame is Blame.SYSTEM
    assert verdict.cost is not None
    assert verdict.cost.seconds == pytest.approx(27)


@pytest.mark.parametrize(
    ("points", "is_throttled"),
    [
        ([(61, [0, 3])], False),
        ([(60, [0, 3])], True),
        ([(0, [0, 3]), (100, [0, 0])], False),
        ([(0, [0, 0]), (100, [0, 0])], False),
    ],
)
def test_h2_needs_a_minute_until_now(points: list[tuple[float, list[float]]], is_throttled: bool) -> None:
    curves = made("tpu_throttle_score", "host-1", *((seconds, values, CHIPS) for seconds, values in points))
    assert isinstance(judged(facts([process(0)], metrics=curves), "H2"), Verdict) is is_throttled


def test_h2_reports_gpus_by_their_clock_but_not_a_power_cap() -> None:
    for reason, is_throttled in (("hw_thermal_slowdown", True), ("sw_power_cap", False)):
        beside = {
            "accelerator_labels": ["host-1-gpu0", "host-1-gpu1"],
            "reasons": [[], [reason]],
            "sm_clock_mhz": [1980, 1188],
            "max_sm_clock_mhz": [1980, 1980],
        }
        curves = made("gpu_throttle_reasons", "host-1", (0, [0, 1], beside), (60, [0, 1], beside))
        found = judged(facts([process(1)], metrics=curves), "H2")
        assert isinstance(found, Verdict) is is_throttled
        if is_throttled:
            assert found.sentence == "host-1-gpu1 is throttled by 40 % (hw_thermal_slowdown) for 2 min 0 s"


# --- H3 -----------------------------------------------------------------------------------------------------


def latencies(name: str, by_host: Mapping[str, float], curves: Curves | None = None, size: str = "8MB+") -> Curves:
    curves = Curves() if curves is None else curves
    for host, value in by_host.items():
        states(name, host, (0, [value], {"sizes": [size]}), (60, [value], {"sizes": [size]}), curves=curves)
    return curves


USUAL = {f"host-{index}": 9_000.0 + 100 * index for index in range(6)}


def test_h3_names_the_host_that_stands_apart() -> None:
    processes = [process(index) for index in range(6)]
    curves = latencies("tpu_buffer_transfer_latency", {**USUAL, "host-3": 41_000.0})
    verdict = only(facts(processes, metrics=curves), "H3")
    assert verdict.sentence.startswith(
        "possibly the network of host-3 is slow: sending over the data-centre network (8MB+) takes 41.0 ms there, 9.3"
    )
    assert verdict.confidence is Confidence.POSSIBLE
    latencies("tpu_inbound_buffer_transfer_latency", {**USUAL, "host-3": 30_000.0}, curves)
    verdict = only(facts(processes, metrics=curves), "H3")
    assert verdict.confidence is Confidence.LIKELY
    assert "and 1 other latency" in verdict.sentence
    assert verdict.hosts == ("host-3",)


def test_h3_names_the_processor_by_the_latency_of_computing() -> None:
    curves = latencies("tpu_host_compute_latency", {**USUAL, "host-1": 20_000.0})
    assert (
        "the processor or memory of host-1"
        in only(facts([process(index) for index in range(6)], metrics=curves), "H3").sentence
    )


def test_h3_of_equal_hosts_finds_none_and_needs_four() -> None:
    processes = [process(index) for index in range(6)]
    assert judged(facts(processes, metrics=latencies("tpu_tcp_min_rtt", USUAL)), "H3") is None
    close = {**USUAL, "host-3": 13_000.0}
    assert judged(facts(processes, metrics=latencies("tpu_tcp_min_rtt", close)), "H3") is None
    few = {"host-0": 1.0, "host-1": 1.0, "host-2": 9.0}
    assert "among 4" in judged(facts(processes, metrics=latencies("tpu_tcp_min_rtt", few)), "H3").why


# --- H4 -----------------------------------------------------------------------------------------------------


def test_h4_reports_errors_of_the_hardware_but_not_of_the_program() -> None:
    def xids(*codes: int) -> Facts:
        beside = {"accelerator_labels": ["host-1-gpu0", "host-1-gpu1"], "codes": [[], list(codes)]}
        return facts([process(1)], metrics=made("gpu_xid_errors", "host-1", (60, [0, len(codes)], beside)))

    verdict = only(xids(79), "H4")
    assert verdict.sentence.startswith("host-1-gpu1 has reported Xid 79: it has fallen off the bus")
    assert verdict.part is Part.CONTRIBUTING
    assert judged(xids(13, 31), "H4") is None


def test_h4_reports_memory_errors_of_this_job_only() -> None:
    chips = {"accelerator_labels": ["g0", "g1"]}
    old = made("gpu_ecc_uncorrected_errors", "host-1", (0, [0, 4], chips), (60, [0, 4], chips))
    assert judged(facts([process(1)], metrics=old), "H4") is None
    new = made("gpu_ecc_uncorrected_errors", "host-1", (0, [0, 4], chips), (60, [0, 6], chips))
    failed = process(1, end="exception: XlaRuntimeError: INTERNAL", ended=70)
    verdict = only(facts([process(0), failed], metrics=new), "H4")
    assert "2 uncorrectable memory errors during the job" in verdict.sentence
    assert verdict.part is Part.INITIATING
    assert verdict.verdict_class is VerdictClass.CRASH


@pytest.mark.parametrize("rule", ["H1", "H2", "H3", "H4"])
def test_hosts_without_these_metrics_are_not_checked(rule: str) -> None:
    assert isinstance(judged(facts([process(0)]), rule), NotChecked)


# --- Notes --------------------------------------------------------------------------------------------------


def test_what_limits_the_answer_is_noted() -> None:
    lossy = process(0, lost_entries=12, expected_processes=4)
    silent = process(1, state=State.STALE, last_event_ns=after(60))
    known = facts(attempt([lossy, silent], clock_offsets_ns={"host-0": 0, "host-1": -12 * 10**9}), now_ns=after(300))
    assert observations(known) == [
        "12 entries of host-0 could not be recorded: facts may be missing.",
        "host-1: no event since 04:41:00 UTC, 4 min 0 s ago.",
        "Clocks differ from that of the first host: host-1 by -12.0 s; times are corrected by that.",
        "Nothing is known of 2 of 4 processes (2, 3).",
    ]


def test_a_healthy_job_needs_no_note() -> None:
    known = facts(attempt([process(0), process(1)], clock_offsets_ns={"host-0": 0, "host-1": 10**9}))
    assert observations(known) == []
    assert observations(facts()) == []


# --- Anything -----------------------------------------------------------------------------------------------

SECONDS = st.floats(-1e3, 1e4, allow_nan=False)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
FRAMES = st.sampled_from(
    [
        "",
        "(",
        "x:y)",
        "f (/a/train.py:3)",
        "next_batch (/a/data.py:4)",
        "backend_compile_and_load (/x/site-packages/jax/c.py:1)",
        "initialize (/x/site-packages/jax/_src/distributed.py:1)",
        "wait (/usr/lib/python3.11/threading.py:1)",
    ]
)
PAUSES = (Pause("checkpoint", 3, 9.0, 3.5), Pause("eval", 1, 9.0, 9.0))
TRIGGERS = st.sampled_from(["snapshot", "timer", "fault", "exception"])
CHANNELS = st.lists(st.sampled_from(["", "pipe_read", "nfs_wait"]), max_size=2)
PHASES = st.sampled_from(["", "step", "sync", "data", "init", "compile", "eval", "?"])
STEPS = st.none() | st.integers(0, 50)


@st.composite
def any_times(draw: st.DrawFn) -> Times:
    return Times(*(draw(st.floats(0, 1e3)) for _ in range(4)))


@st.composite
def any_process(draw: st.DrawFn, index: int) -> ProcessFacts:
    ends = [
        "",
        "clean",
        "signal: SIGKILL",
        "signal: SIGTERM",
        "exception: ValueError: x",
        "exception: Gloo reset",
        "exit: 0",
    ]
    end = draw(st.sampled_from(ends))
    ended: dict[str, Any] = {"end": end, "ended": draw(SECONDS)} if end else {}
    made_process = process(index, step=draw(STEPS), **ended)
    stacks = st.builds(
        lambda at, frames, step, phase, still, trigger: MainStack(
            after(at), tuple(frames), step, phase, still, trigger, ref("s")
        ),
        SECONDS, st.lists(FRAMES, max_size=4), STEPS, PHASES, st.floats(0, 1e4), TRIGGERS,
    )  # fmt: skip
    hangs = st.builds(
        lambda at, phase, step, stuck, frame: HangVerdict(after(at), phase, step, stuck, 30.0, frame, ref("h")),
        SECONDS, PHASES, STEPS, st.floats(0, 1e4), FRAMES,
    )  # fmt: skip
    kernels = st.builds(
        lambda at, states, channels, cpu, seconds: KernelState(
            after(at), tuple(states), tuple(channels), cpu, cpu, seconds, ref("k")
        ),
        SECONDS, st.lists(st.sampled_from("RSDTtZ"), max_size=2), CHANNELS,
        st.none() | NUMBERS, st.none() | st.floats(0, 10),
    )  # fmt: skip
    steps = st.builds(
        lambda at, first, count, wall, own, data: StepSummary(
            after(at), first, first + count, count, wall, own, data, own, None, None, ref("y"), PAUSES[: count % 3]
        ),
        SECONDS, st.integers(0, 500), st.integers(0, 90), any_times(), st.none() | any_times(), st.none() | any_times(),
    )  # fmt: skip
    batches = st.builds(
        lambda at, programs, seconds, functions: CompileBatch(after(at), programs, seconds, functions, ref("c")),
        SECONDS, st.integers(0, 9), st.floats(0, 100), st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)),
    )  # fmt: skip
    return replace(
        made_process,
        stacks=tuple(sorted(draw(st.lists(stacks, max_size=3)), key=lambda each: each.time_ns)),
        hangs=tuple(draw(st.lists(hangs, max_size=2))),
        kernel_states=tuple(draw(st.lists(kernels, max_size=1))),
        summaries=tuple(draw(st.lists(steps, max_size=4))),
        compiles=tuple(draw(st.lists(batches, max_size=4))),
        left_block_ns=draw(st.none() | st.just(after(50))),
        expected_processes=draw(st.none() | st.integers(0, 9)),
        software=draw(st.dictionaries(st.sampled_from(["jax_version", "xla_flags"]), st.sampled_from(["1", "2", ""]))),
        config_digest=draw(st.sampled_from(["", "a", "b"])),
        user_configs=draw(st.dictionaries(st.sampled_from(["lr", "seed"]), st.sampled_from(["1", "2"]))),
        hardware=draw(st.dictionaries(st.just("accelerator_type"), st.sampled_from(["cpu", "tpu", ""]))),
        last_event_ns=after(draw(SECONDS)),
        lost_entries=draw(st.integers(0, 3)),
    )


NAMES = (
    "tpu_ici_link_health",
    "tpu_throttle_score",
    "tpu_hlo_queue_size",
    "tpu_idle_duration",
    "tpu_tcp_min_rtt",
    "host_cpu_share",
    "tpu_duty_cycle",
    "gpu_duty_cycle",
    "container_memory_utilization",
    "gpu_xid_errors",
    "step_time",
    "gpu_throttle_reasons",
    "gpu_nvlink_active_links",
    "gpu_remapped_rows",
    "host_disk_read_throughput",
    "tpu_hbm_util",
)
BESIDE = st.dictionaries(
    st.sampled_from(
        ["links", "accelerator_labels", "codes", "reasons", "inactive_links", "failed", "sm_clock_mhz", "sizes"]
    ),
    st.none()
    | st.integers()
    | st.text(max_size=2)
    | st.lists(st.none() | st.integers(0, 99) | st.lists(st.integers(0, 99))),
    max_size=3,
)


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    curves = Curves()
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        points = draw(st.lists(st.tuples(SECONDS, st.lists(NUMBERS, max_size=2), BESIDE), max_size=8))
        states(name, f"host-{draw(st.integers(0, 2))}", *points, curves=curves)
    processes = [draw(any_process(index)) for index in range(draw(st.integers(0, 4)))]
    offsets = draw(st.dictionaries(st.sampled_from(["host-0", "host-1"]), st.integers(-(10**11), 10**11)))
    fields: dict[str, Any] = {"is_live": draw(st.booleans()), "now_ns": after(draw(SECONDS)), "metrics": curves}
    return facts(*([attempt(processes, clock_offsets_ns=offsets)] if processes else []), **fields)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(known=any_facts())
def test_no_rule_raises_whatever_the_facts_are(known: Facts) -> None:
    for note in observations(known):
        assert note
    for rule in all_rules():
        if rule.id not in MINE:
            continue
        found = rule.judge(known)
        if isinstance(found, Verdict):
            assert found.sentence
            assert found.rule == rule.id
            assert "  " not in found.sentence
            assert found.evidence
            json.dumps(found.to_json())
            if found.confidence is Confidence.POSSIBLE and found.verdict_class is not VerdictClass.HEALTHY:
                assert "possibly" in found.sentence or rule.id in ("B3", "K5"), found.sentence
        elif isinstance(found, NotChecked):
            assert found.why
        else:
            assert found is None


def test_every_rule_explains_itself() -> None:
    for rule in all_rules():
        if rule.id in MINE:
            assert rule.title
            assert rule.needs
            assert rule.thresholds
            assert rule.example
            assert all(threshold.source for threshold in rule.thresholds)
    assert isinstance(facts([process(0, step=1)]).processes[0].last_step, Fact)
