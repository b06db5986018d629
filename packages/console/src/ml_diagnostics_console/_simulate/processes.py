"""The processes of pods: each with a parent that leaves nothing behind, its output line by line, and its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from ml_diagnostics_common.processes import read_system_file, stat_fields
from ml_diagnostics_common.sidecar import IN_SIDECAR

from ml_diagnostics_console._simulate.launch import Launch
from ml_diagnostics_console._simulate.variables import Pod

__all__ = ["LAUNCHER", "Line", "PodProcess", "Processes"]

_PROGRAM: Final = Path(__file__).with_name("pod_process.py")
LAUNCHER: Final = Path(__file__).with_name("launcher")
"""The folder of the module that each Python of a pod runs first."""
_CHUNK: Final = 65_536
_MOST_LINE: Final = 65_536
_SHELLS: Final = frozenset({b"sh", b"bash", b"dash", b"ash", b"zsh"})
_RUN: Final = (
    "import os, sys\n"
    "sys.path += [folder for folder in sys.argv.pop(1).split(os.pathsep) if folder not in sys.path]\n"
    "from cloud_tpu_diagnostics.__main__ import main\n"
    "sys.exit(main())\n"
)
"""`python -m cloud_tpu_diagnostics`, in a Python that ignores the variables of the pod that change Python."""


class Line(NamedTuple):
    """A line that a pod printed."""

    pod: Pod
    is_error: bool
    text: str


class PodProcess:
    """One start of one pod.

    Args:
        pod: The pod.
        launch: Its start.
        attempt: How often it was started before.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, pod: Pod, launch: Launch, attempt: int) -> None:
        self.pod, self.attempt = pod, attempt
        self.started = time.monotonic()
        self.is_asked = False
        """True once it was asked to end: its end leads to nothing."""
        self._buffers: dict[int, bytes] = {}
        read, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                _argv(launch, read),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(launch.variables),
                pass_fds=[read],
                start_new_session=True,  # Ctrl-C is for `simulate`, which ends the pods in order.
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(read)
        for stream in self.streams():
            os.set_blocking(stream.fileno(), False)

    @property
    def pid(self) -> int:
        """The process that all others of the pod descend from."""
        return self._process.pid

    def streams(self) -> list[IO[bytes]]:
        """Return its standard output and standard error."""
        return [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]

    def exit_code(self) -> int | None:
        """Return the exit code of the pod's command, as a container has it; None while a process of it is left."""
        code = self._process.poll()
        return None if code is None else code if code >= 0 else 128 - code

    def ask_to_end(self) -> None:
        """Send SIGTERM, as a cluster does before SIGKILL."""
        self.is_asked = True
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes of the pod by SIGKILL; its parent does it, and then exits."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def close(self) -> None:
        """End what is left after all else has failed, and close the streams."""
        self.kill()
        code = self._process.poll()
        if code is None or code < 0:  # Its parent process did not end by itself, and may have left processes.
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in self.streams():
            stream.close()

    def read(self, stream: IO[bytes]) -> list[Line] | None:
        """Return the lines that have arrived; None at the end of the stream."""
        number, is_error = stream.fileno(), stream is self._process.stderr
        try:
            data = os.read(number, _CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        *lines, rest = (self._buffers.pop(number, b"") + data).split(b"\n")
        if not data or len(rest) > _MOST_LINE:
            lines, rest = [*lines, *([rest] if rest else [])], b""
        self._buffers[number] = rest
        texts = [line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace") for line in lines]
        found = [Line(self.pod, is_error, text) for text in texts]
        return found if data or found else None

    def descendants(self) -> Iterator[int]:
        """Yield all processes of the pod."""
        return _descendants(self.pid)

    def program(self) -> int | None:
        """Return the pod's command, or the program that a shell has started for it; None before its start."""
        run = next(_descendants(self.pid), None)
        program = None if run is None else next(_descendants(run), None)
        while program is not None and _name_of(program) in _SHELLS:
            child = next(_descendants(program), None)
            if child is None:
                break
            program = child
        return program


class Processes:
    """All pods that run, and their output.

    The pods are ended when the block is left, whatever the reason.
    """

    def __init__(self) -> None:
        self.running: list[PodProcess] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.kill()
        deadline = time.monotonic() + 10.0
        while self.running and time.monotonic() < deadline:
            for _ in self.wait(0.05):
                pass
            self.ended()
        for left in self.running:
            left.close()
        self._selector.close()

    def start(self, pod: Pod, launch: Launch, attempt: int) -> PodProcess:
        """Start a pod."""
        process = PodProcess(pod, launch, attempt)
        self.running.append(process)
        for stream in process.streams():
            self._selector.register(stream, selectors.EVENT_READ, process)
        return process

    def wait(self, seconds: float) -> Iterator[tuple[PodProcess, list[Line]]]:
        """Wait for output, and yield it; processes that have ended are no longer in `running` afterwards."""
        for key, _ in self._selector.select(seconds):
            yield from self._read(key)

    def ended(self) -> list[tuple[PodProcess, int, list[Line]]]:
        """Return the pods that have ended since the last call, with their exit codes and last lines."""
        found = []
        for process in list(self.running):
            code = process.exit_code()
            if code is None:
                continue
            self.running.remove(process)
            rest: list[Line] = []
            for stream in process.streams():
                while lines := process.read(stream):
                    rest += lines
                with contextlib.suppress(KeyError):
                    self._selector.unregister(stream)
            process.close()
            found.append((process, code, rest))
        return found

    def _read(self, key: selectors.SelectorKey) -> Iterator[tuple[PodProcess, list[Line]]]:
        process: PodProcess = key.data
        stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
        lines = process.read(stream)
        if lines is None:
            self._selector.unregister(stream)
        elif lines:
            yield process, lines


def _argv(launch: Launch, lifeline: int) -> list[str]:
    python, program = sys.executable, str(_PROGRAM)
    start = [python, "-I", "-S", program, "start", launch.python_path, launch.directory, *launch.command]
    folders = os.pathsep.join(folder or "." for folder in sys.path)
    run = [python, "-E", "-c", _RUN, folders, "run", "--no-upload", "--", *start]
    mark = f"{IN_SIDECAR}="
    return [python, "-I", "-S", program, "watch", str(lifeline), mark, *run]


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one, the nearest first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if Path("/proc").is_dir() else ():  # noqa: PTH208 (numbers among them)
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                children.setdefault(int(stat_fields(int(name))[1]), []).append(int(name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    yield from found[1:]


def _name_of(pid: int) -> bytes:
    try:
        return read_system_file(f"/proc/{pid}/comm").strip()
    except OSError:
        return b""
