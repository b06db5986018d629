"""The doctor in a process of its own: it judges runs of one diagnostics folder, and keeps their facts.

The facts of a wide run need several times the memory of the page, and their rules keep Python's lock. The server writes
a line of JSON for each question to the process's standard input, and reads a line for each answer from its standard
output. The process ends when its standard input does, however the server ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final

import msgspec
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.processes import read_system_file, wait_readable
from ml_diagnostics_common.sidecar import child_environment, python_argv
from ml_diagnostics_common.sidecar_parent import lower_priority, take_stdout

from ml_diagnostics_console._web.answers import json_answer
from ml_diagnostics_console._web.verdict_answer import Judged, judged, not_judged

if TYPE_CHECKING:
    from ml_diagnostics_console._facts.reading import JobReader

__all__ = ["DoctorLostError", "DoctorProcess", "main"]

_logger = logging.getLogger(__name__)

_MOST_BYTES: Final = 2**30
"""A process that has grown beyond this is replaced after its answer."""
_DEADLINE_SECONDS: Final = 600.0
"""The first verdict on a journal of millions of entries takes tens of seconds; a network folder may hang for ever."""
_END_SECONDS: Final = 2.0
_PART_BYTES: Final = 65_536
_READERS: Final = 4
"""The readers that are kept, so that a run that is asked about again costs only what is new."""


class DoctorLostError(Exception):
    """The process could not be started, has ended, or does not answer; the message is a clause for the user."""


class _Question(msgspec.Struct):
    """A question to the process, on a run; also for the doctor's part of its case file."""

    run: str
    is_for_file: bool = False


class _Answer(msgspec.Struct):
    """An answer of the process, and its memory after it."""

    judged: Judged
    memory_bytes: int


class DoctorProcess:
    """Judges runs in another process, which is started for the first question, and again if it was lost.

    Args:
        root: The diagnostics folder.
        argv: The command line of the process; None runs `main` of this module.
        most_bytes: The process is ended after an answer if it uses more memory than this.
        deadline_seconds: The process is ended if an answer takes longer.
    """

    def __init__(
        self,
        root: Path,
        *,
        argv: Sequence[str] | None = None,
        most_bytes: int = _MOST_BYTES,
        deadline_seconds: float = _DEADLINE_SECONDS,
    ) -> None:
        self._root, self._argv = root.absolute(), argv
        self._most_bytes, self._deadline_seconds = most_bytes, deadline_seconds
        self._lock = threading.Lock()  # Held to start and to end the process, not while it works.
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def judge(self, run_id: str, *, is_for_file: bool = False) -> Judged:
        """Return the verdict on a run as it is now; one thread at a time.

        Args:
            run_id: The run.
            is_for_file: True to have the doctor's part of a case file, too.

        Raises:
            DoctorLostError: There is no answer.
        """
        process = self._running()
        answer = self._answer(process, _Question(run_id, is_for_file))
        if answer.memory_bytes > self._most_bytes:
            self.end()
        return answer.judged

    def end(self) -> None:
        """End the process, also while it works; callable from any thread."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return self._process
            if self._process is not None:  # It has ended while nothing was asked.
                _end(self._process)
            environment = {**child_environment(), "ML_DIAGNOSTICS_DIR": str(self._root)}
            try:
                self._process = subprocess.Popen(
                    self._argv or python_argv(__name__),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for the server, which ends it.
                )
            except OSError as error:
                self._process = None
                raise DoctorLostError(f"its process cannot be started: {error.strerror or error}") from error
            return self._process

    def _answer(self, process: subprocess.Popen[bytes], question: _Question) -> _Answer:
        assert process.stdin is not None, "it was started with pipes"
        assert process.stdout is not None, "it was started with pipes"
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
            return msgspec.json.decode(_line(process.stdout, self._deadline_seconds), type=_Answer)
        except TimeoutError:
            self.end()
            raise DoctorLostError(f"it took longer than {self._deadline_seconds:,.0f} s") from None
        except (OSError, ValueError, msgspec.DecodeError) as error:  # Its pipes are closed, or it was cut off.
            reason = _exit_reason(process)
            self.end()
            raise DoctorLostError(f"its process {reason}") from error


def _line(pipe: IO[bytes], timeout_seconds: float) -> bytes:
    """Return the next line of a process, which may be stopped, or hang, in the middle of it.

    Raises:
        TimeoutError: It did not end in time.
    """
    assert isinstance(pipe, BufferedReader), "it was started with buffered pipes"
    deadline, line = time.monotonic() + timeout_seconds, bytearray()
    while not line.endswith(b"\n"):
        if not wait_readable([pipe.fileno()], deadline - time.monotonic()):
            raise TimeoutError
        part = pipe.read1(_PART_BYTES)
        if not part:
            break
        line += part
    return bytes(line)


def _exit_reason(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return "does not answer"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process at once, with the programs that it has started: they only read."""
    if process.poll() is None:  # Else its number may be that of another group.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # A question that it did not read.
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # A process that waits for a disk ends later.
        process.wait(_END_SECONDS)


# --- In the process -----------------------------------------------------------------------------------


def main() -> None:
    """Answer questions until standard input ends, in the process."""
    lower_priority()  # The page, and the job, have precedence.
    messages = take_stdout()
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, questions), daemon=True).start()
    readers: dict[str, JobReader] = {}
    while True:
        question = msgspec.json.decode(questions.get(), type=_Question)
        found = _judged(question, readers)
        known = {"answer": found.answer, "evidence": found.evidence, "reports": found.reports}
        # Names of hosts may not be valid text.
        with contextlib.suppress(BrokenPipeError):  # The server has ended: see `_receive`.
            messages.write(json_answer({"judged": known, "memory_bytes": _memory_bytes()}).body + b"\n")
            messages.flush()


def _receive(source: BinaryIO, questions: queue.SimpleQueue[bytes]) -> None:
    """Pass on the lines of questions; after the last one, end the process and the programs that it has started."""
    for line in source:
        questions.put(line)
    if os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _judged(question: _Question, readers: dict[str, JobReader]) -> Judged:
    from ml_diagnostics_console.doctor import judge

    try:
        reader = _reader(question.run, readers)
        if question.is_for_file:
            from ml_diagnostics_console._web.case_report import encoded_reports, zipped

            last, encoded = encoded_reports(reader)
            return judged(last, zipped(encoded))
        return judged(judge(reader.read()))
    except Exception as error:  # A page without a verdict is better than none.
        readers.pop(question.run, None)
        is_expected = isinstance(error, DiagnosticsError)  # As that the run was deleted meanwhile.
        _logger.warning("no verdict on %s: %s", question.run, error, exc_info=not is_expected)
        return not_judged(f"{type(error).__name__}: {error}")


def _reader(run_id: str, readers: dict[str, JobReader]) -> JobReader:
    """Return the reader of a run: it reads only what is new since it was used last."""
    from ml_diagnostics_console._facts.reading import JobReader, Question

    reader = readers.pop(run_id, None) or JobReader(Question(run_id, kubernetes="off"), _ignore)
    readers[run_id] = reader
    while len(readers) > _READERS:
        del readers[next(iter(readers))]
    return reader


def _ignore(note: str) -> None:
    """The page has the same notes from its store."""


def _memory_bytes() -> int:
    """Return the memory that this process uses; where the system does not show it, the most that it has used."""
    try:
        return int(read_system_file("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
