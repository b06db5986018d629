"""Worker processes for independent tasks; if one dies, its task is tried once more, and the others go on."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from ml_diagnostics_common.exceptions import DiagnosticsError

__all__ = ["Failed", "run_tasks"]

_TRIES: Final = 2
_STARTS: Final = 3
"""If so many workers end before they have started, none will."""
_JOIN_SECONDS: Final = 5.0
_GUARD: Final = 'a script has to call this below `if __name__ == "__main__":`, for each worker imports it'


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that ended its worker each time.

    Attributes:
        task: The task.
        reason: The end of the last worker.
    """

    task: Any
    reason: str


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    has_started: bool = False
    task: int | None = None
    """Index of the task that it has."""


def run_tasks(
    function: Callable[[Any], Any], tasks: Sequence[Any], processes: int
) -> Iterator[tuple[Any, Any | Failed]]:
    """Yield each task and its result, in the order in which they are done.

    Args:
        function: A function of a module, for a task; it must not raise.
        tasks: In the order in which they are started; they and the results can be pickled.
        processes: The number of worker processes.

    Raises:
        DiagnosticsError: The function raised it.
        RuntimeError: The function raised another exception, or workers cannot start.
    """
    waiting = deque(range(len(tasks)))
    tries = [0] * len(tasks)
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    open_tasks, starts = len(tasks), _STARTS
    try:
        while open_tasks:
            while waiting and len(workers) < processes:
                workers.append(_started(context, function))
            for worker in workers:
                if worker.has_started and worker.task is None and waiting:
                    worker.task = waiting.popleft()
                    tries[worker.task] += 1
                    with contextlib.suppress(OSError):  # It died before: that is noticed below.
                        worker.connection.send(tasks[worker.task])
            ready = wait([worker.connection for worker in workers])
            for worker in [worker for worker in workers if worker.connection in ready]:
                index = worker.task
                try:
                    kind, result = worker.connection.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    reason = _end_of(worker.process)
                    if not worker.has_started:
                        starts -= 1
                        if not starts:
                            raise RuntimeError(f"worker processes cannot start: {reason}; {_GUARD}") from None
                    if index is None:
                        continue
                    if tries[index] < _TRIES:
                        waiting.appendleft(index)
                        continue
                    kind, result = "result", Failed(tasks[index], reason)
                if kind == "started":
                    worker.has_started = True
                    continue
                if kind == "error":
                    raise result if isinstance(result, DiagnosticsError) else RuntimeError(result)
                worker.task = None
                open_tasks -= 1
                assert index is not None
                yield tasks[index], result
    finally:
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            if worker.task is not None:
                worker.process.terminate()
            worker.process.join(_JOIN_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _started(context: Any, function: Callable[[Any], Any]) -> _Worker:
    mine, theirs = context.Pipe()
    process = context.Process(target=_work, args=(function, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, mine)


def _end_of(process: BaseProcess) -> str:
    process.join(_JOIN_SECONDS)
    code = process.exitcode
    if code is None:
        return "its worker closed its connection"
    if code >= 0:
        return f"its worker exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"its worker was ended by {signal.Signals(-code).name}"
    return f"its worker was ended by signal {-code}"


def _work(function: Callable[[Any], Any], connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent gets Ctrl-C, and ends its workers.
    with contextlib.suppress(EOFError, OSError):
        connection.send(("started", None))
        while True:
            task = connection.recv()
            try:
                answer = "result", function(task)
            except Exception as error:
                is_ours = isinstance(error, DiagnosticsError)
                answer = "error", error if is_ours else f"{type(error).__name__}: {error}"
            connection.send(answer)
