"""instrument() and the job that it returns: the calls of a training loop."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ml_diagnostics_common.environment import announce_job, diagnostics_directory, identity
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError
from ml_diagnostics_common.guard import report_loss, warn_once
from ml_diagnostics_common.process_hooks import at_fork

from ml_diagnostics._inference import startup
from ml_diagnostics._inference.job_events import JobEvents
from ml_diagnostics._parts import END_ORDER, Plan, blocks_of, checked_job_name, enabled_parts, installed_parts
from ml_diagnostics._preparation import Preparation
from ml_diagnostics._profiled_steps import ProfiledSteps
from ml_diagnostics._steps import NO_STEPS, Heartbeats, StepRecorder, Steps, StepsRecord

if TYPE_CHECKING:
    from ml_goodput_measurement.report import Report

__all__ = ["Job", "current", "instrument"]

_Batch = TypeVar("_Batch")

# State of the process: the job that is instrumented.
_current: Job | None = None


def instrument(
    name: str,
    *,
    config: Mapping[str, Any] | Any | None = None,
    group: str = "",
    directory: str | os.PathLike[str] | None = None,
    goodput: bool | None = None,
    run: bool | None = None,
    stacks: bool | None = None,
    hangs: bool | None = None,
    monitor: bool | None = None,
    profile_steps: range | None = None,
    on_demand_xprof: bool = False,
    fast_fail: bool = False,
) -> Job:
    """Return a job that is recorded from the start to the end of its `with` block. Use it on every process.

        with ml_diagnostics.instrument("digits", config={"lr": 1e-3}) as job:
            for step, batch in job.steps(data):
                state, loss = train_step(state, batch)
                job.log({"loss": loss}, step=step)

    Its parts are on unless they are switched off here, or listed in ML_DIAGNOSTICS_DISABLE; those of a library that is
    not installed are left out, with one warning. In a process that has a job already, the block uses that
    job. With several processes, enter it after `jax.distributed.initialize` or `torch.distributed.init_process_group`,
    unless the environment has their index, as with Slurm, torchrun and Kubernetes.

    Args:
        name: The name of the job in all reports; the same after a restart, another one for another job.
        config: The configs to record: a mapping, nested or not, or a dataclass. Secrets are redacted.
        group: The group of runs that it belongs to, such as a sweep.
        directory: The destination of profiles and TensorBoard's files: a folder, or `gs://bucket/folder`. None is the
            folder of ML_DIAGNOSTICS_DIR.
        goodput: False to leave out where the time goes.
        run: False to leave out the run: configs, metrics, system metrics and profiles.
        stacks: False to leave out stack traces on crashes and on SIGUSR1.
        hangs: False to leave out the detection of hangs.
        monitor: False to leave out TensorBoard: goodput, and what is logged.
        profile_steps: The steps to profile, such as `range(10, 15)`, or those of them that this attempt has; None for
            none.
        on_demand_xprof: True to let `mldiagnostics profile NAME` profile the job while it runs. The framework's server
            for that listens on all interfaces without authentication.
        fast_fail: True to end all processes of the job at once when one of them fails: JAX waits for minutes.

    Raises:
        ConfigurationError: An argument, or an environment variable, is not valid.
    """
    name = checked_job_name(name)
    if profile_steps is not None and (not isinstance(profile_steps, range) or profile_steps.step != 1):
        raise ConfigurationError(f"expected profile_steps such as range(10, 15), got {profile_steps!r:.100}")
    position = identity()
    plan = Plan(
        name=name,
        config=config,
        group=group,
        directory=str(diagnostics_directory() if directory is None else os.fspath(directory)).rstrip("/"),
        is_recording=position.process_index == 0,
        on_demand_xprof=on_demand_xprof,
        fast_fail=fast_fail,
    )
    given = {"goodput": goodput, "run": run, "stacks": stacks, "hangs": hangs, "monitor": monitor}
    return Job(plan, enabled_parts(given), profile_steps)


def current() -> Job:
    """Return the job of this process; one that records nothing if none is instrumented, as in a data loader's worker.

    Code deep in a program uses it to log and to mark phases without an argument.
    """
    return _NOT_INSTRUMENTED if _current is None else _current


def _forget_in_child() -> None:
    """Leave a forked child without a job: it would record its parent's steps again."""
    global _current
    job, _current = _current, None
    if job is not None:
        job._forget()


at_fork(_forget_in_child)


class Job(AbstractContextManager["Job"]):
    """An instrumented job; see `instrument`. No call but entering it raises, and none waits for a device or a network.

    Attributes:
        name: The name of the job, its run and its logs.
        recorder: Goodput's recorder, for calls that the job does not have; None without that part.
        run: The run; None without that part.
        directory: The destination of profiles and TensorBoard's files.
    """

    def __init__(self, plan: Plan, parts: list[str], profile_steps: range | None = None) -> None:
        """Start nothing; `instrument` makes jobs."""
        self.name = plan.name
        self.directory = plan.directory
        self.recorder: Any = None
        self.run: Any = None
        self._plan = plan
        self._parts = parts
        self._profile_steps = profile_steps
        self._blocks: dict[str, AbstractContextManager[Any]] = {}
        self._parents_blocks: list[AbstractContextManager[Any]] = []
        self._inner_count = 0
        self._state = "not recorded"
        self._steps = NO_STEPS
        self._record: Callable[..., None] | None = None
        self._events: JobEvents | None = None

    def __enter__(self) -> Job:
        """Start the job's parts, or return the job that this process is instrumented with already."""
        global _current
        if _current is self:
            self._inner_count += 1
            return self
        outer = current()
        if outer is not _NOT_INSTRUMENTED:
            warn_once(
                ("nested", self.name),
                "instrument(%r) within the job %r: the block uses that job. Leave it first to start another one.",
                self.name,
                outer.name,
            )
            return outer
        if "goodput" in self._parts:
            startup.stop(self.name)
        announce_job(self.name)
        _current = self
        try:
            self._start()
        except BaseException:
            self._end(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the job's parts, as failed if an exception leaves the outermost block; the exception passes."""
        if _current is not self:
            return
        if self._inner_count:
            self._inner_count -= 1
        else:
            self._end(kind, error, traceback)

    def steps(self, data: Iterable[_Batch] | AsyncIterable[_Batch], start: int = 0) -> Steps[_Batch]:
        """Return the batches with their step numbers, for a `for` or an `async for` loop; record each step.

        The time in the iterator of `data` is data loading, all other time of the loop belongs to the step. While a
        value of the step that was passed to `log` is still computed on a device, the step goes on, too. In a program
        that JAX compiles, or in which PyTorch uses CUDA or XLA, a step that logs nothing lasts to the next one, with
        the data loading between both. So does a step that logs a tensor of CUDA or XLA: whether it is ready is known
        only to those who wait for it. Log `loss.item()` there, or the loads that training waits for are not separate.

        Of a step that ends by an exception, only the start is recorded. Steps within a loop over steps are not
        recorded.

        Args:
            data: The batches: any iterable.
            start: The number of the first step; after a restart, the first one that was not saved.
        """
        return Steps(self._steps, data, start)

    def step(self, step: int) -> AbstractContextManager[None]:
        """Return a block that records one step, for loops that `steps` does not fit."""
        return _StepBlock(self._steps, step)

    def phase(self, name: str, step: int | None = None) -> AbstractContextManager[None]:
        """Return a block that records an activity that is not a step.

        Args:
            name: See `GoodputRecorder.phase`: `checkpoint_save`, `data_loading`, `evaluation`, or a name of your own.
            step: The step that is saved or restored; None for the last one.
        """
        return self._steps.phase(name, step)

    def log(self, metrics: Mapping[Any, Any], step: int | None = None) -> None:
        """Record values of metrics. Values on a device are recorded when they are ready.

        Args:
            metrics: Numbers of Python, numpy, JAX or PyTorch, by name.
            step: The step; None for the one that the loop over `steps` is in.
        """
        steps = self._steps
        if steps.recorder is not None and isinstance(metrics, Mapping):
            steps.note_values(metrics)
        if self._record is not None:
            at = steps.step if step is None else step
            if isinstance(metrics, dict):  # One call for each value is quicker than one for all.
                for name, value in metrics.items():
                    self._record(name, value, at)
            else:
                self._record(metrics, step=at)

    def report(self) -> Report:
        """Return how the job has spent its time so far; a notebook shows it with its timeline.

        Raises:
            ImportError: ml-goodput-measurement is not installed.
            DiagnosticsError: Nothing was recorded: that part is off, or this is not the job's first process.
        """
        from ml_goodput_measurement.report import report

        return report(self.name)

    def __repr__(self) -> str:
        return f"<Job {self.name!r}: {', '.join(self._blocks) or self._state}>"

    def _repr_html_(self) -> str:
        """Return the report as HTML, for notebooks; the text of `repr` while there is none."""
        from html import escape

        try:
            return self.report()._repr_html_()
        except (ImportError, DiagnosticsError):
            return f"<pre>{escape(repr(self))}</pre>"

    def _forget(self) -> None:
        """Record nothing further in a forked child."""
        self._steps.forget()
        # Kept: a block that is collected could end what the parent goes on with.
        self._parents_blocks += self._blocks.values()
        self._reset()

    def _reset(self) -> None:
        self._blocks, self._events, self._inner_count = {}, None, 0
        self._steps, self.recorder, self.run, self._record = NO_STEPS, None, None, None

    def _start(self) -> None:
        preparation = Preparation()
        parts = installed_parts(self._parts, is_quiet=not self._plan.is_recording)
        for name, make in blocks_of(self._plan, parts):
            try:
                block = make()
                entered = block.__enter__()
            except DiagnosticsError:
                raise  # Of an argument, or a variable, that is not valid.
            except Exception as error:
                report_loss(f"instrument: {name}", error, "start")
                continue
            self._blocks[name] = block
            if name == "goodput":
                self.recorder = entered
                preparation = Preparation(entered)
            elif name == "run":
                from google_cloud_mldiagnostics.metrics import record

                self.run, self._record = entered, record
        self._steps = StepsRecord(self._step_recorder(), preparation, self._profiled_steps())
        if self.recorder is not None and self._plan.is_recording:
            self._events = JobEvents(self.recorder, self._steps)
            self._events.open()

    def _step_recorder(self) -> StepRecorder | None:
        if self.recorder is None and "diagnose" in self._blocks:
            from cloud_tpu_diagnostics.diagnostic import heartbeat

            return Heartbeats(heartbeat)
        return cast("StepRecorder | None", self.recorder)

    def _profiled_steps(self) -> ProfiledSteps | None:
        if self._profile_steps is None:
            return None
        if self.run is None:
            warn_once(
                ("profile_steps", "no run"),
                "profile_steps=%r: no profile is taken, since this job has no run.",
                self._profile_steps,
            )
            return None
        return ProfiledSteps(self._profile_steps, _profile)

    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with ExitStack() as ending:  # Calls each of these, in reverse, and then raises the interrupt of one of them.
            ending.callback(self._leave)
            for name in reversed(END_ORDER):
                ending.callback(self._end_block, name, kind, error, traceback)
            if self._events is not None:
                ending.callback(self._events.close)
            ending.callback(self._steps.stop)

    def _end_block(
        self,
        name: str,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._blocks.pop(name, None)
        try:
            if block is not None:
                block.__exit__(kind, error, traceback)
        except Exception as ours:
            report_loss(f"instrument: {name}", ours, "end")

    def _leave(self) -> None:
        global _current
        self._reset()
        self._state = "ended"
        _current = None


class _StepBlock(AbstractContextManager[None]):
    """Record one step; of a step that raises an exception, only the start."""

    def __init__(self, steps: StepsRecord, step: int) -> None:
        self._steps = steps
        self._step = step

    def __enter__(self) -> None:
        self._steps.start(self._step)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._steps.end()


def _profile() -> AbstractContextManager[Any]:
    from google_cloud_mldiagnostics import xprof

    return xprof()


_NOT_INSTRUMENTED = Job(Plan("", None, "", "", is_recording=False), [])
