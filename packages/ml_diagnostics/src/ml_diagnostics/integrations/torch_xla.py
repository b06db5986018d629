"""PyTorch/XLA: the loop over a job's steps, with each step's graph compiled and started within the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ml_diagnostics import Job, current
from ml_diagnostics.integrations._training import requires

with requires("torch_xla", "torch-xla"):
    import torch_xla

__all__ = ["steps"]

_Batch = TypeVar("_Batch")


def steps(data: Iterable[_Batch], start: int = 0, job: Job | None = None) -> Iterator[tuple[int, _Batch]]:
    """Yield the batches with their step numbers, like `Job.steps`, and call `torch_xla.sync()` at the end of each step.

        with ml_diagnostics.instrument("digits") as job:
            for step, batch in steps(loader):
                job.log({"loss": train_step(batch)}, step=step)

    PyTorch/XLA collects the operations of a step, and compiles and starts them at a sync. A `MpDeviceLoader` syncs when
    it is asked for the next batch: the compilation would be data loading.

    Args:
        data: The batches.
        start: The number of the first step.
        job: The job; None for the one of the process.
    """
    for step, batch in (job or current()).steps(data, start):
        yield step, batch
        torch_xla.sync()
