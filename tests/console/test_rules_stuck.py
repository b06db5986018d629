"""The rules on jobs that are stuck, that wait at their start, or that only compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cloud_tpu_diagnostics.reading import is_compiler
from ml_diagnostics_console._facts.facts import (
    CompileBatch,
    ConsoleText,
    Fact,
    Facts,
    HangVerdict,
    KernelState,
    MainStack,
    ProcessFacts,
    StepSummary,
    Times,
)
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.stack_groups import Answer, group_stacks, is_compiling, waiting_group
from ml_diagnostics_console.verdict import Blame, Confidence, NotChecked, Part, Verdict, VerdictClass

from tests.console.made_facts import after, attempt, facts, metrics, process, ref

OF_STUCK_JOBS = ("B3", "K1", "K1s", "K2", "K3", "K4", "K5", "K6")
MAIN = ("<module> (/job/train.py:120)", "_run_code (<frozen runpy>:88)")
STEP = ("train_step (/job/train.py:88)", *MAIN)
LOCK = ("acquire_lock (/job/cache.py:40)", "train_step (/job/train.py:80)", *MAIN)
INPUT = ("wait (/usr/lib/python3.11/threading.py:320)", "next_batch (/job/data.py:12)", *MAIN)
COMPILER = (
    "backend_compile_and_load (/site-packages/jax/_src/compiler.py:300)",
    "train_step (/job/train.py:88)",
    *MAIN,
)
INIT = ("initialize (/venv/site-packages/jax/_src/distributed.py:180)", "<module> (/job/train.py:10)")


def stack(
    frames: Sequence[str], *, seconds: float = 100, step: int | None = 30, phase: str = "step", **more: Any
) -> MainStack:
    known = {"unchanged_seconds": 0.0, "trigger": "snapshot", **more}
    return MainStack(
        after(seconds), tuple(frames), step, phase, ref=ref(f"stack {frames[0]}", seconds=seconds), **known
    )


def hang(
    *, seconds: float = 95, step: int | None = 30, phase: str = "step", stuck: float = 40.0, frame: str = ""
) -> HangVerdict:
    return HangVerdict(after(seconds), phase, step, stuck, 30.0, frame, ref("no progress", seconds=seconds + 0.5))


def kernel(state: str, channel: str = "", *, cpu: float = 0.0, seconds: float = 97) -> KernelState:
    entry = ref(f"the main thread is in state {state}", seconds=seconds + 0.1)
    return KernelState(after(seconds), (state, state), (channel, channel), cpu, cpu, 1.0, entry)


def stuck(index: int, frames: Sequence[str], *, phase: str = "step", step: int = 30, **fields: Any) -> ProcessFacts:
    known: dict[str, Any] = {
        "hangs": (hang(step=step, phase="step"),),
        "stacks": (stack(frames, phase=phase, step=step),),
        "last_event_ns": after(100),
    }
    return process(index, step=step, **{**known, **fields})


def verdicts(known: Facts) -> dict[str, Verdict]:
    found = {rule.id: rule.judge(known) for rule in all_rules() if rule.id in OF_STUCK_JOBS}
    return {name: verdict for name, verdict in found.items() if isinstance(verdict, Verdict)}


def only(known: Facts, rule: str) -> Verdict:
    found = verdicts(known)
    assert list(found) == [rule], {name: verdict.sentence for name, verdict in found.items()}
    verdict = found[rule]
    assert verdict.sentence
    assert verdict.evidence
    assert verdict.next
    assert all(entry.id and entry.shows for entry in verdict.evidence)
    return verdict


# --- Groups of stacks ------------------------------------------------------------------------------------


def test_stacks_are_equal_whatever_a_dump_shows_of_waits_and_paths() -> None:
    inner = "wait (/usr/lib/python3.11/threading.py:331)"
    one = stack(
        ("wait (/usr/lib/python3.11/threading.py:320)", "f (/venv/lib/python3.11/site-packages/lib/a.py:3)", *MAIN)
    )
    two = stack((inner, "wait (/usr/lib/python3.11/threading.py:7)", "A.f (/venv/x/site-packages/lib/a.py:3)", MAIN[0]))
    groups = group_stacks([Answer(process(0), one), Answer(process(1), two)])
    assert [len(group.answers) for group in groups] == [2]
    assert groups[0].text == "f (lib/a.py:3)"


def test_the_waiting_group_is_the_largest_and_never_known_by_names() -> None:
    answers = [Answer(process(index), stack(STEP)) for index in range(2)]
    answers.append(Answer(process(2), stack(("all_reduce (/job/own.py:3)", *MAIN))))
    groups = group_stacks(answers)
    waiting = waiting_group(groups)
    assert waiting is not None
    assert waiting.text == "train_step (train.py:88)"


@pytest.mark.parametrize(
    ("phases", "frames", "expected"),
    [
        (("sync", "step"), (STEP, LOCK), 0),
        (("step", "sync"), (STEP, LOCK), 1),
        (("step", "step"), (STEP, INPUT), 0),
        (("step", "step"), (STEP, LOCK), None),
        (("sync", "sync"), (STEP, LOCK), None),
    ],
)
def test_with_two_processes_the_mark_decides_then_input(
    phases: tuple[str, str], frames: tuple[tuple[str, ...], tuple[str, ...]], expected: int | None
) -> None:
    answers = [Answer(process(index), stack(frames[index], phase=phases[index])) for index in range(2)]
    waiting = waiting_group(group_stacks(answers))
    assert (None if waiting is None else waiting.processes[0].index) == expected


# --- K1 ---------------------------------------------------------------------------------------------------


def test_k1_names_the_one_that_is_elsewhere() -> None:
    verdict = only(facts([stuck(0, STEP), stuck(1, STEP), stuck(2, LOCK), stuck(3, STEP)]), "K1")
    assert verdict.sentence.startswith("host-2 holds all up in acquire_lock (cache.py:40) at step 30")
    assert "the 3 others wait in train_step (train.py:88)" in verdict.sentence
    assert verdict.hosts == ("host-2",)
    assert verdict.process_indices == (2,)
    assert verdict.confidence is Confidence.LIKELY
    assert verdict.verdict_class is VerdictClass.STUCK
    assert "tpu-stacks dump 4002 --native" in verdict.next[0].command
    assert verdict.cost is not None
    assert verdict.cost.seconds == pytest.approx(120 - 55)


def test_k1_of_two_processes_without_any_difference_names_both_and_shows_possibly() -> None:
    verdict = only(facts([stuck(0, STEP), stuck(1, LOCK)]), "K1")
    assert (
        "possibly one of host-0 in train_step (train.py:88) or host-1 in acquire_lock (cache.py:40)" in verdict.sentence
    )
    assert verdict.confidence is Confidence.POSSIBLE
    assert verdict.hosts == ("host-0", "host-1")


def test_k1_of_two_processes_trusts_the_mark_of_the_loop() -> None:
    verdict = only(facts([stuck(0, STEP, phase="sync"), stuck(1, LOCK)]), "K1")
    assert verdict.hosts == ("host-1",)
    assert "host-0 waits for it in train_step" in verdict.sentence


def test_k1_of_a_single_process_names_its_frame() -> None:
    verdict = only(facts([stuck(0, LOCK)]), "K1")
    assert verdict.sentence.startswith("host-0 is stuck in acquire_lock (cache.py:40) at step 30")


def test_k1_uses_the_frame_of_a_hang_where_there_are_no_stacks() -> None:
    hangs = [
        hang(frame="train_step (train.py:88)"),
        hang(frame="train_step (train.py:88)"),
        hang(frame="f (cache.py:4)"),
    ]
    processes = [process(index, step=30, hangs=(each,), last_event_ns=after(100)) for index, each in enumerate(hangs)]
    verdict = only(facts(processes), "K1")
    assert verdict.hosts == ("host-2",)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_culprit_is_found_with_clocks_a_minute_apart(sign: int) -> None:
    shift = sign * 60.0
    processes = [stuck(0, STEP), stuck(1, STEP)]
    late = stuck(2, LOCK, hangs=(hang(seconds=95 + shift),), stacks=(stack(LOCK, seconds=100 + shift),))
    for offsets in ({"host-0": 0, "host-1": 0, "host-2": round(shift * 1e9)}, {}):
        known = facts(attempt([*processes, late], clock_offsets_ns=offsets))
        assert only(known, "K1").hosts == ("host-2",)


def test_a_job_that_was_killed_after_a_hang_was_stuck() -> None:
    ended = [
        stuck(index, LOCK if index == 1 else STEP, end="signal: SIGKILL", ended=200 + index / 10) for index in range(3)
    ]
    verdict = only(facts(ended, is_live=False, now_ns=after(201)), "K1")
    assert verdict.hosts == ("host-1",)
    assert verdict.ended_ns is not None
    assert "until the end" in verdict.sentence
    assert verdict.next[0].command == "tpu-stacks show --job job"


@pytest.mark.parametrize("end", ["signal: SIGTERM", "signal: SIGKILL", "exception: KeyboardInterrupt: "])
def test_one_stuck_process_that_is_ended_by_hand_is_not_a_failure_that_explains_the_hang(end: str) -> None:
    processes = [
        stuck(0, STEP, end=end, ended=150),
        stuck(1, LOCK, end=end, ended=150),
        stuck(2, STEP, end=end, ended=151),
    ]
    assert only(facts(processes, is_live=False, now_ns=after(151)), "K1").hosts == ("host-1",)


def test_processes_that_wait_for_one_that_failed_are_not_stuck() -> None:
    failed = process(1, end="exception: ValueError: x", ended=50, left_block_ns=after(50))
    assert set(verdicts(facts([stuck(0, STEP), failed, stuck(2, STEP)]))) <= {"K5"}


def test_processes_that_wait_for_one_that_left_clean_are_not_stuck() -> None:
    left = process(1, end="clean", ended=50)
    assert verdicts(facts([stuck(0, STEP), left, stuck(2, STEP)])) == {}


def test_a_hang_that_ended_in_an_exception_is_a_failure() -> None:
    failed = stuck(1, LOCK, end="exception: TimeoutError: x", ended=150)
    assert set(verdicts(facts([stuck(0, STEP), failed, stuck(2, STEP)]))) <= {"K5"}


@pytest.mark.parametrize("evidence", ["step", "summary", "clean", "compilation"])
def test_a_hang_with_progress_after_it_has_passed(evidence: str) -> None:
    times = Times(1.0, 1.0, 1.0, 1.0)
    fields: dict[str, dict[str, Any]] = {
        "step": {"last_step": Fact(31, (), after(110))},
        "summary": {"summaries": (StepSummary(after(110), 28, 30, 3, times, None, None, None, None, None, ref()),)},
        "clean": {"end": "clean", "ended": 110.0},
        "compilation": {"compiles": (CompileBatch(after(110), 1, 40.0, {"step": 1}, ref()),)},
    }
    processes = [stuck(index, LOCK if index == 1 else STEP, **fields[evidence]) for index in range(3)]
    assert verdicts(facts(processes)) == {}


def test_a_summary_of_the_steps_before_a_hang_is_no_progress() -> None:
    times = Times(1.0, 1.0, 1.0, 1.0)
    before = (StepSummary(after(101), 20, 29, 10, times, None, None, None, None, None, ref()),)
    assert "K1" in verdicts(facts([stuck(0, STEP), stuck(1, LOCK, summaries=before), stuck(2, STEP)]))


def test_a_healthy_job_is_not_stuck() -> None:
    processes = [process(index, step=30, stacks=(stack(STEP),)) for index in range(4)]
    assert verdicts(facts(processes)) == {}


def test_equal_stacks_for_ten_minutes_are_a_hang_where_no_companion_watches() -> None:
    def still(index: int, frames: Sequence[str], seconds: float) -> ProcessFacts:
        stacks = (stack(frames, seconds=100), stack(frames, seconds=100 + seconds))
        return process(index, step=30, stacks=stacks, last_event_ns=after(800))

    frames = [STEP, STEP, LOCK]
    long = [still(index, each, 600) for index, each in enumerate(frames)]
    assert only(facts(long, now_ns=after(800)), "K1").hosts == ("host-2",)
    short = [still(index, each, 599) for index, each in enumerate(frames)]
    assert verdicts(facts(short, now_ns=after(800))) == {}
    saving = [replace(each, stacks=tuple(s._replace(phase="checkpoint") for s in each.stacks)) for each in long]
    assert verdicts(facts(saving, now_ns=after(800))) == {}


def test_without_a_companion_it_is_not_known_if_a_job_is_stuck() -> None:
    known = facts([process(0), process(1)])
    for rule in all_rules():
        if rule.id in ("K1", "K1s", "K2", "K3", "K4", "K6"):
            found = rule.judge(known)
            assert isinstance(found, NotChecked)
            assert "HangConfig(enabled=True)" in found.why


# --- K1s --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "channel", "text"),
    [
        ("T", "do_signal_stop", "host-1 is stopped by a signal"),
        ("D", "nfs_wait", "host-1 waits for a disk or a device in nfs_wait, and cannot be interrupted"),
    ],
)
def test_k1s_reports_the_state_that_the_kernel_shows(state: str, channel: str, text: str) -> None:
    silent = process(1, step=30, kernel_states=(kernel(state, channel),), last_event_ns=after(98))
    verdict = only(facts([stuck(0, STEP), silent, stuck(2, STEP)]), "K1s")
    assert verdict.sentence.startswith(text)
    assert verdict.confidence is Confidence.PROVEN
    assert verdict.blame is Blame.SYSTEM
    assert verdict.hosts == ("host-1",)


def steps_at(seconds: float) -> StepSummary:
    times = Times(10, 1, 1, 1)
    return StepSummary(after(seconds), 20, 29, 10, times, None, None, None, None, None, ref("steps", seconds=seconds))


@pytest.mark.parametrize("end", ["", "signal: SIGKILL"])
def test_k1s_reports_a_stopped_process_though_that_is_no_hang(end: str) -> None:
    fields: dict[str, Any] = {"end": end, "ended": 110} if end else {}
    stopped = process(0, step=30, kernel_states=(kernel("T"),), summaries=(steps_at(60),), **fields)
    verdict = only(facts([stopped]), "K1s")
    assert verdict.sentence.startswith("host-0 is stopped by a signal at step 30")
    assert verdict.confidence is Confidence.PROVEN
    assert verdict.since_ns == after(60)


@pytest.mark.parametrize("fields", [{"summaries": (steps_at(60), steps_at(105))}, {"end": "clean"}])
def test_a_process_that_went_on_after_it_was_stopped_is_not_stuck(fields: dict[str, Any]) -> None:
    assert verdicts(facts([process(0, step=30, kernel_states=(kernel("T"),), **fields)])) == {}


def test_k1s_reports_a_host_that_records_nothing() -> None:
    silent = process(1, step=30, stacks=(stack(STEP, seconds=20, step=9),), last_event_ns=after(50))
    verdict = only(facts([stuck(0, STEP), silent, stuck(2, STEP)]), "K1s")
    assert verdict.sentence.startswith("host-1 does not answer: its last event was")
    assert "the 2 others wait in train_step (train.py:88)" in verdict.sentence
    assert verdict.confidence is Confidence.LIKELY


def test_a_process_that_is_alive_but_was_not_asked_is_not_dead() -> None:
    loading = process(1, step=30, last_phase="data", last_event_ns=after(240))
    verdict = only(facts([stuck(0, STEP), loading, stuck(2, STEP)], now_ns=after(260)), "K1")
    assert verdict.hosts == ("host-1",)
    assert verdict.confidence is Confidence.POSSIBLE
    assert "possibly" in verdict.sentence


def test_a_process_that_a_debugger_has_stopped_is_healthy() -> None:
    debugged = process(1, step=30, kernel_states=(kernel("t", "ptrace_stop"),), last_event_ns=after(98))
    verdict = only(facts([stuck(0, STEP), debugged, stuck(2, STEP)]), "K1s")
    assert verdict.verdict_class is VerdictClass.HEALTHY
    assert verdict.blame is None


def test_k1s_names_native_code_that_does_not_answer() -> None:
    asleep = stuck(1, STEP, stacks=(), kernel_states=(kernel("S", "hrtimer_nanosleep"),))
    verdict = only(facts([stuck(0, STEP), asleep, stuck(2, STEP)]), "K1s")
    assert "asleep in native code in hrtimer_nanosleep" in verdict.sentence


def test_k1s_names_the_silent_host_if_the_others_gave_up_before_a_hang_was_seen() -> None:
    def gave_up(index: int) -> ProcessFacts:
        fault = stack(STEP, seconds=100, trigger="fault", headline="Fatal Python error: Aborted")
        return process(index, end="signal: SIGABRT", ended=100 + index, step=30, stacks=(fault,))

    silent = process(1, step=30, last_event_ns=after(10))
    silent = replace(silent, end=silent.end._replace(is_silent=True))
    verdict = only(facts([gave_up(0), silent, gave_up(2)], is_live=False, now_ns=after(110)), "K1s")
    assert verdict.hosts == ("host-1",)


# --- K2 ---------------------------------------------------------------------------------------------------


def test_k2_reports_that_all_wait_in_the_same_frame() -> None:
    verdict = only(facts([stuck(index, STEP) for index in range(4)]), "K2")
    assert verdict.sentence.startswith("all 4 processes wait in train_step (train.py:88) at step 30")
    assert "possibly a device or the network" in verdict.sentence
    assert verdict.confidence is Confidence.POSSIBLE
    assert verdict.blame is Blame.SYSTEM


def test_k2_names_the_device_of_which_the_queue_does_not_fall() -> None:
    curves = metrics(("tpu_hlo_queue_size", "host-2", [12.0] * 13), ("tpu_hlo_queue_size", "host-1", [3, 0] * 6 + [0]))
    verdict = only(facts([stuck(index, STEP) for index in range(4)], metrics=curves), "K2")
    assert verdict.hosts == ("host-2",)
    assert "host-2 executes nothing, with 12 programs in its queue" in verdict.sentence
    assert verdict.confidence is Confidence.LIKELY


def test_k2_reports_late_hosts_if_queues_are_empty_and_devices_idle() -> None:
    curves = metrics(
        ("tpu_hlo_queue_size", "host-0", [5.0] * 5 + [0.0] * 8),
        ("tpu_idle_duration", "host-0", [0.0] * 6 + [10.0 * number for number in range(7)]),
    )
    verdict = only(facts([stuck(index, STEP) for index in range(2)], metrics=curves), "K2")
    assert "the devices are idle for" in verdict.sentence
    assert verdict.blame is Blame.USER


@pytest.mark.parametrize("lines", ["2\n", "/job:jax_worker/replica:0/task:2\n"])
def test_k2_names_the_process_that_jax_has_no_heartbeats_of(lines: str) -> None:
    text = (
        f"UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n{lines}The tasks have crashed."
    )
    printed = ConsoleText(after(110), "err", "end", text, ref("the last lines", seconds=110))
    processes = [stuck(index, STEP, console=(printed,) if index == 0 else ()) for index in range(3)]
    verdict = only(facts(processes), "K2")
    assert "host-2 stopped sending heartbeats, so its network is cut, or its machine is dead" in verdict.sentence
    assert verdict.hosts == ("host-2",)
    assert verdict.confidence is Confidence.LIKELY
    assert verdict.evidence[0].shows == "JAX on host-0: process 2 stopped sending heartbeats"


def test_k2_names_a_missing_process() -> None:
    processes = [stuck(index, STEP, process_count=4) for index in range(3)]
    verdict = (
        only(facts(processes), "K2") if "B3" not in verdicts(facts(processes)) else verdicts(facts(processes))["K2"]
    )
    assert "process 3 recorded nothing" in verdict.sentence


# --- K3 ---------------------------------------------------------------------------------------------------


def test_k3_reports_that_all_wait_but_in_different_frames() -> None:
    other = ("evaluate (/job/train.py:120)", *MAIN)
    processes = [stuck(0, STEP, phase="sync"), stuck(1, other, phase="sync"), stuck(2, STEP, phase="sync")]
    verdict = only(facts(processes), "K3")
    assert verdict.sentence.startswith("host-1 waits in evaluate (train.py:120) at step 30")
    assert "different programs or shapes" in verdict.sentence
    assert verdict.hosts == ("host-1",)
    assert verdict.blame is Blame.USER


def test_k3_reports_that_all_wait_but_at_different_steps() -> None:
    processes = [stuck(index, STEP, phase="sync", step=29 if index == 1 else 30) for index in range(3)]
    verdict = only(facts(processes), "K3")
    assert verdict.hosts == ("host-1",)
    assert "at step 29" in verdict.sentence


def test_different_steps_without_a_mark_are_only_hosts_that_run_ahead() -> None:
    processes = [stuck(index, STEP, step=29 if index == 1 else 30) for index in range(3)]
    assert "K3" not in verdicts(facts(processes))


def test_k3_names_the_process_that_compiled_another_program() -> None:
    def compiled(index: int, count: int) -> ProcessFacts:
        return stuck(index, STEP, compiles=(CompileBatch(after(5), count, 1.0, {"train_step": count}, ref()),))

    found = verdicts(facts([compiled(0, 1), compiled(1, 2), compiled(2, 1)]))
    assert found["K3"].hosts == ("host-1",)
    assert found["K3"].confidence is Confidence.POSSIBLE
    assert "possibly host-1 runs another program" in found["K3"].sentence
    assert "K3" not in verdicts(facts([compiled(0, 1), compiled(1, 1), compiled(2, 1)]))


# --- K4 ---------------------------------------------------------------------------------------------------


def test_k4_names_the_process_that_reads_input_and_what_it_waits_for() -> None:
    reading = stuck(1, INPUT, kernel_states=(kernel("S", "anon_pipe_read"),))
    verdict = only(facts([stuck(0, STEP), reading, stuck(2, STEP)]), "K4")
    assert verdict.sentence.startswith(
        "input is stuck on host-1 in next_batch (data.py:12), which waits for a pipe (anon_pipe_read) at step 30"
    )
    assert verdict.blame is Blame.USER
    assert verdict.confidence is Confidence.LIKELY


def test_k4_shows_possibly_if_only_the_frame_shows_it() -> None:
    verdict = only(facts([stuck(0, STEP), stuck(1, INPUT), stuck(2, STEP)]), "K4")
    assert verdict.sentence.startswith("possibly input is stuck on host-1")
    assert verdict.confidence is Confidence.POSSIBLE


def test_k4_uses_idle_disks_and_networks_as_a_second_signal() -> None:
    for rate, confidence in ((10.0, Confidence.LIKELY), (1e8, Confidence.POSSIBLE)):
        curves = metrics(
            ("host_disk_read_throughput", "host-1", [1e8] * 6 + [rate] * 7),
            ("host_network_receive_throughput", "host-1", [1e8] * 6 + [20.0] * 7),
        )
        processes = [stuck(0, STEP), stuck(1, INPUT), stuck(2, STEP)]
        assert only(facts(processes, metrics=curves), "K4").confidence is confidence


def test_k4_reports_input_that_is_stuck_everywhere() -> None:
    verdict = only(facts([stuck(index, INPUT) for index in range(3)]), "K4")
    assert "input is stuck on all 3 processes in next_batch" in verdict.sentence


# --- K5 ---------------------------------------------------------------------------------------------------


def test_k5_shows_that_a_shutdown_barrier_is_not_a_hang() -> None:
    failed = process(1, step=30, end="exception: ValueError: batch 12 is empty", ended=50, left_block_ns=after(50))
    verdict = only(facts([stuck(0, STEP), failed, stuck(2, STEP)]), "K5")
    assert verdict.sentence.startswith("not a hang: host-1 raised ValueError: batch 12 is empty at step 30")
    assert "1 min 10 s ago" in verdict.sentence
    assert verdict.part is Part.CONTRIBUTING
    assert verdict.blame is Blame.USER


def test_k5_reports_what_the_barrier_has_cost_an_ended_job() -> None:
    failed = process(1, step=30, end="exception: ValueError: x", ended=50, left_block_ns=after(50))
    other = process(0, end="signal: SIGABRT", ended=351)
    known = facts(attempt([other, failed], ended_ns=after(351)), is_live=False, now_ns=after(351))
    verdict = only(known, "K5")
    assert verdict.cost is not None
    assert verdict.cost.seconds == pytest.approx(301)
    soon = process(0, end="signal: SIGABRT", ended=59)
    assert verdicts(facts(attempt([soon, failed], ended_ns=after(59)), is_live=False, now_ns=after(59))) == {}


# --- K6 ---------------------------------------------------------------------------------------------------


def test_k6_reports_a_long_compilation_as_healthy_whatever_the_phase_of_the_verdict() -> None:
    for phase in ("step", "compile", "init"):
        busy = (kernel("R", cpu=1.9),)
        processes = [
            stuck(
                index, COMPILER, hangs=(hang(phase=phase),), kernel_states=busy, stacks=(stack(COMPILER, phase=phase),)
            )
            for index in range(2)
        ]
        verdict = only(facts(processes), "K6")
        assert verdict.verdict_class is VerdictClass.HEALTHY
        assert verdict.blame is None
        assert verdict.sentence.startswith("all 2 processes compile for 1 min 5 s")


def test_a_hang_of_the_phase_compile_without_a_compiler_in_its_stack_is_a_hang() -> None:
    processes = [stuck(index, LOCK if index == 1 else STEP, hangs=(hang(phase="compile"),)) for index in range(3)]
    assert list(verdicts(facts(processes))) == ["K1"]


def test_a_compiler_that_uses_no_cpu_does_not_compile() -> None:
    processes = [stuck(0, STEP), stuck(1, COMPILER, kernel_states=(kernel("S", "futex_do_wait"),)), stuck(2, STEP)]
    assert list(verdicts(facts(processes))) == ["K1"]


@pytest.mark.parametrize("function", ["_backend_compile_and_load", "compile_or_get_cached", "_compile_and_load"])
def test_the_doctor_and_fast_fail_know_the_same_functions_of_the_compiler(function: str) -> None:
    assert is_compiler(function)
    frames = (f"{function} (/site-packages/jax/_src/compiler.py:300)", "main (train.py:3)")
    assert is_compiling(stack(frames))
    assert not is_compiler(f"re_{function}")


def test_k6_reports_a_compilation_before_any_hang_and_how_long_they_took() -> None:
    compiling = process(0, stacks=(stack(COMPILER, seconds=118, phase="init"),))
    earlier = process(0, end="signal: SIGKILL", compiles=(CompileBatch(after(9), 1, 362.0, {"step": 1}, ref("362 s")),))
    verdict = only(facts([earlier], [compiling]), "K6")
    assert "6 min 2 s" in verdict.sentence


# --- B3 ---------------------------------------------------------------------------------------------------


def test_b3_names_the_processes_that_never_arrived() -> None:
    waiting = [
        process(
            index,
            expected_processes=4,
            hangs=(hang(step=None, phase="init"),),
            stacks=(stack(INIT, step=None, phase="init"),),
        )
        for index in (0, 1, 3)
    ]
    verdict = only(facts(waiting), "B3")
    assert verdict.sentence.startswith(
        "process 2 never arrived: 3 of 4 processes wait at initialize (jax/_src/distributed.py:180)"
    )
    assert verdict.verdict_class is VerdictClass.BEFORE_START
    assert verdict.process_indices == (2,)
    assert verdict.blame is Blame.UNKNOWN


def test_b3_of_all_processes_shows_that_the_address_is_possibly_wrong() -> None:
    waiting = [
        process(
            index,
            expected_processes=2,
            hangs=(hang(step=None, phase="init"),),
            stacks=(stack(INIT, step=None, phase="init"),),
        )
        for index in range(2)
    ]
    verdict = only(facts(waiting), "B3")
    assert "possibly the address of the coordinator is wrong" in verdict.sentence
    assert verdict.confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(("addresses", "lost"), [("aab", 2), ("aba", 1), ("ab", 1), ("aa", None)])
def test_b3_names_the_process_that_waits_for_another_coordinator(addresses: str, lost: int | None) -> None:
    waiting = [
        process(
            index,
            expected_processes=len(addresses),
            coordinator=f"{address}:1234",
            hangs=(hang(step=None, phase="init"),),
            stacks=(stack(INIT, step=None, phase="init"),),
        )
        for index, address in enumerate(addresses)
    ]
    verdict = only(facts(waiting), "B3")
    if lost is None:
        assert "possibly the address" in verdict.sentence
        return
    assert verdict.sentence.startswith(
        f"host-{lost} waits for another coordinator than the others, b:1234 instead of a:1234"
    )
    assert verdict.hosts == (f"host-{lost}",)
    assert verdict.process_indices == (lost,)
    assert verdict.confidence is Confidence.LIKELY


def test_b3_reports_processes_that_have_recorded_nothing_for_long() -> None:
    processes = [process(index, expected_processes=4) for index in range(3)]
    assert "B3" in verdicts(facts(processes, now_ns=after(300)))
    assert "B3" not in verdicts(facts(processes, now_ns=after(299)))
    assert "B3" not in verdicts(facts([process(index, expected_processes=3) for index in range(3)], now_ns=after(900)))


def test_b3_needs_the_number_of_processes() -> None:
    found = {rule.id: rule.judge(facts([process(0)])) for rule in all_rules() if rule.id == "B3"}
    assert isinstance(found["B3"], NotChecked)
    assert "expected_processes" in found["B3"].why
