"""The companion, as the job sees it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloud_tpu_diagnostics.companion.settings import CompanionSettings

if TYPE_CHECKING:
    from ml_diagnostics_common.descriptors import Descriptor

__all__ = ["RUN_BY", "CompanionProcess", "CompanionSettings"]

RUN_BY: Final = "ML_DIAGNOSTICS_RUN_BY"
"""Environment variable: the process that started the job and says how it ended, so that the companion does not."""

_TIMER_PIPE_BYTES = 2**20
"""A dump of 100 threads takes 155 KB. What does not fit, because the companion is stopped, is lost."""
_MOST_UNSENT_BYTES = 4 * 2**20
_READ_BYTES = 2**16
_LOOK_SECONDS = 1.0
"""How often a companion that says nothing is looked for, and our descriptors."""


class CompanionProcess:
    """Starts a companion and speaks with it.

    Nothing but the constructor ever raises, and nothing waits. The companion is no child of the job for longer than it
    takes Python to start: a job that waits for all its children must not wait for one that waits for the job.
    """

    def __init__(
        self,
        settings: CompanionSettings,
        on_message: Callable[[dict[str, Any]], None],
        *,
        console: int = 2,
        requests: Mapping[str, int] | None = None,
    ) -> None:
        """Starts it; returns within milliseconds, before it runs.

        Args:
            settings: What it is told.
            on_message: Called in a thread of ours with each message of the companion, and at last with
                {"kind": "ended"}, once it has gone or cannot be heard any more. What it raises is dropped.
            console: The descriptor that dumps are written to if the settings have no path.
            requests: Descriptors that unanswered requests for stack traces are seen by, by name.

        Raises:
            OSError: It cannot be started.
        """
        self._owner = os.getpid()
        self._on_message = on_message
        self.pid: int | None = None
        """Known once it runs."""
        self._lock = threading.RLock()  # A signal handler may interrupt its own thread in here.
        self._unsent = bytearray()
        self._is_over = False
        self._labels = _labels(self._owner)  # As they were told last.
        hello = {
            "settings": settings.to_json(),
            "trace_bytes": _size(settings.trace_path),
            "labels": self._labels,
            "is_ending_told": _is_ending_told(),
        }
        # Our reading end stays open: with no reader, a write of the timer would be a SIGPIPE.
        self._timer_read, self._timer_write = _timer_pipe()
        try:
            descriptors = self._launch_with(console if settings.trace_path is None else None, requests or {})
            self._start_listening()
        except Exception as error:
            self._close_timer_pipe()
            raise error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}") from error
        self._send({**hello, "descriptors": descriptors})

    def _launch_with(self, console: int | None, requests: Mapping[str, int]) -> dict[str, int]:
        """Starts it with the descriptors that it is to have, and returns their numbers by name."""
        from ml_diagnostics_common.child_process import start_detached
        from ml_diagnostics_common.descriptors import channels

        job, console = _descriptor_of_this_process(), _copy(console)
        numbers = {"timer": self._timer_read.number(), "job": job, "console": console, **requests}
        inherited = {name: number for name, number in numbers.items() if number is not None}
        try:
            with channels() as (self._to_companion, its_stdin, self._from_companion, its_stdout):
                self._launcher = start_detached(
                    "cloud_tpu_diagnostics.companion.main",
                    inherited.values(),
                    stdin=its_stdin,
                    stdout=its_stdout,
                    variables={"ML_DIAGNOSTICS_COMPANION": "1"},
                )
        finally:
            for number in (job, console):
                if number is not None:
                    os.close(number)
        return inherited

    @property
    def timer_descriptor(self) -> int:
        """The end of a pipe that faulthandler's timer may write to; it never blocks.

        Raises:
            OSError: The job has closed it.
        """
        number = self._timer_write.number()
        if number is None:
            raise OSError("the job has closed the pipe to its companion")
        return number

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends it a message, as soon as it reads; never waits, and never raises."""
        try:
            if os.getpid() == self._owner:
                self._send(message)
        except Exception:
            pass  # What JSON does not have, or no memory: it is the companion that knows less.

    def leave(self, how: str, exception: str | None = None, exit_code: int | None = None) -> None:
        """Tells it how the block was left, upon which it ends by itself. The timer must be cancelled before.

        Args:
            how: "clean" or "exception".
            exception: The exception's type, if there was one.
            exit_code: Of a SystemExit.
        """
        self._update_labels()  # A recorder or a run may have named the job since the last update.
        self.tell({"kind": "left", "how": how, "exception": exception, "exit_code": exit_code})
        if os.getpid() == self._owner:
            self._close_timer_pipe()

    def _close_timer_pipe(self) -> None:
        try:
            self._timer_write.close()
            self._timer_read.close()
        except OSError:
            pass

    def is_alive(self) -> bool:
        """Whether there is a companion that hears this process."""
        if self._is_over or os.getpid() != self._owner:
            return False
        return self._to_companion.number() is not None and self._timer_write.number() is not None

    # --- What it is told ------------------------------------------------------------------------------

    def _send(self, message: Mapping[str, Any]) -> None:
        """Appends a line to what is sent, and sends what there is room for."""
        import json

        # Newline first: what is lost of one line does not spoil the next.
        line = b"\n" + json.dumps(message, default=str).encode("utf-8", "replace") + b"\n"
        with self._lock:
            if len(self._unsent) + len(line) <= _MOST_UNSENT_BYTES:
                self._unsent += line
            self._send_rest()

    def _send_rest(self) -> None:
        from ml_diagnostics_common.descriptors import send

        try:
            with self._lock:
                while self._unsent and (descriptor := self._to_companion.number()) is not None:
                    del self._unsent[: send(descriptor, bytes(self._unsent[:_READ_BYTES]))]
        except BlockingIOError:
            pass  # It does not read now: the thread goes on.
        except OSError:
            self._unsent.clear()  # It is dead.

    # --- What it tells: a thread of its own -----------------------------------------------------------

    def _start_listening(self) -> None:
        thread = threading.Thread(target=self._listen, name="cloud-tpu-diagnostics-companion", daemon=True)
        thread.start()
        self.thread_ident = thread.ident

    def _listen(self) -> None:
        try:
            # It ends as soon as it has started the companion; or the job's own loop of waits has met it before.
            self._launcher.wait()
            self._hear_all()
        except Exception:
            pass
        self._is_over = True
        with self._lock:
            self._to_companion.close()
        self._from_companion.close()
        self._hear({"kind": "ended"})

    def _hear_all(self) -> None:
        """Reads until the companion is gone, or cannot be heard any more."""
        rest = b""
        while (descriptor := self._from_companion.number()) is not None:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            to_companion = self._to_companion.number()
            if to_companion is None:
                return
            poller.register(to_companion, select.POLLOUT if self._unsent else 0)
            ready = dict(poller.poll(1e3 * _LOOK_SECONDS))
            self._update_labels()
            if ready.get(to_companion, 0) & select.POLLOUT:
                self._send_rest()
            if descriptor not in ready or self._from_companion.number() is None:
                if ready.get(to_companion, 0) & (select.POLLHUP | select.POLLERR) or self._has_ended():
                    return  # What it said last has been read.
                continue
            data = os.read(descriptor, _READ_BYTES)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_READ_BYTES:]
            for line in lines:
                self._hear_line(line)

    def _update_labels(self) -> None:
        """Send labels that have changed: recorders name the job, and JAX learns its index, in the block."""
        labels = _labels(self._owner)
        if labels != self._labels:
            self._labels = labels
            self.tell({"kind": "labels", "labels": labels})

    def _has_ended(self) -> bool:
        """Looked for: what was forked off while it was started may hold its ends of the pipes, too."""
        from ml_diagnostics_common.child_process import has_ended

        return self.pid is not None and has_ended(self.pid)

    def _hear_line(self, line: bytes) -> None:
        import json

        if not line.strip():
            return
        try:
            message = json.loads(line)
            kind = message["kind"]
        except (ValueError, TypeError, KeyError):  # What a dying interpreter says.
            message = {
                "kind": "log",
                "level": 30,
                "message": f"The companion said: {line[:500].decode(errors='replace')}",
            }
            kind = "log"
        if kind == "hello":
            self.pid = message.get("pid")
        else:
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        try:
            self._on_message(message)
        except Exception:
            pass  # Its own guard has said so; the next message is none the worse.


def _timer_pipe() -> tuple[Descriptor, Descriptor]:
    import fcntl

    from ml_diagnostics_common.descriptors import Descriptor

    read, write = map(_out_of_the_way, os.pipe())
    # faulthandler cannot be told to give up: a full pipe must not stop the thread that leaves the block.
    for number in (read, write):
        os.set_blocking(number, False)
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _TIMER_PIPE_BYTES)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        pass  # The system has no such call, or the user has too many pipes: it holds 64 KB.
    return Descriptor(read), Descriptor(write)


def _size(path: str | None) -> int:
    """What is in the file before this block writes to it."""
    try:
        return os.stat(path).st_size if path is not None else 0  # noqa: PTH116
    except OSError:
        return 0


def _out_of_the_way(number: int) -> int:
    """Moves a descriptor of ours off 0, 1 and 2, where it is if the job has closed those: programs write there."""
    if number > 2:
        return number
    import fcntl

    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(number)


def _copy(number: int | None) -> int | None:
    """Of a descriptor of the job's, for the companion; None if there is none."""
    try:
        return None if number is None else _out_of_the_way(os.dup(number))
    except OSError:
        return None


def _descriptor_of_this_process() -> int | None:
    """For the companion to see the job die by: opened here, as its number may be another's by the time it starts."""
    from ml_diagnostics_common.child_process import process_descriptor

    number = process_descriptor(os.getpid())
    return None if number is None else _out_of_the_way(number)


def _labels(pid: int) -> dict[str, str]:
    """Return who this process is among all of the job."""
    from ml_diagnostics_common.environment import announced_labels

    return {**announced_labels(), "pid": str(pid)}


def _is_ending_told() -> bool:
    """Whether the parent of this process says how it ends."""
    return os.environ.get(RUN_BY) == str(os.getppid())
