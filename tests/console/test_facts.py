"""Facts are joined by host, pid and time, on one clock, and never guessed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.exceptions import RunNotFoundError
from google_cloud_mldiagnostics.reading import CONFIGS, PROCESS, State
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.entry import COMPANION_LOG_ID, EntryContext, LogEntry
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.story import Role
from ml_diagnostics_console._facts.building import attempts_of_jobs
from ml_diagnostics_console._facts.clocks import compare_clocks
from ml_diagnostics_console._facts.curve import mean_of
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.entries import Lives
from ml_diagnostics_console._facts.facts import Fact, Facts, StepSummary, Times, Unknown
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console._facts.run_records import RunRecords

from .made_facts import after, ref
from .real_jobs import Ended, run_job

SECOND_NS = 1_000_000_000


def read(name: str = "last", **options: Any) -> Facts:
    return JobReader(Question(name, kubernetes="off", **options), pytest.fail).read()


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run_job(tmp_path_factory.mktemp("failed"), "raise ValueError('batch 30 is empty')")


@pytest.fixture
def of_failed(failed: Ended, monkeypatch: pytest.MonkeyPatch) -> Facts:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(failed.folder))
    return read()


def test_the_facts_of_a_failed_job_are_those_of_its_run_its_companion_and_its_output(of_failed: Facts) -> None:
    (process,) = of_failed.processes
    assert (process.state, process.role, process.is_first_cause) == (State.FAILED, Role.OWN, True)
    assert process.end.exception == "ValueError: batch 30 is empty"
    assert process.end.exit_code == 1
    assert process.step == 30
    assert process.exception[0].frames[0].function == "<module>"
    assert "ValueError: batch 30 is empty" in "".join(text.text for text in process.console)
    assert {each.id for each in process.end_refs} == set(filter(None, (each.id for each in process.end_refs)))
    assert not of_failed.is_live
    assert of_failed.now_ns <= time.time_ns()


def test_the_facts_hold_metrics_goodput_configs_and_versions(of_failed: Facts) -> None:
    (loss,) = of_failed.metrics.of("loss")
    assert len(loss) == 31
    assert loss.last == pytest.approx(1 / 31)
    assert isinstance(of_failed.ledger, Fact)
    assert of_failed.ledger.value.last_step == 30
    assert of_failed.user_configs["lr"] == "0.001"
    assert of_failed.processes[0].software["python_version"]
    assert isinstance(of_failed.chips, Unknown)


def test_a_job_that_started_no_run_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_job(tmp_path, "sys.exit('no data in /data')", with_run=False, name="early")
    run_job(tmp_path, "os.kill(os.getpid(), 9)", with_run=False, name="early")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    facts = read("early")
    assert [attempt.processes[0].end.how for attempt in facts.attempts] == ["exit", "signal"]
    assert "no data in /data" in facts.attempts[0].processes[0].console[0].text
    assert facts.processes[0].end.signal == "SIGKILL"
    assert not facts.is_live


def test_an_unknown_job_is_an_error_with_what_exists() -> None:
    with pytest.raises(RunNotFoundError, match="no run"):
        read("nothing-of-that-name")


def test_an_attempt_that_does_not_exist_is_an_error(of_failed: Facts) -> None:
    with pytest.raises(NotFoundError, match="it has 1 to 1"):
        read(of_failed.name, attempt=7)


def entries_of(
    payloads: list[tuple[float, Mapping[str, Any]]], *, writer_at: float = 0.0, **labels: str
) -> list[LogEntry]:
    """Return entries of a companion at some seconds; `writer_at` is the start of the companion."""
    known = {"host": "host-0", "pid": "41", "process_index": "0", "job": "job", "run": "run-1", **labels}
    context = EntryContext(COMPANION_LOG_ID, "", {}, known, writer=f"host-0-41-{after(writer_at)}-0")
    return [
        LogEntry(after(seconds), 100_000_000_000 + number, {"verb": "stacktraceanalyzer", **payload}, context)
        for number, (seconds, payload) in enumerate(payloads)
    ]


def end(how: str, seconds: float, **fields: Any) -> tuple[float, dict[str, Any]]:
    return seconds, {"kind": "job_ended", "how": how, "ended_ns": after(seconds), "message": how, **fields}


def test_a_pid_that_is_used_again_is_another_process() -> None:
    lives = Lives()
    console = (10.2, {"kind": "console", "stream": "err", "occasion": "end", "message": "first"})
    hang = (40.0, {"kind": "hang_suspected", "phase": "step", "step": 7, "stuck_seconds": 9, "timeout_seconds": 5})
    left = (10.05, {"kind": "left_block", "how": "exception", "message": "left"})
    lives.add(entries_of([end("exit", 10, exit_code=3)]))
    lives.add(entries_of([left], writer_at=10.05))
    lives.add(entries_of([console], writer_at=10.1))
    lives.add(entries_of([hang, end("clean", 60)], writer_at=12))
    first = lives.of_process("host-0", 41, after(0), after(10))
    second = lives.of_process("host-0", 41, after(30), after(60))
    assert first is not None
    assert second is not None
    assert [text.text for text in first.console.values()] == ["first"]
    assert [entry.payload["kind"] for entry in first.ends] == ["job_ended", "left_block"]
    assert (len(first.hangs), len(second.hangs)) == (0, 1)
    assert second.hangs[0].since_ns == after(31)
    assert lives.of_process("host-0", 41, after(70), after(80)) is None


def test_the_same_end_by_the_companion_and_by_run_is_one_end() -> None:
    lives = Lives()
    lives.add(entries_of([end("signal", 10, signal="SIGKILL"), (10.1, end("signal", 10.0)[1])]))
    assert len(lives.labelled(["run-1"])) == 1


def steps(seconds: float, step: int) -> tuple[float, dict[str, Any]]:
    times = {"sum": 1.0, "p50": 0.1, "p95": 0.1, "max": 0.1}
    fields = {"kind": "step_summary", "first_step": step, "last_step": step + 9, "count": 10, "wall_seconds": times}
    return seconds, fields


def test_a_pod_that_was_killed_with_its_companion_and_the_next_one_are_two_processes() -> None:
    lives = Lives()
    lives.add(entries_of([steps(10, 0), steps(20, 10)], writer_at=1))
    lives.add(entries_of([steps(60, 0), end("clean", 70)], writer_at=50))
    first, second = lives.labelled(["run-1"])
    assert (first.last_ns, first.ended_ns) == (after(20), None)
    assert (second.first_ns, second.ended_ns) == (after(60), after(70))
    assert lives.of_process("host-0", 41, after(0), after(20)) is first
    assert lives.of_process("host-0", 41, after(45), after(70)) is second
    one, two = attempts_of_jobs([first, second])
    assert [each.state for each in one.processes] == [State.FAILED]
    assert not one.processes[0].has_ended
    assert one.processes[0].end.is_silent
    assert [each.end.how for each in two.processes] == ["clean"]


def test_a_process_without_an_end_is_of_the_attempt_before_that_of_its_successor() -> None:
    lives = Lives()
    lives.add(entries_of([steps(10, 0), steps(20, 10)], writer_at=1))
    lives.add(entries_of([steps(60, 0), end("clean", 70)], writer_at=50, pid="99"))
    attempts = attempts_of_jobs(lives.labelled(["run-1"]))
    assert [[each.pid for each in attempt.processes] for attempt in attempts] == [[41], [99]]


def test_two_processes_that_run_at_once_with_one_index_are_of_one_attempt() -> None:
    lives = Lives()
    first, second = (
        entries_of([steps(each, 0), steps(each + 30, 9)], pid=pid) for each, pid in ((5, "41"), (15, "42"))
    )
    lives.add(sorted([*first, *second], key=lambda entry: entry.timestamp_ns))
    assert len(attempts_of_jobs(lives.labelled(["run-1"]))) == 1


def test_the_end_of_a_quiet_process_by_another_writer_is_its_own() -> None:
    lives = Lives()
    lives.add(entries_of([steps(10, 0)], writer_at=1))
    lives.add(entries_of([end("clean", 7_200)], writer_at=7_200))
    assert len(lives.labelled(["run-1"])) == 1


def test_the_doctor_reads_the_end_by_fast_fail_of_a_job_without_a_run_as_show_does() -> None:
    lives = Lives()
    killed = {"signal": "SIGABRT", "ended_by": "fast_fail"}
    lives.add(entries_of([end("exception", 10, exception="ValueError", exception_text="x")], pid="1"))
    lives.add(entries_of([end("signal", 11, **killed)], pid="2", process_index="1"))
    lives.add(entries_of([end("signal", 10, **killed, is_first_cause=True)], pid="3", process_index="2"))
    (attempt,) = attempts_of_jobs(lives.labelled(["run-1"]))
    assert [each.end.was_ended for each in attempt.processes] == [False, True, False]
    assert attempt.processes[1].role is Role.TEARDOWN
    assert attempt.processes[0].end.exception == "ValueError: x"


def test_a_second_block_of_a_process_is_of_the_same_process() -> None:
    lives = Lives()
    lives.add(entries_of([steps(10, 0), (20, {"kind": "left_block", "how": "clean", "message": "left"})], writer_at=1))
    lives.add(entries_of([steps(900, 10)], writer_at=890))
    assert len(lives.labelled(["run-1"])) == 1


def test_entries_of_another_job_do_not_become_processes() -> None:
    lives = Lives()
    lives.add(entries_of([end("clean", 1)], run="run-2", job="other"))
    assert lives.labelled(["run-1", "job"]) == []


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
kinds = st.sampled_from(
    [
        "dump",
        "snapshot",
        "step_summary",
        "process_state",
        "hang_suspected",
        "left_block",
        "compiles",
        "console",
        "signal",
        "sigterm_handler",
        "job_ended",
        "of a newer version",
    ]
)
names = st.sampled_from(
    [
        "states",
        "groups",
        "functions",
        "wall_seconds",
        "first_step",
        "last_step",
        "count",
        "step",
        "phase",
        "stuck_seconds",
        "message",
        "trigger",
        "part",
        "how",
        "signal",
        "exit_code",
        "ended_ns",
        "time_ns",
        "file_systems",
        "exception_frames",
        "stream",
    ]
)


@given(st.lists(st.tuples(kinds, st.dictionaries(names, junk)), max_size=12))
def test_entries_of_any_form_are_read_or_left_out(made: list[tuple[str, dict[str, Any]]]) -> None:
    lives = Lives()
    lives.add(entries_of([(float(number), {**fields, "kind": kind}) for number, (kind, fields) in enumerate(made)]))
    for life in lives.labelled(["run-1"]):
        assert isinstance(life.stacks(), tuple)


@given(st.dictionaries(st.sampled_from(["values", "step_index", "unit", "hostname", "links", "sizes", "task"]), junk))
def test_metrics_of_any_form_are_read_or_left_out(payload: dict[str, Any]) -> None:
    curves = Curves()
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": "host-0", "pid": "41"}, writer="w")
    for number in range(3):
        curves.add("loss", LogEntry(number, 100_000_000_000 + number, payload, context))
    for curve in curves:
        assert isinstance(curve.ref().shows, str)
        assert isinstance(curve.last, float)


def curve_of(payloads: list[dict[str, Any]], name: str = "loss") -> Curves:
    curves = Curves()
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": "host-0", "pid": "41"}, writer="w")
    for number, payload in enumerate(payloads):
        curves.add(name, LogEntry(after(number), number, payload, context))
    return curves


def test_a_metric_of_each_link_is_a_curve_of_each_link() -> None:
    payload = {"values": [0, 10], "links": ["a", "b"], "trays": [1, 2], "unit": "1"}
    curves = curve_of([payload, {**payload, "values": [0, 7]}], "tpu_ici_link_health")
    assert {(curve.labels["link"], curve.labels["tray"]): curve.last for curve in curves} == {
        ("a", "1"): 0.0,
        ("b", "2"): 7.0,
    }
    assert max(curve.highest for curve in curves) == 10


def test_the_first_value_that_is_not_finite_is_kept_with_its_step() -> None:
    (loss,) = curve_of(
        [
            {"values": [1.0], "step_index": 4},
            {"values": ["NaN"], "step_index": 5, "not_finite": True},
            {"values": ["Infinity"], "step_index": 6, "not_finite": True},
        ]
    ).of("loss")
    assert loss.first_not_finite is not None
    assert loss.first_not_finite.step == 5
    assert loss.last == 1.0


@pytest.mark.parametrize("missing", [None, True, False, "nan", "n/a", {}, [], 10**400])
@pytest.mark.parametrize("times", [1, 2])
def test_a_missing_value_is_not_taken_for_one_that_is_not_finite(missing: Any, times: int) -> None:
    payloads = [{"values": [1.0] * times}, {"values": [missing] * times}, {"values": [2.0] * times}]
    (loss,) = curve_of(payloads).of("loss")
    assert loss.first_not_finite is None
    assert (list(loss.values), len(loss), loss.last) == ([1.0, 2.0], 2, 2.0)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", float("nan"), float("-inf")])
@pytest.mark.parametrize("values", [1, 2])
def test_values_that_are_not_finite_are_found_beside_missing_ones(value: Any, values: int) -> None:
    (loss,) = curve_of([{"values": [value] if values == 1 else [None, value]}]).of("loss")
    assert loss.first_not_finite is not None
    assert len(loss) == 0


metric_values = st.one_of(st.floats(), st.integers(-3, 3), st.sampled_from([None, True, "NaN", "x", 10**400, 1e308]))
metric_payloads = st.builds(
    lambda values, step, extra: {"values": values, **({} if step == "none" else {"step_index": step}), **extra},
    st.lists(metric_values, max_size=2) | st.lists(st.integers(0, 3), min_size=1, max_size=1) | st.none(),
    st.just("none") | st.integers(-1, 9) | st.sampled_from([2.0, "3", 2**62]),
    st.sampled_from([{}, {"unit": "%"}, {"task": "a"}, {"task": "b"}, {"links": ["a"]}]),
)


def contents_of(curves: Curves) -> list[Any]:
    return [
        (
            curve.key,
            curve.started_ns,
            len(curve),
            [list(curve.times_ns), list(curve.steps), list(curve.values), curve.points()],
            [curve.ref(which) for which in ("first", "last", "highest", "lowest")],
            curve.first_not_finite and (curve.first_not_finite.time_ns, curve.first_not_finite.ref),
        )
        for curve in curves
    ]


@given(st.lists(metric_payloads, min_size=1, max_size=30), st.lists(st.integers(1, 30), max_size=5))
def test_many_entries_of_a_metric_make_the_same_curves_as_one_after_the_other(
    payloads: list[dict[str, Any]], sizes: list[int]
) -> None:
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": "host-0", "pid": "41"}, writer="w")
    entries = [LogEntry(after(number), number, payload, context) for number, payload in enumerate(payloads)]
    many = Curves()
    for size in [*sizes, len(entries)]:
        if entries[:size]:
            many.add_all("loss", entries[:size])
        entries = entries[size:]
    assert contents_of(many) == contents_of(curve_of(payloads))


@pytest.mark.parametrize("size", [1, 7, 1_000, 5_000])
@pytest.mark.parametrize("levels", [3, 100])
@pytest.mark.parametrize("has_steps", [True, False])
def test_a_long_curve_is_the_same_whatever_is_added_at_once(size: int, levels: int, has_steps: bool) -> None:
    payloads = [
        {"values": [float(number * number % levels)], **({"step_index": number} if has_steps else {})}
        for number in range(10_000)
    ]
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": "host-0", "pid": "41"}, writer="w")
    entries = [LogEntry(after(number), number, payload, context) for number, payload in enumerate(payloads)]
    many = Curves()
    for start in range(0, len(entries), size):
        many.add_all("loss", entries[start : start + size])
    assert contents_of(many) == contents_of(curve_of(payloads))


def test_metrics_of_a_writer_at_a_time_are_as_those_of_all_in_the_order_of_time() -> None:
    def entry(writer: int, second: int, name: str) -> LogEntry:
        context = contexts[writer]
        payload = {"values": [second], "step_index": second} if name != PROCESS else {"pid": 41}
        return LogEntry(after(second), second, payload, context, own_resource_labels={"namespace": name})

    contexts = [
        EntryContext("log", "", {}, {"host": f"host-{number}", "pid": "41"}, writer=f"w{number}") for number in range(3)
    ]
    by_writer = [
        [entry(writer, second, name) for second in range(20) for name in (PROCESS, "loss", *(["late"] * (second > 9)))]
        for writer in range(3)
    ]
    merged, apart = RunRecords(), RunRecords()
    in_order = sorted((each for of_writer in by_writer for each in of_writer), key=lambda each: each.timestamp_ns)
    shown = merged.add(in_order)
    others = [each for of_writer in by_writer for each in apart.take_metrics(of_writer)]
    assert apart.add(sorted(others, key=lambda each: each.timestamp_ns)) == shown
    for records in (merged, apart):
        records.curves.sort()
    assert contents_of(apart.curves) == contents_of(merged.curves)
    assert sorted(map(repr, apart.take_last_metrics())) == sorted(map(repr, merged.take_last_metrics()))
    assert (apart.entry_count, apart.last_ns) == (merged.entry_count, merged.last_ns) == (150, after(19))


def test_attempts_with_one_pid_as_in_containers_have_records_of_their_own() -> None:
    def entry(seconds: float, attempt: str, name: str, payload: dict[str, Any]) -> LogEntry:
        labels = {"host": "job-0-0", "pid": "1", "attempt": attempt}
        context = EntryContext("log", "", {}, labels, writer=f"w{attempt}")
        return LogEntry(after(seconds), int(seconds), payload, context, own_resource_labels={"namespace": name})

    records = RunRecords()
    for number, version in enumerate(("0.9.1", "0.10.2"), 1):
        records.add(
            [
                entry(60 * number, str(number), PROCESS, {"pid": 1, "attempt": number, "expected_processes": number}),
                entry(60 * number + 1, str(number), CONFIGS, {"softwareConfigs": {"jax_version": version}}),
            ]
        )
    first, second = records.of_process("job-0-0", 1, 1), records.of_process("job-0-0", 1, 2)
    assert (first.software, second.software) == ({"jax_version": "0.9.1"}, {"jax_version": "0.10.2"})
    assert first.last is not None
    assert first.last.payload["expected_processes"] == 1
    assert records.of_process("job-0-0", 1, 3).last is None


def test_a_curve_of_weeks_keeps_its_extremes_in_bounded_memory() -> None:
    values = [float(number % 100) for number in range(50_000)]
    values[31_007] = 1e6
    (curve,) = curve_of([{"values": [value]} for value in values], "host_memory_utilization").of(
        "host_memory_utilization"
    )
    assert len(curve.values) <= 2_048
    assert len(curve) == 50_000
    assert curve.highest == 1e6
    assert curve.last == values[-1]


def summary(step: int, return_ns: int, number: int = 0) -> StepSummary:
    times = Times(10, 1, 1, 1)
    return StepSummary(after(step), step, step, 10, times, None, None, None, step, return_ns, ref())


@given(
    st.lists(st.integers(-60 * SECOND_NS, 60 * SECOND_NS), min_size=2, max_size=8),
    st.lists(st.integers(-2_000_000, 2_000_000), min_size=24, max_size=24),
)
def test_clocks_are_compared_by_the_returns_from_common_waits(offsets: list[int], noise: list[int]) -> None:
    marks = [
        (f"host-{host}", [summary(step, after(step) + offset + noise[(3 * host + step) % 24]) for step in range(12)])
        for host, offset in enumerate(offsets)
    ]
    clocks = compare_clocks(marks)
    for host, offset in enumerate(offsets):
        error = clocks.offsets_ns[f"host-{host}"] - (offset - offsets[0])
        assert abs(error) <= clocks.uncertainty_ns
    assert clocks.uncertainty_ns < 50_000_000


def test_without_common_waits_clocks_are_trusted_to_a_second() -> None:
    clocks = compare_clocks([("host-0", [summary(1, after(1))]), ("host-1", [summary(2, after(2))])])
    assert (clocks.offsets_ns.get("host-1"), clocks.uncertainty_ns) == (None, SECOND_NS) or clocks.offsets_ns == {
        "host-0": 0
    }


@pytest.fixture
def journal_of_hosts() -> Iterator[Any]:
    opened: list[Journal] = []

    def write(log: str, host: str, index: int, payloads: list[tuple[float, dict[str, Any]]], **resource: str) -> None:
        labels = {"job": "job", "run": "run-1", "host": host, "process_index": str(index), "pid": "41", "attempt": "1"}
        journal = Journal(
            log,
            root=diagnostics_directory(),
            labels=labels,
            resource={"type": "generic_node", "labels": {"node_id": "run-1", **resource}},
            about_pid=41,
        )
        opened.append(journal)
        for seconds, payload in payloads:
            journal.append(payload, timestamp_ns=after(seconds))

    yield write
    for journal in opened:
        journal.close(5)


def started(host: str, index: int, phase: str = "ACTIVE", **fields: Any) -> dict[str, Any]:
    return {"phase": phase, "attempt": 1, "hostname": host, "process_index": str(index), "pid": 41, **fields}


def make_run(**fields: Any) -> None:
    folder = diagnostics_directory() / "runs" / "run-1"
    folder.mkdir(parents=True)
    known = {"name": "projects/p/locations/l/machineLearningRuns/run-1", "displayName": "job", "runPhase": "FAILED"}
    (folder / "run.json").write_text(json.dumps({**known, **fields}))


def test_the_killed_host_is_first_though_its_clock_is_a_minute_ahead(journal_of_hosts: Any) -> None:
    make_run()
    for index, offset in ((0, 0.0), (1, 60.0)):
        host = f"host-{index}"
        journal_of_hosts(
            "ml_diagnostics_metric", host, index, [(offset, started(host, index))], namespace="mlrun_process"
        )
    gloo = {"phase": "FAILED", "reason": "XlaRuntimeError: Gloo all-reduce failed: connection reset by peer"}
    journal_of_hosts(
        "ml_diagnostics_metric", "host-0", 0, [(50.0, {**started("host-0", 0), **gloo})], namespace="mlrun_process"
    )
    killed = {"verb": "stacktraceanalyzer", **end("signal", 110.02, signal="SIGKILL")[1]}
    journal_of_hosts(COMPANION_LOG_ID, "host-1", 1, [(110.03, killed)])
    attempt = read("run-1").attempt
    assert attempt is not None
    assert [process.role for process in attempt.processes] == [Role.CASCADE, Role.OWN]
    assert [process.name for process in attempt.first] == ["host-1"]


def test_a_damaged_journal_gives_an_answer(journal_of_hosts: Any) -> None:
    make_run()
    journal_of_hosts("ml_diagnostics_metric", "host-0", 0, [(0, started("host-0", 0))], namespace="mlrun_process")
    for path in (diagnostics_directory() / "journal").glob("*/*.jsonl"):
        path.write_bytes(path.read_bytes() + b'\n{"t":1,"s":2,"p":{"kind":\n\xff\xfe\n{}\n[1]\n')
    facts = JobReader(Question("run-1", kubernetes="off"), lambda _: None).read()
    assert len(facts.processes) == 1
    assert facts.notes


def test_a_thousand_attempts_are_read(journal_of_hosts: Any) -> None:
    attempts = [
        {
            "number": number,
            "phase": "FAILED",
            "reason": "ValueError: x",
            "startTime": f"2026-01-{1 + number % 28:02d}T00:00:00Z",
        }
        for number in range(1, 1001)
    ]
    make_run(attempts=attempts, labels={"attempt": "1000"})
    facts = read("run-1")
    assert len(facts.attempts) == 1000
    assert facts.attempt is not None
    assert facts.attempt.number == 1000


def test_the_mean_of_values_near_the_largest_float_is_a_number() -> None:
    assert mean_of([1.7e308, 1.7e308]) == 1.7e308
