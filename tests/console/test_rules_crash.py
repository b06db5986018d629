"""The rules on crashes name the process that failed first, why, and what it cost, and guess only with "possibly"."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from google_cloud_mldiagnostics.reading import State
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.raised_exception import CodeLocation, RaisedException
from ml_diagnostics_common.story import Confidence, ProcessEnd
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import (
    ConsoleText,
    Facts,
    HangVerdict,
    MainStack,
    ProcessFacts,
    Signal,
    SigtermHandler,
    StepSummary,
    Times,
)
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.verdict import Blame, CostBasis, NotChecked, Part, Verdict, VerdictClass
from ml_goodput_measurement.partition import Bucket

from tests.console.made_clusters import cluster, ended, job, pod
from tests.console.made_facts import after, attempt, facts, metrics, process, ref
from tests.console.made_ledgers import disruption, report, summary

RULES = {rule.id: rule for rule in all_rules()}
MINE = ("B2", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "FF", "H0", "N1", "R1", "R2", "U0")
CRASHES = ("B2", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8")

GLOO = "XlaRuntimeError: INTERNAL: Gloo all-reduce failed: Connection reset by peer"
HEARTBEAT = "JaxRuntimeError: UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/task:1"


def judged(rule: str, known: Facts) -> Verdict | NotChecked | None:
    return RULES[rule].judge(known)


def verdict(rule: str, known: Facts) -> Verdict:
    found = judged(rule, known)
    assert isinstance(found, Verdict), found
    assert found.sentence
    json.dumps(found.to_json())
    return found


def only(known: Facts) -> Verdict:
    """Return the verdict of the only rule on crashes that has one."""
    found = [each for rule in CRASHES if isinstance(each := judged(rule, known), Verdict)]
    assert len(found) == 1, [each.rule for each in found]
    return found[0]


def survivor(index: int, *, exception: str = GLOO, seconds: float = 60.05, step: int | None = 30) -> ProcessFacts:
    return process(index, step=step, end=f"exception: {exception}", ended=seconds)


def with_survivors(culprit: ProcessFacts, count: int = 3) -> Facts:
    return facts([culprit, *(survivor(index + 1) for index in range(count))])


def raised(kind: str, message: str = "", *, relation: str = "", number: int | None = None, file: str = "") -> Any:
    return RaisedException(kind, message, relation, (CodeLocation("save", "/job/save.py", 12),), number, file)


def signal(seconds: float = 40.0, name: str = "SIGTERM", sender: int = 0) -> Signal:
    return Signal(after(seconds), name, sender, None, ref(f"{name} from {sender}", seconds=seconds))


def handler(kind: str, seconds: float, function: str = "") -> SigtermHandler:
    return SigtermHandler(after(seconds), kind, function, ref(f"handler {kind}", seconds=seconds))


def console(text: str, occasion: str = "end") -> ConsoleText:
    return ConsoleText(after(60), "err", occasion, text, ref("the last lines", seconds=60))


def memory(*percents: float, total: int = 2**39, name: str = "container_memory_utilization") -> Curves:
    """Return the memory of host-0, one sample each 10 s up to the end at 60 s."""
    curves = Curves()
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": "host-0", "pid": "4000"}, writer="host-0-4000-1")
    for number, percent in enumerate(percents):
        used = round(total * percent / 100)
        payload = {
            "values": [percent],
            "unit": "%",
            "hostname": "host-0",
            "process_index": "0",
            "used_bytes": used,
            "total_bytes": total,
        }
        time_ns = after(60 - 10 * (len(percents) - 1 - number))
        curves.add(name, LogEntry(time_ns, 100_000_000_000 + number, payload, context))
    return curves


# --- One story, one rule -------------------------------------------------------------------------------------

CAUSES = {
    "C1 exception": (process(0, step=30, end="exception: ValueError: batch 12 is empty"), "C1"),
    "C1 exit code": (process(0, step=30, end="exit: 3"), "C1"),
    "C2 counted": (process(0, step=30, end="out_of_memory"), "C2"),
    "C2 raised": (process(0, step=30, end="exception: MemoryError: "), "C2"),
    "C2 numpy": (
        process(0, step=30, end="exception: _ArrayMemoryError: Unable to allocate 4.00 TiB for an array with shape"),
        "C2",
    ),
    "C3 XLA": (
        process(0, step=30, end="exception: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1234 bytes."),
        "C3",
    ),
    "C3 torch": (process(0, step=30, end="exception: OutOfMemoryError: CUDA out of memory. Tried to allocate"), "C3"),
    "C4 SIGTERM": (process(0, step=30, end="signal: SIGTERM"), "C4"),
    "C5 SIGSEGV": (process(0, step=30, end="signal: SIGSEGV"), "C5"),
    "C5 by a shell": (process(0, step=30, end="exit: 139"), "C5"),
    "C7 SIGKILL": (process(0, step=30, end="signal: SIGKILL"), "C7"),
    "C7 by a shell": (process(0, step=30, end="exit: 137"), "C7"),
    "C7 unknown": (process(0, step=30, end="killed_or_os_exit"), "C7"),
    "C8 full": (process(0, step=30, end="exception: OSError: [Errno 28] No space left on device"), "C8"),
    "C8 numpy": (process(0, step=30, end="exception: OSError: 600000 requested and 262112 written"), "C8"),
    "C6 os._exit(0)": (process(0, step=30, end="exit: 0"), "C6"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_has_one_rule_which_names_the_culprit_not_the_survivors(name: str) -> None:
    culprit, rule = CAUSES[name]
    known = with_survivors(culprit)
    found = only(known)
    assert found.rule == rule
    assert found.hosts == ("host-0",)
    assert found.process_indices == (0,)
    assert found.step == 30
    assert found.since_ns == after(60)
    assert "host-0" in found.sentence
    assert "at step 30" in found.sentence
    assert found.evidence
    assert found.next
    assert judge(known).headline.rule == rule


@pytest.mark.parametrize("name", [name for name in CAUSES if "C6" not in name and "unknown" not in name])
def test_what_the_kernel_or_the_interpreter_reports_is_proven(name: str) -> None:
    assert only(with_survivors(CAUSES[name][0])).confidence is Confidence.PROVEN


@pytest.mark.parametrize("rule", [rule for rule in MINE if rule not in ("H0", "N1", "R2")])
def test_a_healthy_job_has_no_verdict(rule: str) -> None:
    running = facts([process(index, step=400 + index) for index in range(4)], is_live=True)
    ended = facts([process(index, step=400, end="clean") for index in range(4)])
    assert judged(rule, running) is None
    assert judged(rule, ended) is None
    assert judged(rule, facts()) is None


def test_the_others_failed_because_of_it_and_when() -> None:
    culprit = process(0, step=41_207, end="out_of_memory", ended=60.0)
    others = [survivor(1, seconds=70.0), survivor(2, seconds=164.0)]
    known = facts(attempt([culprit, *others], clock_uncertainty_ns=10_000_000))
    sentence = verdict("C2", known).sentence
    assert sentence.startswith("host host-0 ran out of host memory at step 41,207 (")
    assert sentence.endswith("; the 2 others failed 10.0 s to 1 min 44 s later because of it")


def test_survivors_that_abort_with_134_are_not_the_cause() -> None:
    known = facts(
        [process(0, step=30, end="signal: SIGKILL", ended=60), process(1, step=30, end="exit: 134", ended=160)]
    )
    assert only(known).hosts == ("host-0",)


# --- Several at once ----------------------------------------------------------------------------------------


def test_two_failures_that_clocks_cannot_order_are_both_named_and_not_proven() -> None:
    known = facts(
        [
            process(3, step=30, end="exception: ValueError: x", ended=60.0),
            process(9, step=30, end="exception: ValueError: x", ended=60.04),
            survivor(1),
            survivor(2),
        ]
    )
    found = only(known)
    assert found.hosts == ("host-3", "host-9")
    assert found.confidence is Confidence.LIKELY
    assert "hosts host-3 and host-9 failed first" in found.sentence
    assert "within 40.0 ms" in found.sentence
    assert "clocks do not show which was first" in found.sentence


def test_two_different_failures_at_once_have_one_verdict_that_names_both() -> None:
    known = facts(
        [
            process(0, step=30, end="exception: ValueError: x", ended=60.0),
            process(1, step=30, end="signal: SIGKILL", ended=60.2),
            survivor(2),
        ]
    )
    found = only(known)
    assert found.rule == "C1"
    assert found.confidence is Confidence.LIKELY
    assert "host-1 (SIGKILL) ended within 200 ms" in found.sentence


# --- C1, B2 -------------------------------------------------------------------------------------------------


def test_c1_quotes_the_exception_with_its_frame_and_blames_the_program() -> None:
    culprit = process(
        0,
        step=30,
        end="exception: ValueError: batch 12 is empty",
        exception=(raised("ValueError", "batch 12 is empty"),),
    )
    found = verdict("C1", with_survivors(culprit))
    assert ": ValueError: batch 12 is empty, in save (/job/save.py:12)" in found.sentence
    assert found.blame is Blame.USER
    assert found.next[0].command == "mldiagnostics logs run-1 --host host-0 --around 'step 30'"


def test_c1_does_not_blame_the_program_for_a_fault_of_a_device() -> None:
    culprit = process(0, step=30, end="exception: XlaRuntimeError: INTERNAL: Core halted unexpectedly")
    assert verdict("C1", with_survivors(culprit)).blame is Blame.UNKNOWN


def test_c1_takes_a_process_that_raised_and_now_waits_in_the_barrier_for_the_others() -> None:
    waiting = process(
        0,
        step=30,
        end=ProcessEnd(exception="ValueError: x", ended_ns=after(60), host="host-0"),
        left_block_ns=after(60),
        exception=(raised("ValueError", "x"),),
        state=State.ACTIVE,
        end_refs=(ref("left its block", seconds=60),),
    )
    known = facts([waiting, process(1, step=30), process(2, step=30)], is_live=True)
    found = only(known)
    assert found.rule == "C1"
    assert found.hosts == ("host-0",)
    assert found.sentence.endswith("; the 2 others wait for it")
    assert found.cost is not None
    assert found.cost.seconds == pytest.approx(60.0)


def test_k5_a_process_in_the_barrier_is_not_a_hang_though_only_its_companion_recorded_it() -> None:
    waiting = process(
        0,
        step=30,
        end=ProcessEnd(exception="ValueError: x", ended_ns=after(60), host="host-0"),
        left_block_ns=after(60),
        exception=(raised("ValueError", "x"),),
        end_fields={"kind": "left_block"},
        end_refs=(ref("left its block", seconds=60),),
    )
    known = facts([waiting, process(1, step=30, hangs=(hang(),))], is_live=True)
    found = judged("K5", known)
    assert isinstance(found, Verdict)
    assert found.sentence.startswith("not a hang: host-0 raised ValueError: x at step 30 (")
    assert "1 min 0 s ago" in found.sentence
    assert judge(known).headline.rule == "C1"


def test_an_exception_counts_though_the_process_was_killed_minutes_later() -> None:
    end = ProcessEnd("signal", after(60), exception="ValueError: x", signal="SIGKILL", host="host-0")
    found = only(with_survivors(process(0, step=30, end=end, left_block_ns=after(60))))
    assert found.rule == "C1"


def test_an_exception_before_sigterm_is_the_cause_and_not_the_request_to_stop() -> None:
    end = ProcessEnd("exception", after(60), exception="ValueError: x", was_asked=True, host="host-0")
    own = process(0, step=30, end=end, signals=(signal(90.0),), left_block_ns=after(60))
    assert only(with_survivors(own)).rule == "C1"
    asked = process(0, step=30, end=end, signals=(signal(50.0),), left_block_ns=after(60))
    assert only(with_survivors(asked)).rule == "C4"


def test_b2_the_same_exception_on_all_before_a_step_is_an_error_of_the_program() -> None:
    everyone = [
        process(index, end=f"exception: ModuleNotFoundError: No module named 'flax' (rank {index})", ended=3 + index)
        for index in range(4)
    ]
    found = only(facts(everyone))
    assert found.rule == "B2"
    assert found.verdict_class is VerdictClass.BEFORE_START
    assert found.confidence is Confidence.PROVEN
    assert found.hosts == ("host-0", "host-1", "host-2", "host-3")
    assert found.step is None
    assert "the same on all 4 processes: ModuleNotFoundError" in found.sentence


@pytest.mark.parametrize(
    "processes",
    [
        [process(0, end="exception: ValueError: x", ended=3), process(1)],
        [process(0, end="exception: ValueError: x", ended=3), survivor(1, step=None, seconds=3.1)],
        [process(0, step=7, end="exception: ValueError: x"), process(1, step=7, end="exception: ValueError: x")],
        [process(0, end="exception: ValueError: x"), process(1, end="exception: KeyError: y")],
        [process(0, end="exception: ValueError: x", last_phase="step")],
        [process(0, end="exception: ValueError: x", ended=7_200)],
    ],
    ids=["one of two", "one, and a survivor", "after steps", "different", "in a step", "hours without a report"],
)
def test_b2_is_not_for_failures_of_one_host_or_after_steps(processes: list[ProcessFacts]) -> None:
    assert only(facts(processes)).rule == "C1"


# --- C2 -----------------------------------------------------------------------------------------------------


def test_c2_shows_how_fast_the_memory_grew_and_the_limit() -> None:
    known = facts([process(0, step=30, end="out_of_memory")], metrics=memory(70, 75, 80, 85, 90, 95, 100))
    found = verdict("C2", known)
    # 5 % of 512 GiB in 10 s.
    assert "it grew by 164,927 MB/min, its limit is 512 GiB" in found.sentence
    assert any(
        "container_memory 70 -> 100 % in 1 min 0 s (+164,927 MB/min); limit 512 GiB" in each.shows
        for each in found.evidence
    )
    assert found.blame is Blame.USER
    assert found.next[0].command == "mldiagnostics metrics run-1 container_memory_utilization --plot"


def test_c2_a_kill_at_full_memory_is_likely_though_the_kernel_counted_none() -> None:
    known = facts([process(0, step=30, end="signal: SIGKILL"), survivor(1)], metrics=memory(80, 88, 96))
    found = only(known)
    assert found.rule == "C2"
    assert found.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "curves",
    [memory(80, 88, 94.9), memory(96, *([10] * 12)), memory(80, 99, name="disk_utilization")],
    ids=["just below", "long before", "another metric"],
)
def test_c2_a_kill_without_full_memory_is_of_another_rule(curves: Curves) -> None:
    assert only(facts([process(0, step=30, end="signal: SIGKILL"), survivor(1)], metrics=curves)).rule == "C7"


def test_c2_an_old_sample_of_full_memory_does_not_count() -> None:
    killed = process(0, step=30, end="signal: SIGKILL", ended=121)
    assert only(facts([killed, survivor(1, seconds=121.1)], metrics=memory(80, 90, 99))).rule == "C7"


def test_c2_a_kill_without_metrics_is_not_checked_for_memory() -> None:
    found = judged("C2", with_survivors(process(0, step=30, end="signal: SIGKILL")))
    assert isinstance(found, NotChecked)
    assert "machinelearning_run" in found.why


def test_c2_names_one_request_larger_than_the_memory() -> None:
    culprit = process(0, step=30, end="exception: MemoryError: ")
    found = verdict("C2", facts([culprit], metrics=memory(20, 20, 21)))
    assert "only 21 % were in use: one request was too large" in found.sentence


# --- C3 -----------------------------------------------------------------------------------------------------


def test_c3_distinguishes_compilation_and_steps() -> None:
    compiling = (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm"
    )
    found = verdict("C3", facts([process(0, end=f"exception: {compiling}")]))
    assert "ran out of device memory while it compiled a program" in found.sentence
    in_step = process(
        0, step=30, end="exception: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"
    )
    curves = metrics(("vram_utilization", "host-0", [50, 97.4]))
    found = verdict("C3", facts([in_step], metrics=curves))
    assert found.next[1].command == "mldiagnostics metrics run-1 vram_utilization --plot"
    assert "compiled" not in found.sentence
    assert "97 % of a chip's memory were in use before" in found.sentence
    assert found.next[0].command == "mldiagnostics profile run-1"


@pytest.mark.parametrize(
    "text",
    [
        "_InactiveRpcError: RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)",
        "ResourceExhausted: 429 RESOURCE_EXHAUSTED: Quota exceeded for allocations per minute",
    ],
)
def test_c3_is_not_for_limits_of_services(text: str) -> None:
    assert only(with_survivors(process(0, step=3, end=f"exception: {text}"))).rule == "C1"


def test_c3_memory_of_a_cpu_device_is_that_of_the_host() -> None:
    text = "exception: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4000000000000 bytes."
    assert only(with_survivors(process(0, step=3, end=text, hardware={"accelerator_type": "cpu"}))).rule == "C2"


# --- C4, C9 -------------------------------------------------------------------------------------------------


def asked(end: ProcessEnd, **fields: Any) -> ProcessFacts:
    return process(0, step=30, end=end._replace(ended_ns=after(60), host="host-0", was_asked=True), **fields)


def test_c4_killed_after_the_grace_period() -> None:
    culprit = asked(ProcessEnd("signal", signal="SIGKILL"), signals=(signal(30.0),))
    found = only(with_survivors(culprit))
    assert found.rule == "C4"
    assert found.blame is Blame.PREEMPTION
    assert (
        "at 04:40:30 UTC, from outside of its container, and did not end in 30.0 s: it was killed at step 30 ("
        in found.sentence
    )
    assert found.evidence[0].shows == "SIGTERM from 0"


def test_c4_a_job_that_ran_on_did_not_stop() -> None:
    culprit = asked(ProcessEnd("clean", exit_code=0), signals=(signal(20.0),), sigterm_handlers=(handler("c", 1.0),))
    found = only(facts([culprit, process(1, step=30, end="clean")]))
    assert found.rule == "C4"
    assert "did not stop: it ran on for 40.0 s to its end" in found.sentence


def test_c4_is_seen_in_what_jax_writes() -> None:
    text = "E1127 preemption_notifier.cc:89] SIGTERM caught at 2026-11-27\nmore"
    culprit = asked(ProcessEnd("signal", signal="SIGKILL"), console=(console(text),))
    found = only(with_survivors(culprit))
    assert found.rule == "C4"
    assert "preemption_notifier" in found.evidence[0].shows


def test_c4_a_handler_that_saves_and_ends_is_nothing_wrong() -> None:
    handled = [
        asked(ProcessEnd("clean", exit_code=0), signals=(signal(50.0),), end_fields={"sigterm_handler": "python"}),
        process(1, step=30, end="clean"),
    ]
    known = facts(handled)
    assert judged("C4", known) is None
    assert "asked to stop" in verdict("H0", known).sentence
    assert judge(known).exit_code == 0
    unsaved = facts(handled, ledger=report([summary(1, 0, 60, last_checkpoint_step=10)]))
    assert "the last step is 30, and the last checkpoint is of step 10" in verdict("C4", unsaved).sentence
    assert judged("H0", unsaved) is None


def test_c4_a_save_by_jax_is_nothing_wrong() -> None:
    known = facts(
        [asked(ProcessEnd("clean", exit_code=0), signals=(signal(50.0),), sigterm_handlers=(handler("c", 1.0),))],
        ledger=report([summary(1, 0, 60, last_checkpoint_step=30)]),
    )
    assert judged("C4", known) is None
    assert judged("C9", known) is None


def test_c4_a_whole_job_that_was_asked_has_no_culprit() -> None:
    known = facts([process(index, step=30, end="signal: SIGTERM", ended=60 + index / 100) for index in range(4)])
    found = only(known)
    assert found.rule == "C4"
    assert found.sentence.startswith("all 4 processes were asked to stop by SIGTERM and ended by it")
    killed = facts([process(index, step=30, end="signal: SIGKILL", ended=60 + index / 100) for index in range(4)])
    assert only(killed).rule == "C7"


def test_c4_shows_that_a_running_job_was_asked() -> None:
    known = facts([process(0, step=30, signals=(signal(80.0),)), process(1, step=30)], is_live=True)
    found = verdict("C4", known)
    assert "40.0 s ago, and has not ended since" in found.sentence
    soon = facts([process(0, step=30, signals=(signal(110.0),)), process(1, step=30)], is_live=True)
    assert "may still save" in verdict("C4", soon).sentence


def test_c4_is_not_checked_without_a_console() -> None:
    found = judged("C4", with_survivors(process(0, step=30, end="out_of_memory")))
    assert isinstance(found, NotChecked)
    assert "run --" in found.why
    seen = with_survivors(process(0, step=30, end="out_of_memory", console=(console("step 30"),)))
    assert judged("C4", seen) is None


def test_c9_a_handler_after_jax_disables_its_save() -> None:
    handlers = (handler("c", 5.0), handler("python", 9.0, "on_term"))
    killed = ProcessEnd("signal", signal="SIGKILL")
    found = verdict("C9", with_survivors(asked(killed, signals=(signal(30.0),), sigterm_handlers=handlers)))
    assert "installed a handler of SIGTERM (on_term)" in found.sentence
    assert found.part is Part.CONTRIBUTING
    assert "jax.distributed.initialize()" in found.next[0].command
    before = (handler("python", 2.0, "on_term"), handler("c", 5.0))
    assert judged("C9", with_survivors(asked(killed, signals=(signal(30.0),), sigterm_handlers=before))) is None
    assert judged("C9", with_survivors(process(0, step=30, end="signal: SIGKILL", sigterm_handlers=handlers))) is None
    assert isinstance(judged("C9", with_survivors(asked(killed, signals=(signal(30.0),)))), NotChecked)


# --- C5 -----------------------------------------------------------------------------------------------------


def test_c5_names_the_library_and_the_frame() -> None:
    frame = "execute (/venv/lib/python3.11/site-packages/jaxlib/xla_client.py:40)"
    stack = MainStack(after(59), (frame, "main (/job/train.py:9)"), 30, "step", 0.0, "fault", ref("stack", seconds=59))
    found = verdict("C5", with_survivors(process(0, step=30, end="signal: SIGSEGV", stacks=(stack,))))
    assert "crashed in native code of jaxlib" in found.sentence
    assert f"segmentation fault (SIGSEGV), main thread in {frame}" in found.sentence
    assert found.next[0].command == "tpu-stacks show --job job"


STARTED = "[Gloo] Rank 0 is connected to 2 peer ranks. Expected number of connected peer ranks is : 2"
JAX_ABORTS = (
    "F1127 19:17:35.1 client.h:77] Terminating process because the JAX distributed service detected fatal errors.\n"
    "*** Check failure stack trace: ***"
)


def test_c5_an_abort_among_survivors_is_possibly_the_cause_if_it_alone_reports_no_loss() -> None:
    aborted = process(0, step=30, end="signal: SIGABRT")
    found = only(facts([aborted, survivor(1), survivor(2)]))
    assert (found.rule, found.hosts, found.confidence) == ("C5", ("host-0",), Confidence.POSSIBLE)
    assert "possibly" in found.sentence


def test_c5_an_abort_is_likely_the_cause_if_its_console_shows_no_loss() -> None:
    aborted = process(0, step=30, end="signal: SIGABRT", console=(console(STARTED),))
    of_jax = process(1, step=30, end="signal: SIGABRT", console=(console(f"{STARTED}\n{JAX_ABORTS}"),))
    found = only(facts([aborted, of_jax, survivor(2), survivor(3)]))
    assert (found.rule, found.hosts, found.confidence) == ("C5", ("host-0",), Confidence.LIKELY)
    wrote = process(0, step=30, end="signal: SIGABRT", console=(console("ok\nF1127 hlo.cc:9] Check failed: a == b"),))
    found = only(facts([wrote, survivor(1), survivor(2)]))
    assert found.confidence is Confidence.LIKELY
    assert "Check failed: a == b" in found.sentence


def test_c5_aborts_of_all_survivors_are_not_a_native_crash() -> None:
    known = facts([process(index, step=30, end="signal: SIGABRT", ended=160 + index) for index in range(3)])
    assert judged("C5", known) is None
    assert verdict("U0", known).confidence is Confidence.POSSIBLE


# --- C6 -----------------------------------------------------------------------------------------------------


def hang(seconds: float = 100.0, *, phase: str = "step", step: int = 30) -> HangVerdict:
    return HangVerdict(after(seconds), phase, step, 30.0, 25.0, "", ref("no progress", seconds=seconds))


def test_c6_a_process_that_leaves_while_others_wait_in_a_step() -> None:
    left = process(0, step=29, end="clean", ended=60)
    waiting = [process(index, step=30, hangs=(hang(),)) for index in (1, 2)]
    found = only(facts([left, *waiting], is_live=True))
    assert found.rule == "C6"
    assert found.confidence is Confidence.LIKELY
    assert "though 2 others went on" in found.sentence


def test_c6_no_process_left_early_while_the_job_is_being_stopped() -> None:
    ended = process(0, step=29, end="clean", ended=60)
    asked = [process(index, step=30, hangs=(hang(),), signals=(signal(55.0),)) for index in (1, 2)]
    assert only(facts([ended, *asked], is_live=True)).rule == "C4"


def test_c6_a_process_that_left_well_has_left_though_jax_aborts_it_later() -> None:
    end = ProcessEnd("signal", after(71), signal="SIGABRT", host="host-0")
    left = process(0, step=29, end=end, left_block_ns=after(60), end_fields={"exit_code": 0, "how": "signal"})
    others = [process(index, step=30, end="signal: SIGABRT", ended=71.1, hangs=(hang(),)) for index in (1, 2)]
    found = only(facts([left, *others]))
    assert (found.rule, found.hosts) == ("C6", ("host-0",))
    assert found.since_ns == after(60)


def test_c1_an_exit_code_counts_though_jax_aborts_the_process_later() -> None:
    end = ProcessEnd("signal", after(71), signal="SIGABRT", exception="_NotedExit: 3", host="host-0")
    fields = {"exit_code": 3, "how": "signal"}
    noted = (raised("_NotedExit", "3"),)
    left = process(0, step=29, end=end, left_block_ns=after(60), end_fields=fields, exception=noted)
    found = only(facts([left, process(1, step=30, end="signal: SIGABRT", ended=71.1)]))
    assert (found.rule, found.hosts, found.confidence) == ("C1", ("host-0",), Confidence.PROVEN)
    assert ": it exited with code 3; the other process failed" in found.sentence
    assert "_NotedExit" not in found.sentence


def test_c1_the_same_error_on_all_is_of_none_of_them() -> None:
    everyone = [process(index, step=7, end="exception: ValueError: x", ended=60 + 5 * index) for index in range(3)]
    found = only(facts(everyone))
    assert found.sentence.startswith("all 3 processes failed by the same error at step 7 (")
    assert found.hosts == ("host-0", "host-1", "host-2")
    assert found.confidence is Confidence.PROVEN


def test_c6_a_handler_of_sigterm_may_have_ended_it() -> None:
    left = process(0, step=29, end="clean", sigterm_handlers=(handler("c", 1.0), handler("python", 2.0, "on_term")))
    found = only(facts([left, survivor(1), survivor(2)]))
    assert "possibly it was asked to stop, and its handler of SIGTERM (on_term) ended it" in found.sentence


def test_c6_with_one_signal_shows_possibly_and_with_planned_steps_is_likely() -> None:
    others = [survivor(1), survivor(2)]
    found = only(facts([process(0, step=30, end="clean"), *others]))
    assert (found.confidence, "possibly left" in found.sentence) == (Confidence.POSSIBLE, True)
    in_step = [replace(each, last_phase="sync") for each in others]
    assert only(facts([process(0, step=30, end="clean"), *in_step])).confidence is Confidence.LIKELY
    found = only(facts([process(0, step=30, end="clean", planned_steps=100), *others]))
    assert found.confidence is Confidence.LIKELY
    assert "100 steps were planned" in found.sentence


@pytest.mark.parametrize(
    "processes",
    [
        [process(0, step=30, end="clean"), process(1, step=30, end="clean"), process(2, step=30, hangs=(hang(),))],
        [process(0, step=30, end="clean"), process(1, step=30, hangs=(hang(phase="checkpoint"),))],
        [process(0, step=30, end="clean", ended=110), process(1, step=30, hangs=(hang(80),))],
        [process(0, step=30, end="clean"), process(1, step=30)],
    ],
    ids=["most have left", "saves", "hung before", "goes on"],
)
def test_c6_is_not_for_processes_that_end_at_their_own_pace(processes: list[ProcessFacts]) -> None:
    assert judged("C6", facts(processes, is_live=True)) is None


# --- C7, C8 -------------------------------------------------------------------------------------------------


def test_c7_without_kubernetes_the_sender_is_unknown() -> None:
    found = verdict("C7", with_survivors(process(0, step=30, end="signal: SIGKILL")))
    assert "was killed at step 30" in found.sentence
    assert "the sender is not recorded" in found.sentence
    assert found.blame is Blame.UNKNOWN
    unsure = verdict("C7", with_survivors(process(0, step=30, end="killed_or_os_exit")))
    assert "was killed, or called os._exit," in unsure.sentence
    assert unsure.confidence is Confidence.LIKELY


@pytest.mark.parametrize("survivors", [0, 2])
def test_c7_a_process_that_is_gone_without_a_record_was_killed_or_called_os_exit(survivors: int) -> None:
    gone = process(0, step=30, end=ProcessEnd(is_silent=True), state=State.FAILED, last_event_ns=after(59))
    known = with_survivors(gone, survivors)
    found = only(known)
    assert (found.rule, found.hosts, found.confidence) == ("C7", ("host-0",), Confidence.LIKELY)
    assert "was killed, or called os._exit, at step 30: its process is gone, and recorded no end" in found.sentence
    assert any("diagnose" in each.command for each in found.next)
    assert judge(known).headline.rule == "C7"


def test_c1_takes_an_exit_code_from_the_record_of_the_run() -> None:
    culprit = process(0, step=30, end=ProcessEnd("exit", after(60), host="host-0"), end_message="sys.exit(3)")
    assert ": it exited with code 3" in verdict("C1", facts([culprit])).sentence


def test_c7_and_c5_are_not_checked_where_no_end_was_recorded() -> None:
    silent = process(0, step=30, end=ProcessEnd(is_silent=True), state=State.STALE)
    known = facts([silent, survivor(1), survivor(2)])
    for rule in ("C5", "C7"):
        found = judged(rule, known)
        assert isinstance(found, NotChecked)
        assert "diagnose" in found.why


def killed_pod(reason: str, message: str, code: str = "Error", **fields: Any) -> Facts:
    """Return a job with a pod that Kubernetes ended."""
    status = {"phase": "Failed", "reason": reason, "message": message, "containerStatuses": [ended(code, 137)]}
    kubernetes = cluster(job(), pod(0, status=status), pod(1), is_whole=False)
    known = {"step": 30, "end": "signal: SIGKILL", "ended": 60, **fields}
    return facts([process(0, host="train-0", **known), survivor(1)], kubernetes=kubernetes)


def test_c7_kubernetes_knows_who_killed() -> None:
    known = killed_pod("Evicted", "The node was low on resource: memory.")
    found = only(known)
    assert found.rule == "C7"
    assert "low on resource: memory" in found.sentence
    assert found.blame is Blame.SYSTEM
    assert found.confidence is Confidence.PROVEN
    assert any(each.source == "kubernetes" for each in found.evidence)
    assert found.next[0].command.startswith("kubectl describe pod train-0-x7k0p --namespace ml")


def test_c7_kubernetes_reports_an_end_that_the_process_could_not_record() -> None:
    known = killed_pod("Evicted", "The node was low on resource: memory.", end=ProcessEnd(is_silent=True))
    found = only(known)
    assert (found.rule, found.hosts, found.confidence) == ("C7", ("train-0",), Confidence.PROVEN)
    assert "possibly" not in found.sentence


def test_c2_kubernetes_knows_that_a_container_was_out_of_memory() -> None:
    found = only(killed_pod("", "", "OOMKilled"))
    assert (found.rule, found.confidence) == ("C2", Confidence.PROVEN)
    silent = only(killed_pod("", "", "OOMKilled", end=ProcessEnd(is_silent=True)))
    assert (silent.rule, silent.confidence, silent.hosts) == ("C2", Confidence.PROVEN, ("train-0",))
    assert any(each.source == "kubernetes" for each in found.evidence)


@pytest.mark.parametrize(
    ("exception", "blame", "what"),
    [
        (
            raised("OSError", "[Errno 28] No space left on device", number=28, file="/ckpt/400/state"),
            Blame.USER,
            "ran out of disk space",
        ),
        (
            raised("OSError", "[Errno 122] Disk quota exceeded", number=122, file="/ckpt/x"),
            Blame.USER,
            "used up its disk quota",
        ),
        (
            raised("OSError", "[Errno 5] Input/output error", number=5, file="/ckpt/x"),
            Blame.SYSTEM,
            "could not read or write its disk",
        ),
        (
            raised("PermissionError", "[Errno 13] Permission denied", number=13, file="/ckpt/x"),
            Blame.USER,
            "was refused access",
        ),
    ],
)
def test_c8_names_the_path(exception: RaisedException, blame: Blame, what: str) -> None:
    culprit = process(0, step=400, end=f"exception: {exception.title}", exception=(exception,))
    found = only(with_survivors(culprit))
    assert found.rule == "C8"
    assert what in found.sentence
    assert f"at {exception.file}" in found.sentence
    assert found.blame is blame
    assert "mldiagnostics ssh run-1 host-0 -- " in found.next[0].command


def test_c8_shows_how_much_was_free() -> None:
    exception = raised("OSError", "600000 requested and 262112 written")
    system = {"path": "/ckpt", "free_bytes": 0, "total_bytes": 10**12, "free_inodes": 5}
    culprit = process(0, step=4, end=f"exception: {exception.title}", exception=(exception,), file_systems=(system,))
    found = only(with_survivors(culprit))
    assert "at /ckpt" in found.sentence
    assert "0 B of 1.00 TB were free" in found.sentence
    system |= {"free_bytes": 10**11, "free_inodes": 0}
    culprit = process(0, step=4, end=f"exception: {exception.title}", exception=(exception,), file_systems=(system,))
    assert "all inodes are used" in only(with_survivors(culprit)).sentence


def test_c8_does_not_name_a_disk_that_has_space() -> None:
    exception = raised("OSError", "[Errno 28] No space left on device", number=28)
    system = {"path": "/job", "free_bytes": 79 * 10**9, "total_bytes": 10**12, "free_inodes": 5}
    culprit = process(0, step=4, end=f"exception: {exception.title}", exception=(exception,), file_systems=(system,))
    found = only(with_survivors(culprit))
    assert ", at " not in found.sentence
    assert "it names no file, and is not about /job (79.0 GB free)" in found.sentence
    assert found.next[0].command == "mldiagnostics ssh run-1 host-0 -- df -h"


@pytest.mark.parametrize(
    "exceptions",
    [
        [raised("FileNotFoundError", "[Errno 2] No such file", number=2, file="/data/x")],
        [raised("PermissionError", "[Errno 13] Permission denied", number=13)],
        [raised("ValueError", "x"), raised("OSError", "disk", relation="while handling", number=28)],
    ],
    ids=["missing", "a socket", "an error that was being handled"],
)
def test_c8_is_not_for_other_errors_of_files(exceptions: list[RaisedException]) -> None:
    culprit = process(0, step=3, end=f"exception: {exceptions[0].title}", exception=tuple(exceptions))
    assert only(with_survivors(culprit)).rule == "C1"


def test_c8_the_cause_of_an_exception_counts() -> None:
    chain = (
        raised("RuntimeError", "save failed"),
        raised("OSError", "full", relation="caused by", number=28, file="/c"),
    )
    assert (
        only(with_survivors(process(0, step=3, end="exception: RuntimeError: save failed", exception=chain))).rule
        == "C8"
    )


# --- FF -----------------------------------------------------------------------------------------------------


def fallout(index: int, cause: dict[str, Any] | None = None, seconds: float = 61.1) -> ProcessFacts:
    fields = {"ended_by": "fast_fail", "first_cause": cause or {}, "is_first_cause": False}
    return process(index, step=30, end="exit: 76", ended=seconds, end_fields=fields)


def test_fast_fail_the_first_cause_is_named_and_not_exit_code_76() -> None:
    # Clocks may show the others earlier: the exit code is not their own.
    known = facts([fallout(0, seconds=10), process(1, step=30, end="signal: SIGSEGV"), fallout(2), fallout(3)])
    found = only(known)
    assert (found.rule, found.hosts) == ("C5", ("host-1",))
    assert "fast-fail ended the 3 others" in found.sentence
    assert judge(known).headline.rule == "C5"
    assert verdict("FF", known).part is Part.TEARDOWN


def test_fast_fail_knows_a_first_cause_that_recorded_nothing() -> None:
    cause = {
        "hosts": ["host-9"],
        "process_indices": [9],
        "how": "signal",
        "signal": "SIGKILL",
        "step": 30,
        "ended_ns": after(60),
        "confidence": "proven",
    }
    known = facts([fallout(0, cause), fallout(1, cause)])
    found = verdict("FF", known)
    assert found.sentence.startswith("host host-9 failed first at step 30 (")
    assert "SIGKILL" in found.sentence
    assert found.confidence is Confidence.PROVEN
    assert judge(known).headline.rule == "FF"


# --- Stuck before ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_what_ends_a_stuck_job_did_not_cause_it(how: str) -> None:
    def known(age: float) -> Facts:
        ended = process(0, step=30, end=f"signal: {how}", ended=140, end_fields={"progress_age_seconds": age})
        return facts([ended, process(1, step=30, end="exit: 134", ended=139, hangs=(hang(),))])

    assert [rule for rule in CRASHES if isinstance(judged(rule, known(40.0)), Verdict)] == []
    assert judged("H0", known(40.0)) is None
    # The timeout of that hang is 25 s: a step had ended since.
    assert only(known(24.9)).hosts == ("host-0",)


def test_a_failure_is_the_cause_though_clocks_show_the_kill_of_a_waiting_process_before() -> None:
    waited = {"progress_age_seconds": 40.0}
    killed = process(1, step=30, end="signal: SIGKILL", ended=40, hangs=(hang(),), end_fields=waited)
    end = ProcessEnd("signal", after(70), signal="SIGKILL", exception="_NotedExit: 3", host="host-0")
    left = process(0, step=30, end=end, left_block_ns=after(60), end_fields={"exit_code": 3, **waited})
    found = only(facts([left, killed]))
    assert (found.rule, found.hosts) == ("C1", ("host-0",))


@pytest.mark.parametrize(("age", "first"), [(2.0, "host-0"), (1.9, "host-1")])
def test_a_process_that_had_waited_for_ten_steps_was_not_the_first(age: float, first: str) -> None:
    wall = Times(10.0, 0.1, 0.2, 1.5)
    steps = StepSummary(after(50), 0, 30, 30, wall, None, None, None, None, None, ref("steps"))
    fields = {"progress_age_seconds": age}
    killed = process(
        1, step=30, end="signal: SIGKILL", ended=40, last_phase="sync", end_fields=fields, summaries=(steps,)
    )
    failed = process(0, step=30, end="exception: ValueError: x", ended=60)
    assert only(facts([failed, killed])).hosts == (first,)


def test_a_stuck_job_that_was_ended_as_a_whole_is_recognised_without_clocks_and_hang_verdicts() -> None:
    wall = Times(10.0, 0.1, 0.2, 0.5)
    steps = StepSummary(after(50), 0, 30, 30, wall, None, None, None, None, None, ref("steps"))

    def known(age: float, phase: str = "step") -> Facts:
        return facts(
            [
                process(
                    index,
                    step=30,
                    end="signal: SIGKILL",
                    ended=100 + 60 * index,
                    summaries=(steps,),
                    last_phase=phase,
                    end_fields={"progress_age_seconds": age},
                )
                for index in range(3)
            ]
        )

    assert judged("C7", known(10.0)) is None
    assert "ended from outside while the job made no progress" in verdict("U0", known(10.0)).sentence
    assert verdict("C7", known(9.9)).hosts == ("host-0",)
    assert verdict("C7", known(10.0, "checkpoint")).hosts == ("host-0",)


# --- Costs --------------------------------------------------------------------------------------------------


def test_a_failure_costs_what_the_ledger_shows_of_its_disruption() -> None:
    ledger = report([summary(1, 0, 60, last_checkpoint_step=20, steps_lost=10), summary(2, 180, 1000)], [disruption()])
    known = facts([process(0, step=30, end="signal: SIGKILL")], [process(0, step=400)], ledger=ledger, judged=0)
    cost = verdict("C7", known).cost
    assert cost is not None
    assert (cost.seconds, cost.basis) == (150.0, CostBasis.LEDGER)
    assert cost.shows == "with 10 steps since the last checkpoint (step 20) to repeat"


def test_before_the_job_resumes_a_failure_costs_the_steps_since_the_last_checkpoint() -> None:
    known = facts(
        [process(0, step=30, end="signal: SIGKILL"), survivor(1, seconds=164.0)],
        ledger=report([summary(1, 0, 60, last_checkpoint_step=20)]),
        now_ns=after(164),
    )
    found = verdict("C7", known)
    assert found.cost is not None
    assert (found.cost.seconds, found.cost.basis) == (pytest.approx(124.0), CostBasis.LOWER_BOUND)
    assert found.cost.shows == "since the last checkpoint (step 20)"
    assert any(
        "10 steps since the last checkpoint (step 20): 20.0 s to repeat" in each.shows for each in found.evidence
    )


def test_without_a_ledger_a_failure_costs_at_least_the_time_until_all_are_gone() -> None:
    known = facts([process(0, step=30, end="signal: SIGKILL"), survivor(1, seconds=160.0)], now_ns=after(500))
    cost = verdict("C7", known).cost
    assert cost is not None
    assert (cost.seconds, cost.basis) == (pytest.approx(100.0), CostBasis.LOWER_BOUND)


# --- Clocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-60.0, 0.0, 60.0])
def test_times_of_a_host_are_compared_on_its_own_clock(offset: float) -> None:
    # Ends are on the clock of the job; signals and samples on that of their host.
    offsets = {"host-0": round(offset * 1e9)}
    killed = ProcessEnd("signal", after(60 - offset), signal="SIGKILL", host="host-0", was_asked=True)
    culprit = process(0, step=30, end=killed, signals=(signal(30.0),), started_ns=after(-100))
    found = only(facts(attempt([culprit, survivor(1)], clock_offsets_ns=offsets)))
    assert "did not end in 30.0 s" in found.sentence
    culprit = process(0, step=30, end=killed._replace(was_asked=False), started_ns=after(-100))
    found = only(facts(attempt([culprit, survivor(1)], clock_offsets_ns=offsets), metrics=memory(80, 88, 96)))
    assert found.rule == "C2"


def test_c4_the_others_may_follow_one_that_ended_well_after_a_request() -> None:
    ended = asked(ProcessEnd("clean", exit_code=0), signals=(signal(50.0),), end_fields={"sigterm_handler": "python"})
    known = facts([ended, process(1, step=30)], is_live=True, now_ns=after(62))
    assert judged("C4", known) is None
    assert isinstance(judged("H0", known), Verdict)
    late = facts([ended, process(1, step=30)], is_live=True, now_ns=after(95))
    assert "ended 10.0 s later" in verdict("C4", late).sentence


# --- H0, U0 -------------------------------------------------------------------------------------------------


def test_u0_a_silent_host_is_possibly_the_first() -> None:
    silent = process(0, step=30, end=ProcessEnd(is_silent=True), state=State.STALE, last_event_ns=after(50))
    found = verdict("U0", facts([silent, survivor(1), survivor(2)], now_ns=after(170)))
    assert "host host-0 possibly failed first at step 30: its end is not recorded" in found.sentence
    assert "2 processes lost a connection" in found.sentence
    assert found.hosts == ("host-0",)
    assert any("diagnose" in each.command for each in found.next)


def test_u0_a_host_that_recorded_nothing_is_possibly_the_first() -> None:
    known = facts(
        [survivor(index) for index in (0, 1)],
    )
    expected = [process(index, step=30, end=f"exception: {GLOO}", expected_processes=3) for index in (0, 1)]
    found = verdict("U0", facts(expected))
    assert "1 process of 3 (index 2) recorded nothing, and possibly failed first" in found.sentence
    assert "none of them failed by itself" in verdict("U0", known).sentence


def test_u0_a_job_that_was_ended_while_it_was_stuck_is_wrong_and_unknown() -> None:
    everyone = [
        process(index, step=30, end=ProcessEnd("signal", after(60 + 60 * index), signal="SIGKILL", was_stuck=True))
        for index in range(3)
    ]
    found = verdict("U0", facts(everyone))
    assert "ended from outside while the job made no progress" in found.sentence
    assert judged("H0", facts(everyone)) is None


@pytest.mark.parametrize(("seconds", "is_noted"), [(30, False), (80, True)])
def test_h0_notes_that_no_step_was_reported_for_long(seconds: int, is_noted: bool) -> None:
    found = verdict("H0", facts([process(0, step=30)], now_ns=after(50 + seconds)))
    assert ("step 30, reported 1 min 20 s ago" in found.sentence) is is_noted


def test_h0_shows_the_goodput_and_what_would_save_most() -> None:
    ledger = report([summary(1, 0, 1000)], buckets={Bucket.DATA_LOADING_SYNC: 60, Bucket.CHECKPOINT_SAVE: 20})
    known = facts([process(index, step=400) for index in range(4)], now_ns=after(60), is_live=True, ledger=ledger)
    found = verdict("H0", known)
    assert found.sentence.startswith(
        "Nothing is wrong: the job runs at step 400; goodput 92.0 %; most of the rest is waiting for data: 6.0 %"
    )
    assert "prefetch" in found.next[0].why
    assert found.verdict_class is VerdictClass.HEALTHY
    assert judge(known).exit_code == 0


def test_h0_shows_that_goodput_is_not_known() -> None:
    found = verdict("H0", facts([process(0, step=400, end="clean", planned_steps=1000)]))
    assert "the job ended well at step 400 of 1,000 planned" in found.sentence
    assert "its goodput is not known" in found.sentence


def test_h0_is_silent_where_a_process_is() -> None:
    silent = process(1, step=30, state=State.STALE, last_event_ns=after(10))
    known = facts([process(0, step=30), silent], is_live=True, now_ns=after(1000))
    assert judged("H0", known) is None
    assert "host-1 has recorded nothing since" in verdict("U0", known).sentence


def test_u0_is_not_shown_where_another_rule_explains_it() -> None:
    silent = process(0, step=30, end=ProcessEnd(is_silent=True), state=State.STALE, last_event_ns=after(50))
    report = judge(facts([silent, survivor(1), survivor(2)], now_ns=after(170)))
    assert report.headline.rule == "K1s"
    assert "U0" in {each.rule for each in report.verdicts}
    assert "U0" not in {each.rule for each in report.shown}


# --- Any history --------------------------------------------------------------------------------------------

ENDS = st.builds(
    ProcessEnd,
    how=st.sampled_from(["", "clean", "exception", "exit", "signal", "out_of_memory", "killed_or_os_exit", "new_kind"]),
    ended_ns=st.one_of(st.none(), st.integers(after(-1000), after(1000))),
    exception=st.sampled_from(
        ["", "ValueError: x", GLOO, HEARTBEAT, "OSError: [Errno 28] full", "MemoryError", "\x00: ]"]
    ),
    signal=st.sampled_from(["", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGINT", "SIGUSR2"]),
    exit_code=st.one_of(st.none(), st.sampled_from([0, 1, 3, 76, 134, 137, 139, 143])),
    was_asked=st.booleans(),
    is_silent=st.booleans(),
    was_stuck=st.booleans(),
    host=st.sampled_from(["host-0", "host-1", ""]),
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["ended_by", "first_cause", "is_first_cause", "step", "errno", "filename", "sigterm_handler", "kind"]
    ),
    st.one_of(
        st.sampled_from(
            ["fast_fail", "left_block", "python", -1, 2**70, 1.5, None, True, {}, {"hosts": 3, "step": "x"}]
        ),
        st.fixed_dictionaries({"hosts": st.lists(st.text(max_size=3), max_size=3), "exit_code": st.integers()}),
    ),
    max_size=4,
)


@st.composite
def histories(draw: st.DrawFn) -> Facts:
    attempts = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        processes = []
        for index in range(draw(st.integers(0, 4))):
            processes.append(
                process(
                    index,
                    host=draw(st.sampled_from(["host-0", "host-1", "host-2", ""])),
                    step=draw(st.one_of(st.none(), st.integers(0, 50))),
                    end=draw(ENDS),
                    end_fields=draw(FIELDS),
                    left_block_ns=draw(st.one_of(st.none(), st.just(after(40)))),
                    planned_steps=draw(st.one_of(st.none(), st.just(50))),
                    expected_processes=draw(st.one_of(st.none(), st.just(5))),
                    last_phase=draw(st.sampled_from(["", "init", "step", "checkpoint", "new"])),
                    signals=draw(st.sampled_from([(), (signal(30.0),)])),
                    sigterm_handlers=draw(st.sampled_from([(), (handler("c", 1.0), handler("python", 2.0))])),
                    console=draw(st.sampled_from([(), (console("SIGTERM caught"),)])),
                    hangs=draw(st.sampled_from([(), (hang(),)])),
                    state=draw(st.sampled_from(list(State))),
                    file_systems=draw(st.sampled_from([(), ({"path": None, "free_bytes": "x"},)])),
                )
            )
        attempts.append(attempt(processes, number))
    ledger = draw(
        st.sampled_from([None, report([summary(1, 0, 60)], [disruption(), disruption(2, 7)]), report([], seconds=0.0)])
    )
    fields: dict[str, Any] = {} if ledger is None else {"ledger": ledger}
    curves = draw(st.sampled_from([Curves(), memory(50, 99), memory(96)]))
    return facts(*attempts, is_live=draw(st.booleans()), metrics=curves, **fields)


@settings(max_examples=150, deadline=None)
@given(known=histories())
def test_no_history_breaks_a_rule_and_one_failure_has_one_verdict(known: Facts) -> None:
    crashes = []
    for rule in MINE:
        found = judged(rule, known)
        if isinstance(found, Verdict):
            assert found.sentence.strip()
            assert found.rule == rule
            assert (
                found.confidence is not Confidence.POSSIBLE
                or "possibly" in found.sentence
                or rule in ("H0", "N1", "U0")
            )
            json.dumps(found.to_json())
            crashes += [rule] if rule in CRASHES else []
        elif isinstance(found, NotChecked):
            assert found.rule == rule
            assert found.why
    assert len(crashes) <= 1
    assert judge(known).headline.sentence
