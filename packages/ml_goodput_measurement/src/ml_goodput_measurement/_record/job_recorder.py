"""Recorder: a recorder that is the `with` block around a job."""

from __future__ import annotations

from types import TracebackType

from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.guard import guarded

from ml_goodput_measurement._record.arguments import checked_name
from ml_goodput_measurement._record.recorder import CloudLogger, GoodputRecorder

__all__ = ["Recorder"]


class Recorder(GoodputRecorder):
    """Record a job from the start to the end of a `with` block.

        with goodput.Recorder("digits") as recorder:
            with recorder.phase("training_preparation"):
                state = restore_or_initialize()
            for step in range(first, 1_000):
                with recorder.step(step):
                    state = train_step(state, next(batches))

    An exception that leaves the block is recorded with the job's end, and passes through unchanged.
    """

    def __init__(
        self,
        job_name: str,
        *,
        logger_name: str | None = None,
        logging_enabled: bool | None = None,
        cloud_logger: CloudLogger | None = None,
        expected_processes: int | None = None,
        planned_steps: int | None = None,
    ) -> None:
        """Open nothing, and wait for nothing.

        Args:
            job_name: The job, the same in all its attempts and on all its hosts.
            logger_name: The log; None for `goodput_<job_name>`, which `goodput report` finds by the job's name.
            logging_enabled: None records on the first process of the job only: one recorder is enough.
            cloud_logger: See `GoodputRecorder`.
            expected_processes: The number of processes of the job; None if only JAX or the launcher knows it.
            planned_steps: The number of steps of the job; None if it is not known.

        Raises:
            ConfigurationError: An argument, or ML_DIAGNOSTICS_BACKEND, is not valid.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        name = checked_name("job_name", job_name)
        super().__init__(
            name,
            f"goodput_{name}" if logger_name is None else logger_name,
            identity().process_index == 0 if logging_enabled is None else logging_enabled,
            cloud_logger,
            expected_processes=expected_processes,
            planned_steps=planned_steps,
        )

    def __enter__(self) -> Recorder:
        self.record_job_start_time()
        return self

    @guarded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._record_job_end(None, error)


# Pickles contain the public name.
Recorder.__module__ = "ml_goodput_measurement.goodput"
