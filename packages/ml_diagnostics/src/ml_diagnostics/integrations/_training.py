"""Training: what the hooks of a framework report, recorded in the job of the process or in one of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import guarded

from ml_diagnostics import Job, current, instrument

__all__ = ["Training", "record_configs", "requires"]


class Training:
    """A training that a framework runs, as its hooks report it: one activity at a time.

    If the process is instrumented, its job records. If not, a job starts with the training and ends with it.

    No call but `start` raises. Call them from one thread, except `log`.
    """

    def __init__(self, name: str | None, options: Mapping[str, Any]) -> None:
        """Start nothing.

        Args:
            name: The name of the job, if the process is not instrumented.
            options: Further arguments of `instrument`.

        Raises:
            ConfigurationError: An argument is not valid.
        """
        self._name = name
        self._options = dict(options)
        self._owned: Job | None = None
        self._activity: AbstractContextManager[None] | None = None
        self._is_loading = False
        if name is not None:
            instrument(name, **self._options)  # Checks the arguments; `start` knows the index of this process.

    @property
    def job(self) -> Job:
        """The job that records; one that records nothing, if there is none."""
        return self._owned or current()

    def start(self, config: Mapping[str, Any] | None = None) -> None:
        """Start the training, and a job for it unless the process is instrumented.

        Args:
            config: The framework's configs, recorded unless the user passed some.

        Raises:
            ConfigurationError: There is no job, and no name for one.
        """
        if self._owned is not None:
            self._end_abandoned()
        self._activity, self._is_loading = None, False  # Left by an exception in the user's job: its end is not known.
        if current().name:
            return
        if self._name is None:
            raise ConfigurationError(
                "this process is not instrumented: pass the name of a job, such as 'digits', or train within "
                "ml_diagnostics.instrument('digits')"
            )
        job = instrument(self._name, **{"config": config, **self._options})
        job.__enter__()
        self._owned = job

    def end(self, error: BaseException | None = None) -> None:
        """End the training, and the job that was started for it.

        Args:
            error: The exception that ends the training, while it is handled.
        """
        self.pause(error)
        job, self._owned = self._owned, None
        if job is not None:
            job.__exit__(*_raised(error))

    def step(self, step: int) -> None:
        """Record that the activity before ends, and a step starts."""
        self._enter(self.job.step(step))

    def load(self) -> None:
        """Record that the activity before ends, and the loading of a batch starts."""
        self.phase("data_loading")
        self._is_loading = True

    def phase(self, name: str, step: int | None = None) -> None:
        """Record that the activity before ends, and another one starts that is not a step; see `Job.phase`."""
        self._enter(self.job.phase(name, step))

    def pause(self, error: BaseException | None = None) -> None:
        """Record that the activity ends, and none starts; of a step that ends by an exception, nothing is recorded."""
        activity, self._activity, self._is_loading = self._activity, None, False
        if activity is not None:
            activity.__exit__(*_raised(error))

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return a function that records each call of another one as a phase, in which a load pauses."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_loading = self._is_loading
            self.phase(phase)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self.pause(error)  # A save that fails is not recorded as one.
                raise
            if is_loading:
                self.load()
            else:
                self.pause()
            return result

        return call

    def log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Record the numbers among the values of metrics."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, (str, bytes, dict, bool))}
        self.job.log(numbers, step=step)

    def _enter(self, activity: AbstractContextManager[None]) -> None:
        self.pause()
        activity.__enter__()
        self._activity = activity

    def _end_abandoned(self) -> None:
        """End the job of a training that was left by an exception, which the framework did not report."""
        try:
            raise RuntimeError("the training was left by an exception")
        except RuntimeError as error:
            self.end(error)


def _raised(
    error: BaseException | None,
) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
    """Return what a `with` block receives that an exception leaves; with its frames, which belong to the user."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@guarded
def record_configs(configs: Mapping[str, Any]) -> None:
    """Add configs to the run of the process's job, if there is one."""
    run = current().run
    if run is not None:
        run.configs.update(dict(configs))


@contextmanager
def requires(package: str, distribution: str | None = None) -> Iterator[None]:
    """Return the block in which a hook imports its framework; raise one error if it is not installed.

    Args:
        package: The package that the block imports.
        distribution: The distribution that it is installed from, if it has another name.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or package.split(".")[0] != error.name.split(".")[0]:
            raise  # The framework is installed, and cannot be imported.
        distribution = distribution or package
        raise ModuleNotFoundError(
            f"this integration needs {distribution}, which is not installed: pip install {distribution}", name=package
        ) from None
