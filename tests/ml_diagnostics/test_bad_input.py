"""Invalid arguments, and loops, threads and processes that end early: each does what a user expects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ml_diagnostics
import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.reader import JournalReader
from ml_goodput_measurement.partition import Bucket

from ..waiting import run_program
from .test_instrument import JOB, entries, events, goodput_only, logged, loops, with_a_run


def started() -> list[int]:
    """Return the steps that were recorded."""
    return [payload["step_count"] for payload in entries(f"goodput_{JOB}") if "step_count" in payload]


# --- Phases and steps ---------------------------------------------------------------------------------------


def test_a_phase_of_any_name_is_an_activity_of_the_program() -> None:
    with goodput_only() as job, job.phase("Sanity Check №1"):
        pass
    assert ("custom_badput_event_start", "Sanity Check №1") in events()


@pytest.mark.parametrize("name", [3, None, "", "productive", b"evaluation"])
def test_a_phase_that_cannot_be_recorded_is_logged_and_its_block_runs(
    in_production: None, caplog: pytest.LogCaptureFixture, name: Any
) -> None:
    has_run = False
    with goodput_only() as job, job.phase(name):
        has_run = True
    assert has_run
    assert "phase" in caplog.text
    assert not [kind for kind, _ in events() if kind.startswith("custom")]


def test_an_exception_in_a_phase_passes_after_its_end() -> None:
    with goodput_only() as job, pytest.raises(ZeroDivisionError), job.phase("evaluation"):
        raise ZeroDivisionError
    assert ("custom_badput_event_end", "evaluation") in events()


def test_a_loop_that_goes_back_repeats_its_steps_which_are_wasted() -> None:
    with goodput_only() as job:
        list(job.steps("abcd"))
        list(job.steps("cd", start=2))
        report = job.report().data
    assert started() == [0, 1, 2, 3, 2, 3]
    assert report.buckets[Bucket.WASTED_PROGRESS] > 0
    assert (report.last_step, len(report.disruptions)) == (3, 1)


@pytest.mark.parametrize("step", ["x", None, 2**80])
def test_a_step_whose_number_is_not_valid_is_not_recorded_and_the_job_goes_on(
    in_production: None, caplog: pytest.LogCaptureFixture, step: Any
) -> None:
    with goodput_only() as job:
        with job.step(step):
            pass
        list(job.steps("a", start=1))
        assert job.report().data.last_step == 1


def test_an_exception_between_two_steps_ends_the_job_with_its_type() -> None:
    def train(job: ml_diagnostics.Job) -> None:
        with job.step(0):
            pass
        raise KeyError("weights")

    with pytest.raises(KeyError), goodput_only() as job:
        train(job)
    assert entries(f"goodput_{JOB}")[-1]["job_end_exception"] == "KeyError"
    assert ("step_ended", 0) in loops()


# --- Loops that are left, and data without end --------------------------------------------------------------


def test_a_loop_that_is_kept_half_way_is_the_outer_loop_until_it_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with goodput_only() as job:
        kept = iter(job.steps("ab"))
        assert next(kept) == (0, "a")
        assert list(job.steps("xy", start=7)) == [(7, "x"), (8, "y")]
        del kept
        gc.collect()
        list(job.steps("b", start=1))
    assert started() == [0, 1]
    assert "only the steps of the outer loop are recorded" in caplog.text


def test_data_without_an_end_is_left_by_break() -> None:
    with goodput_only() as job:
        for step, batch in job.steps(itertools.count(100), start=3):
            assert batch == step + 97
            if step == 5:
                break
    assert started() == [3, 4, 5]
    assert loops()[-1] == ("step_start", 5)


def test_a_loop_that_is_never_started_records_nothing() -> None:
    with goodput_only() as job:
        job.steps("ab")
        iter(job.steps("ab"))
        list(job.steps("a", start=4))
    assert started() == [4]


def test_a_loop_may_outlive_its_job() -> None:
    with goodput_only() as job:
        steps = iter(job.steps("abc"))
        next(steps)
    assert list(steps) == [(1, "b"), (2, "c")]
    assert events()[-1] == ("job_end", "")


# --- asyncio ------------------------------------------------------------------------------------------------


async def batches(text: str) -> AsyncIterator[str]:
    for batch in text:
        await asyncio.sleep(0)
        yield batch


def test_an_asynchronous_loop_that_is_left_does_not_keep_the_next_from_recording() -> None:
    async def train(job: ml_diagnostics.Job) -> None:
        async for _ in job.steps(batches("ab")):
            break
        async for _ in job.steps(batches("cd"), start=1):
            pass

    with goodput_only() as job:
        asyncio.run(train(job))
    assert started() == [0, 1, 2]


def test_an_error_of_asynchronous_data_and_a_cancellation_pass() -> None:
    async def failing() -> AsyncIterator[str]:
        yield "a"
        raise OSError("gone")

    async def endless() -> AsyncIterator[str]:
        yield "a"
        await asyncio.Event().wait()

    async def train(job: ml_diagnostics.Job, data: AsyncIterator[str], start: int) -> None:
        async for _ in job.steps(data, start=start):
            pass

    async def train_all(job: ml_diagnostics.Job) -> None:
        with pytest.raises(OSError, match="gone"):
            await train(job, failing(), 0)
        task = asyncio.create_task(train(job, endless(), 1))
        while started() != [0, 1]:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with goodput_only() as job:
        asyncio.run(train_all(job))
    assert [kind for kind, _ in loops()].count("data_loading_end") == 4


def test_of_two_tasks_one_records_its_steps_and_both_get_their_batches(caplog: pytest.LogCaptureFixture) -> None:
    async def train(job: ml_diagnostics.Job, text: str, start: int) -> list[tuple[int, str]]:
        return [pair async for pair in job.steps(batches(text), start=start)]

    async def train_both(job: ml_diagnostics.Job) -> Any:
        return await asyncio.gather(train(job, "ab", 0), train(job, "xy", 10))

    with goodput_only() as job:
        assert asyncio.run(train_both(job)) == [[(0, "a"), (1, "b")], [(10, "x"), (11, "y")]]
    assert started() == [0, 1]
    assert caplog.text.count("only the steps of the outer loop are recorded") == 1


def test_a_synchronous_loop_in_a_task_records_its_steps() -> None:
    async def train(job: ml_diagnostics.Job) -> None:
        for _ in job.steps("ab"):
            await asyncio.sleep(0)

    with goodput_only() as job:
        asyncio.run(train(job))
    assert started() == [0, 1]


# --- Processes and threads ----------------------------------------------------------------------------------


def test_a_forked_child_may_have_a_job_of_its_own() -> None:
    with goodput_only() as job:
        child = os.fork()
        if child == 0:
            try:
                with ml_diagnostics.instrument("child", run=False, monitor=False) as own:
                    list(own.steps("ab"))
                    code = 7 if own.recorder is not None and own.name == "child" else 8
            except BaseException:
                code = 9
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        list(job.steps("a"))
    assert started() == [0]
    reader = JournalReader("goodput_child", root=Path(os.environ["ML_DIAGNOSTICS_DIR"]))
    payloads = [entry.payload for batch in reader.read_new() for entry in batch]
    assert [payload["step_count"] for payload in payloads if "step_count" in payload] == [0, 1]


def test_a_forked_child_records_nothing_with_the_job_of_its_parent() -> None:
    with with_a_run() as job:
        steps = iter(job.steps("abc"))
        next(steps)
        with job.phase("evaluation"):
            child = os.fork()
            if child == 0:
                code = 9
                with contextlib.suppress(BaseException):
                    next(steps)
                    with job.phase("tokenize"), job.step(7):
                        job.log({"loss": 1.0})
                    code = 7 if repr(job) == "<Job 'digits': not recorded>" else 8
        if child == 0:
            job.__exit__(None, None, None)
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        job.log({"loss": 0.5})
        next(steps)
    assert started() == [0, 1]
    assert [detail for kind, detail in events() if kind.startswith("custom")] == ["evaluation"] * 2
    assert [kind for kind, _ in events()].count("job_end") == 1
    assert [value for value, _ in logged("loss")] == [0.5]


def test_a_thread_may_have_the_job_with_all_its_parts() -> None:
    program = (
        "import threading, ml_diagnostics\n"
        "def train():\n"
        "    with ml_diagnostics.instrument('digits') as job:\n"
        "        for step, _ in job.steps('ab'):\n"
        "            job.log({'loss': 1.0})\n"
        "        print(job.report().data.last_step, job.run is not None)\n"
        "thread = threading.Thread(target=train)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    assert run_program(program) == "1 True\n"


def test_a_second_job_at_the_same_time_is_the_first_one() -> None:
    with goodput_only() as job:
        found: list[ml_diagnostics.Job] = []

        def train() -> None:
            with ml_diagnostics.instrument("other") as other:
                found.append(other)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert found == [job]
        list(job.steps("a"))
    assert started() == [0]


def test_a_job_that_is_entered_within_itself_ends_with_the_outermost_block() -> None:
    with goodput_only() as job:
        with job, job:
            list(job.steps("a"))
        list(job.steps("b", start=1))
        assert ml_diagnostics.current() is job
    assert started() == [0, 1]
    assert events()[-1] == ("job_end", "")
    assert ml_diagnostics.current() is not job


def test_an_interrupt_while_the_job_ends_passes_when_all_its_parts_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    job = with_a_run().__enter__()
    run = job.run
    monkeypatch.setattr(type(job.recorder), "__exit__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.__exit__(None, None, None)
    assert "COMPLETED" in Path(os.environ["ML_DIAGNOSTICS_DIR"], "runs", run.name, "run.json").read_text()
    assert ml_diagnostics.current() is not job


def test_a_job_may_be_entered_again_after_its_end() -> None:
    job = goodput_only()
    for first in (0, 2):
        with job:
            list(job.steps("ab", start=first))
    assert started() == [0, 1, 2, 3]
    assert [kind for kind, _ in events()].count("job_start") == 2


# --- Values and configs -------------------------------------------------------------------------------------


def test_values_that_are_not_numbers_are_left_out_and_all_others_recorded(
    in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    bad: list[Any] = ["text", None, object(), 10**400, {1: {2: 3}}, 1j, b"1", [[1], [2, 3]], lambda: 1]
    with with_a_run() as job:
        for value in bad:
            job.log({"bad": value, "loss": 0.5})
        log: Any = job.log
        log({3: 1.0})
        log("loss")
        log(None)
        log({"loss": 0.25}, step="x")
    assert logged("bad") == []
    assert logged("loss")[: len(bad)] == [(0.5, None)] * len(bad)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "A value of bad could not be recorded as it was given: expected a number, got a str" in caplog.text


def test_numbers_that_json_does_not_have_are_recorded_as_they_are() -> None:
    with with_a_run() as job:
        job.log({"nan": math.nan, "up": math.inf, "huge": 10**300, "flag": True})
    assert math.isnan(float(logged("nan")[0][0]))
    assert float(logged("up")[0][0]) == math.inf
    assert logged("huge") == [(1e300, None)]


_LOST_RESULTS = """
import jax, numpy as np, ml_diagnostics

def fail(_):
    raise ValueError("bad batch")

# What waits for the result of another function is computed later, and fails then.
compute = jax.jit(lambda matrix: jax.lax.fori_loop(0, 60, lambda _, each: each @ matrix, matrix))
failing = jax.jit(lambda matrix: jax.pure_callback(fail, jax.ShapeDtypeStruct((), "float32"), matrix[0, 0]))
donating = jax.jit(lambda x: x + 1, donate_argnums=0)
matrix = np.full((1000, 1000), 0.001, dtype="float32")
with ml_diagnostics.instrument("digits", stacks=False, hangs=False, monitor=False) as job:
    for step, _ in job.steps("abcd"):
        array = jax.device_put(np.float32(step))
        if step == 0:
            job.log({"lost": failing(compute(matrix))})
        elif step == 1:
            array.delete()
            job.log({"lost": array})
        elif step == 2:
            donating(array)
            job.log({"lost": array})
        else:
            job.log({"kept": array})
print("trained")
"""


def test_results_that_are_deleted_or_whose_computation_fails_are_left_out_and_all_others_recorded(
    in_production: None,
) -> None:
    pytest.importorskip("jax")
    done = subprocess.run([sys.executable, "-c", _LOST_RESULTS], capture_output=True, text=True, timeout=100)
    assert done.stdout == "trained\n", done.stderr
    assert "an array was deleted or donated before it was copied" in done.stderr
    assert "an array could not be copied from its device" in done.stderr
    assert (logged("lost"), logged("kept")) == ([], [(3.0, 3)])
    assert started() == [0, 1, 2, 3]


def _recursive() -> dict[str, Any]:
    config: dict[str, Any] = {"lr": 0.1}
    config["itself"] = config
    return config


@pytest.mark.parametrize(
    "config",
    [
        {"model": object(), "path": Path("/data"), "function": print, "lr": 0.1},
        {"lr": math.nan, 3: "three", None: 1, ("a", 1): [math.inf, {1, 2}]},
        {"weights": b"\xff", "huge": 10**400, "text": "\ud800", "lr": 0.1},
        _recursive(),
    ],
    ids=["objects", "keys", "values", "recursive"],
)
def test_a_config_that_json_cannot_hold_is_recorded_as_text(in_production: None, config: dict[Any, Any]) -> None:
    with ml_diagnostics.instrument(JOB, config=config, stacks=False, hangs=False, monitor=False) as job:
        assert job.run is not None
        list(job.steps("a"))
    assert started() == [0]


@pytest.mark.parametrize("config", [3, "lr=0.1", [("lr", 0.1)]])
def test_a_config_that_is_not_a_mapping_is_an_error_that_names_what_is_expected(config: Any) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"config"),
        ml_diagnostics.instrument(JOB, config=config, stacks=False, hangs=False, monitor=False),
    ):
        pass


def test_a_generator_of_data_is_closed_with_its_loop() -> None:
    closed = []

    def data() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.append(True)

    with goodput_only() as job:
        for _ in job.steps(data()):
            break
        gc.collect()
    assert closed == [True]
