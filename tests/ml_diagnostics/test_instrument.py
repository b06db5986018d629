from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_diagnostics
import pytest
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import ConfigurationError, MissingExtraError
from ml_diagnostics_common.progress import ProgressReader, page_of
from ml_diagnostics_common.reader import JournalReader
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

JOB = "digits"


def read(log_id: str) -> list[LogEntry]:
    reader = JournalReader(log_id, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]))
    return [entry for batch in reader.read_new() for entry in batch]


def entries(log_id: str) -> list[dict[str, Any]]:
    return [entry.payload for entry in read(log_id)]


def events() -> list[tuple[str, int | str]]:
    """Return the recorded events of goodput: their kinds, with the step or the name of an activity."""
    found: list[tuple[str, int | str]] = []
    for payload in entries(f"goodput_{JOB}"):
        kind = next(key for key in payload if key.endswith(("_time", "_ended")))
        if kind == "data_loading_start_time" and "step_end_count" in payload:
            found.append(("step_ended", payload["step_end_count"]))
            payload.pop("step_end_count")
        detail = payload.get("step_count", payload.get("step_end_count", payload.get("custom_badput_event_type", "")))
        found.append((kind.removesuffix("_time"), detail))
    return found


def loops() -> list[tuple[str, int | str]]:
    """Return the events of steps and phases, without the job's own start, preparation and end."""
    return [event for event in events() if not event[0].startswith(("job", "training_prep"))]


def logged(metric: str) -> list[tuple[float, int | None]]:
    found = [each.payload for each in read("ml_diagnostics_metric") if each.resource_label("namespace") == metric]
    return [(payload["values"][0], payload.get("step_index")) for payload in found]


def goodput_only() -> ml_diagnostics.Job:
    return ml_diagnostics.instrument(JOB, run=False, stacks=False, hangs=False, monitor=False)


def with_a_run() -> ml_diagnostics.Job:
    return ml_diagnostics.instrument(JOB, stacks=False, hangs=False, monitor=False)


PREPARATION = [("training_prep_start", ""), ("training_prep_end", "")]
LOAD = [("data_loading_start", ""), ("data_loading_end", "")]


def test_a_loop_records_its_steps_and_the_time_in_the_iterator_of_its_data() -> None:
    with goodput_only() as job:
        seen = list(job.steps("ab", start=7))
    assert seen == [(7, "a"), (8, "b")]
    loop = [*LOAD, ("step_start", 7), ("step_ended", 7), *LOAD, ("step_start", 8), ("step_ended", 8), *LOAD]
    assert events() == [("job_start", ""), *PREPARATION, *loop, ("job_end", "")]


def test_the_time_before_the_first_step_is_preparation_but_for_the_phases_in_it() -> None:
    with goodput_only() as job:
        with job.phase("data_loading"):
            pass
        with job.step(3):
            pass
        with job.phase("data_loading"):
            pass
        list(job.steps("a", start=4))
    steps = [("step_start", 3), ("step_ended", 3), *LOAD, *LOAD, ("step_start", 4), ("step_ended", 4), *LOAD]
    assert events() == [("job_start", ""), *PREPARATION, *LOAD, *PREPARATION, *steps, ("job_end", "")]


def test_a_job_without_a_step_is_preparation_but_for_its_phases() -> None:
    with pytest.raises(OSError, match="no data"), goodput_only() as job, job.phase("data_loading"):
        raise OSError("no data")
    assert events() == [("job_start", ""), *PREPARATION, *LOAD, *PREPARATION, ("job_end", "")]


def test_data_may_have_none_as_a_batch_and_no_batch_at_all() -> None:
    with goodput_only() as job:
        assert list(job.steps([None])) == [(0, None)]
        assert list(job.steps([])) == []


def test_loops_may_follow_each_other_and_go_back_to_an_earlier_step() -> None:
    with goodput_only() as job:
        list(job.steps("ab"))
        list(job.steps("c", start=2))
        list(job.steps("b", start=1))
    assert [detail for kind, detail in events() if kind == "step_start"] == [0, 1, 2, 1]


def test_steps_within_a_loop_over_steps_are_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with goodput_only() as job:
        for _ in job.steps("a"):
            assert list(job.steps("xyz")) == [(0, "x"), (1, "y"), (2, "z")]
        list(job.steps("b", start=1))
    assert [detail for kind, detail in events() if kind == "step_start"] == [0, 1]
    assert "only the steps of the outer loop are recorded" in caplog.text


def test_a_loop_that_is_left_half_way_records_the_start_of_its_last_step_and_the_next_loop_records() -> None:
    with goodput_only() as job:
        for _ in job.steps("ab"):
            break
        with contextlib.suppress(ZeroDivisionError):
            for _ in job.steps("ab", start=1):
                raise ZeroDivisionError
        list(job.steps("b", start=1))
    assert loops() == [
        *(*LOAD, ("step_start", 0)),
        *(*LOAD, ("step_start", 1)),
        *(*LOAD, ("step_start", 1), ("step_ended", 1), *LOAD),
    ]


def test_an_error_of_the_data_passes_after_the_end_of_its_loading() -> None:
    def data() -> Iterator[str]:
        yield "a"
        raise OSError("the file system is gone")

    with goodput_only() as job, pytest.raises(OSError, match="gone"):
        list(job.steps(data()))
    assert loops() == [*LOAD, ("step_start", 0), ("step_ended", 0), *LOAD]


def test_data_that_cannot_be_iterated_raises_the_error_of_python() -> None:
    with goodput_only() as job, pytest.raises(TypeError, match="not iterable"):
        list(job.steps(3))  # type: ignore[arg-type]
    with goodput_only() as job:
        assert list(job.steps("a")) == [(0, "a")]


def test_an_asynchronous_loop_records_the_same() -> None:
    async def data() -> AsyncIterator[str]:
        for batch in "ab":
            await asyncio.sleep(0)
            yield batch

    async def train(job: ml_diagnostics.Job) -> list[tuple[int, str]]:
        return [pair async for pair in job.steps(data(), start=7)]

    with goodput_only() as job:
        assert asyncio.run(train(job)) == [(7, "a"), (8, "b")]
    assert loops() == [
        *LOAD,
        *[("step_start", 7), ("step_ended", 7)],
        *LOAD,
        *[("step_start", 8), ("step_ended", 8)],
        *LOAD,
    ]


def test_phases_and_single_steps_are_blocks() -> None:
    with goodput_only() as job:
        with job.step(3):
            pass
        with job.phase("evaluation"):
            pass
        with job.phase("training_preparation"):
            pass
    evaluation = [("custom_badput_event_start", "evaluation"), ("custom_badput_event_end", "evaluation")]
    steps = [("step_start", 3), ("step_ended", 3)]
    assert events() == [("job_start", ""), *PREPARATION, *steps, *evaluation, *PREPARATION, ("job_end", "")]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("evaluation", "eval"),
        ("checkpoint_save", "checkpoint"),
        ("checkpoint_restore", "checkpoint"),
        ("plot", "other"),
    ],
)
def test_without_goodput_a_phase_is_reported_to_the_detection_of_hangs(name: str, phase: str) -> None:
    with ml_diagnostics.instrument(JOB, goodput=False, run=False, stacks=False, monitor=False) as job:
        page = page_of(os.getpid())
        assert page is not None
        progress = ProgressReader(page)
        with job.step(3):
            pass
        with job.phase(name):
            during = progress.read()
        after = progress.read()
        progress.close()
    assert during is not None
    assert after is not None
    assert [(each.phase, each.step) for each in (during, after)] == [(phase, 3), ("step", 3)]


_PROFILED = """
import sys
import jax, jax.numpy as jnp
import ml_diagnostics

step_of = jax.jit(lambda x: jnp.tanh(x @ x) / 8)
x = step_of(jnp.ones((64, 64)))
first, epoch, end, profiled = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), range(*map(int, sys.argv[4:6]))
options = dict(directory="out", stacks=False, hangs=False, monitor=False, profile_steps=profiled)
with ml_diagnostics.instrument("digits", **options) as job:
    for start in range(first, end, epoch):
        for step, _ in job.steps(range(epoch), start=start):
            x = step_of(x).block_until_ready()
"""


@pytest.mark.parametrize(
    ("first", "epoch", "end", "steps"),
    [(0, 20, 20, [10, 11, 12, 13]), (12, 10, 22, [12, 13]), (0, 12, 36, [10, 11, 12, 13])],
    ids=["whole", "after a restart", "over epochs"],
)
def test_a_profile_knows_its_steps_also_after_a_restart_and_over_epochs(
    tmp_path: Path, first: int, epoch: int, end: int, steps: list[int]
) -> None:
    pytest.importorskip("jax")
    shown = profiled(tmp_path, first, epoch, end)
    assert "profile_steps" not in shown.stderr
    (file,) = tmp_path.glob("out/profiles/**/*.xplane.pb")
    summary = subprocess.run(
        [str(Path(sys.executable).parent / "xprofiler"), "summary", str(file.parent), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [int(step["name"]) for step in json.loads(summary.stdout)["steps"]] == steps, summary.stderr


def test_a_job_without_any_step_to_profile_logs_one_warning(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    shown = profiled(tmp_path, 20, 3, 26)
    assert shown.stderr.count("profile_steps=range(10, 14): no profile was taken") == 1
    assert not list(tmp_path.glob("out/profiles/**/*.xplane.pb"))


def profiled(folder: Path, first: int, epoch: int, end: int) -> subprocess.CompletedProcess[str]:
    """Run a program that profiles its steps 10 to 13."""
    environment = {name: value for name, value in os.environ.items() if name != "ML_DIAGNOSTICS_RAISE"}
    command = [sys.executable, "-W", "ignore", "-c", _PROFILED, *map(str, (first, epoch, end, 10, 14))]
    done = subprocess.run(
        command, cwd=folder, env={**environment, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done


def test_profiled_steps_without_a_run_log_one_warning(in_production: None, caplog: pytest.LogCaptureFixture) -> None:
    with ml_diagnostics.instrument(
        JOB, run=False, stacks=False, hangs=False, monitor=False, profile_steps=range(3)
    ) as job:
        list(job.steps("ab"))
    assert caplog.text.count("no profile is taken, since this job has no run") == 1


def test_values_are_recorded_with_the_step_of_the_loop_or_the_given_one() -> None:
    import numpy as np

    with with_a_run() as job:
        job.log({"loss": 3.0})
        for step, _ in job.steps("ab", start=5):
            job.log({"loss": np.float32(0.5), "accuracy": step})
        job.log({"loss": 0.25}, step=9)
    assert logged("loss") == [(3.0, None), (0.5, 5), (0.5, 6), (0.25, 9)]
    assert logged("accuracy") == [(5, 5), (6, 6)]


def test_an_exception_ends_the_job_and_the_run_as_failed_and_passes() -> None:
    job = with_a_run()
    run = None
    with contextlib.suppress(ZeroDivisionError), job:
        run = job.run
        raise ZeroDivisionError("no rows")
    assert run is not None
    assert entries(f"goodput_{JOB}")[-1]["job_end_exception"] == "ZeroDivisionError"
    stored = Path(os.environ["ML_DIAGNOSTICS_DIR"], "runs", run.name, "run.json").read_text()
    assert "FAILED" in stored
    assert "no rows" in stored


def test_another_process_of_the_job_records_no_goodput(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    with ml_diagnostics.instrument(JOB, run=False, stacks=False, hangs=False) as job:
        assert list(job.steps("a")) == [(0, "a")]
    assert entries(f"goodput_{JOB}") == []


@pytest.mark.parametrize("name", ["", "  ", None, 3, "x" * 201])
def test_a_name_that_cannot_be_used_is_an_error_at_once(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected name"):
        ml_diagnostics.instrument(name)


@pytest.mark.parametrize("steps", [3, (1, 2), range(0, 10, 2)])
def test_profiled_steps_that_are_not_a_range_of_steps_are_an_error_at_once(steps: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"expected profile_steps such as range\(10, 15\)"):
        ml_diagnostics.instrument(JOB, profile_steps=steps)


def test_a_variable_switches_parts_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DISABLE", "run, Monitor,stacks,hangs")
    with ml_diagnostics.instrument(JOB) as job:
        assert (job.run, job.recorder is not None) == (None, True)
    monkeypatch.setenv("ML_DIAGNOSTICS_DISABLE", "all")
    with ml_diagnostics.instrument(JOB) as job:
        assert (job.run, job.recorder) == (None, None)
        assert list(job.steps("a")) == [(0, "a")]
        job.log({"loss": 1.0})
    monkeypatch.setenv("ML_DIAGNOSTICS_DISABLE", "goodputs")
    with pytest.raises(ConfigurationError, match="'goodputs'; expected 'all', or some of goodput"):
        ml_diagnostics.instrument(JOB)


def test_a_job_within_a_job_is_the_outer_one(caplog: pytest.LogCaptureFixture) -> None:
    with goodput_only() as job:
        with ml_diagnostics.instrument("inner") as inner:
            assert inner is job
        assert ml_diagnostics.current() is job
        with job.step(1):
            pass
    assert "instrument('inner') within the job 'digits'" in caplog.text
    assert loops() == [("step_start", 1), ("step_ended", 1)]


def test_code_deep_in_the_program_finds_the_job_and_one_that_records_nothing_where_there_is_none() -> None:
    with goodput_only() as job:
        assert ml_diagnostics.current() is job
    none = ml_diagnostics.current()
    assert list(none.steps("a", start=3)) == [(3, "a")]
    with none.phase("evaluation"), none.step(1):
        none.log({"loss": 1.0})
    assert loops() == []


def test_a_forked_worker_has_no_job() -> None:
    with goodput_only():
        child = os.fork()
        if child == 0:
            os._exit(7 if ml_diagnostics.current().recorder is None else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_library_that_is_not_installed_is_left_out_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "google_cloud_mldiagnostics" else find(name)
    )
    with ml_diagnostics.instrument(JOB, stacks=False, hangs=False, monitor=False) as job:
        job.log({"loss": 1.0})
        assert job.recorder is not None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "google-cloud-mldiagnostics is not installed, so this job has no run" in caplog.text


def test_a_part_that_fails_to_start_costs_only_itself(
    in_production: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import google_cloud_mldiagnostics

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(google_cloud_mldiagnostics, "machinelearning_run", fail)
    with with_a_run() as job:
        list(job.steps("a"))
        job.log({"loss": 1.0})
    assert ("step_start", 0) in events()
    assert "instrument: run could not start (OSError: no space left on device)" in caplog.text


def test_a_job_with_all_its_parts_is_found_by_its_name_in_all_reports(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import ml_diagnostics\n"
        "with ml_diagnostics.instrument('digits', config={'lr': 0.1}, directory='out') as job:\n"
        "    for step, batch in job.steps(range(20)):\n"
        "        job.log({'loss': 1 / (step + 1)})\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ML_DIAGNOSTICS_RAISE"}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    scripts = Path(sys.executable).parent
    for command, expected in (
        (["goodput", "report", JOB, "--format", "json"], '"last_step": 19'),
        (["mldiagnostics", "show", JOB], "COMPLETED"),
        (["tpu-stacks", "show", "--job", JOB], ""),
    ):
        shown = subprocess.run(
            [str(scripts / command[0]), *command[1:]], env=environment, capture_output=True, text=True, timeout=60
        )
        assert expected in shown.stdout, (command, shown)
    assert list(Path(tmp_path, "out", "tensorboard", JOB).glob("**/events.*"))


@pytest.mark.parametrize("is_served", [False, True])
def test_a_job_serves_its_profiler_only_on_request(is_served: bool) -> None:
    with ml_diagnostics.instrument(JOB, stacks=False, monitor=False, on_demand_xprof=is_served) as job:
        assert job.run.on_demand_xprof is is_served


@pytest.mark.parametrize("has_others", [True, False])
def test_fast_fail_is_on_only_on_request(has_others: bool) -> None:
    from cloud_tpu_diagnostics._collect import blocks

    for is_on in (False, True):
        with ml_diagnostics.instrument(
            JOB, run=False, monitor=False, stacks=has_others, hangs=has_others, fast_fail=is_on
        ):
            assert (blocks._current is not None) is (is_on or has_others)
            assert is_on is (blocks._current is not None and blocks._current.plan.fast_fail is not None)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows of a folder, by tag."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_has_what_is_logged_beside_the_goodput_over_restarts(tmp_path: Path) -> None:
    for first in (0, 2):
        with ml_diagnostics.instrument(JOB, directory=tmp_path, stacks=False, hangs=False) as job:
            for _ in job.steps("abcd"[first:], start=first):
                job.log({"loss": 1.0 + first, "lr": 0.5})
    folder = tmp_path / "tensorboard" / JOB
    assert sorted(path.name for path in folder.iterdir() if any(path.glob("events.*"))) == ["goodput", "metrics"]
    assert curves(folder / "metrics")["loss"] == [(0, 1.0), (1, 1.0), (2, 3.0), (3, 3.0)]
    assert curves(folder / "metrics")["lr"] == [(step, 0.5) for step in range(4)]
    assert "goodput/goodput" in curves(folder / "goodput")


@pytest.mark.parametrize("off", [{"monitor": False}, {"run": False}])
def test_without_the_monitor_or_the_run_no_metrics_are_in_tensorboard(tmp_path: Path, off: dict[str, Any]) -> None:
    with ml_diagnostics.instrument(JOB, directory=tmp_path, stacks=False, hangs=False, **off) as job:
        for _ in job.steps("ab"):
            job.log({"loss": 1.0})
    assert not (tmp_path / "tensorboard" / JOB / "metrics").exists()


def test_metrics_that_cannot_go_to_tensorboard_cost_only_that(
    in_production: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from google_cloud_mldiagnostics import metrics

    def fail(folder: str) -> None:
        raise MissingExtraError("TensorBoard in a bucket", "google-cloud-mldiagnostics", "gcs")

    monkeypatch.setattr(metrics, "to_tensorboard", fail)
    with ml_diagnostics.instrument(JOB, directory=tmp_path, stacks=False, hangs=False) as job:
        job.log({"loss": 1.0}, step=1)
    assert logged("loss") == [(1.0, 1)]
    assert "instrument: metrics could not be written to TensorBoard (MissingExtraError" in caplog.text


def test_importing_the_package_imports_no_library() -> None:
    code = "import sys, ml_diagnostics; print([name for name in sys.modules if 'ml_' in name or 'google' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['ml_diagnostics._version', 'ml_diagnostics']\n"


def test_an_exception_that_a_hook_reports_keeps_the_frames_of_the_program() -> None:
    from .integrations.frameworks import hook

    def read_file(name: str) -> str:
        raise OSError(f"{name} is gone")

    context = SimpleNamespace(train_steps=0, iter_steps=0, config=SimpleNamespace(max_steps=None))
    with hook("tunix", "tunix.sft.hooks", TrainingHooks=object, DataHooks=object) as tunix, goodput_only():
        hooks = tunix.DiagnosticsHooks(JOB)
        hooks.on_train_start(context)
        data = tunix.DiagnosticsDataHooks(hooks, map(read_file, ["a"]))
        with pytest.raises(OSError, match="gone") as raised:
            data.load_next_train_batch(context)
    assert raised.traceback[-1].name == "read_file"


def test_a_notebook_shows_the_report_of_a_job_and_its_name_where_there_is_none() -> None:
    with goodput_only() as job:
        list(job.steps("ab"))
        assert "<svg" in job._repr_html_()
        assert str(job.report()).startswith(f"{JOB}: ")
        assert repr(job) == "<Job 'digits': goodput>"
    assert repr(job) == "<Job 'digits': ended>"
    assert "<svg" in job._repr_html_()
    assert ml_diagnostics.current()._repr_html_() == "<pre>&lt;Job &#x27;&#x27;: not recorded&gt;</pre>"
