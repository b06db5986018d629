"""Tunnels: a local port for each target, at which its profiler server has answered.

If no port can be forwarded, a local port forwards each connection through a program that runs on the target.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, cast

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.worker import in_parallel, start

from xprofiler.capture.targets import Access, Target, host_and_port
from xprofiler.gcloud.processes import Process, Programs

__all__ = ["Tunnel", "open_tunnels", "problem_at"]

_NOTHING_THERE: Final = "nothing answers at port"
"""The remote program's message if no server listens at its port."""
_PIECE_BYTES: Final = 1 << 16
_ACCEPT_SECONDS: Final = 0.1
_SHOWN_LINES: Final = 4
_ADVICE: Final = "\nRecommendation:"
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # An empty SETTINGS frame.
_SETTINGS_FRAME: Final = 4
_GREETING_SECONDS: Final = 5.0
_OPENING_SECONDS: Final = 60.0  # gcloud may have to create a key and wait until the VM accepts it.
_POLL_SECONDS: Final = 0.02
_NO_SERVER: Final = (
    "{what}. Is the job running there, with jax.profiler.start_server({port}) (or PyTorch/XLA's or TensorFlow's "
    "start_server), and is that its port (-p)?"
)


def _last_lines(stderr: bytes) -> str:
    """Return the last lines of a program's standard error, without the advice that gcloud appends."""
    text = stderr.decode("utf-8", "replace").strip().partition(_ADVICE)[0]
    return "\n".join([line.strip() for line in text.splitlines() if line.strip()][-_SHOWN_LINES:])


def _remote_program(port: int) -> list[str]:
    """Return the argv to run on the target. It has no argument but a number, so it needs no quoting."""
    program = Path(__file__).with_name("remote_relay.py").read_text(encoding="utf-8")
    return ["python3", "-c", program, str(int(port))]


class _Relay:
    """Listens at a port of 127.0.0.1, and connects each client to standard input and output of a new run of a program.

    Args:
        programs: Runs the programs, and ends them when it is closed.
        argv: The program and its arguments.

    Attributes:
        port: The local port.
    """

    def __init__(self, programs: Programs, argv: Sequence[str]) -> None:
        self._programs = programs
        self._argv = list(argv)
        self._errors: IO[bytes] = TemporaryFile("a+b")  # noqa: SIM115 (append mode, since all programs and this one share its offset)
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_ACCEPT_SECONDS)  # Closing a socket does not wake a blocked accept() on every system.
        self.port: int = self._listener.getsockname()[1]
        self._task = start(self._accept, "xprofiler-relay")

    def close(self) -> str:
        """Stop accepting connections; open ones end with their programs.

        Returns:
            The last lines that the programs wrote to standard error.
        """
        self._is_closed.set()
        if self._task is not None:
            self._task.wait(math.inf)
        with self._errors:
            self._errors.seek(0)
            return _last_lines(self._errors.read())

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError, CommandError):
            while not self._is_closed.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                process = self._programs.start(
                    self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
                )
                for pump in (_up, _down):
                    start(functools.partial(pump, connection, process), "xprofiler-relay")


def _up(connection: socket.socket, process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # Either side has ended.
        while piece := connection.recv(_PIECE_BYTES):
            process.stdin.write(piece)
            process.stdin.flush()
    with contextlib.suppress(OSError):
        process.stdin.close()


def _down(connection: socket.socket, process: Process) -> None:
    output = cast("io.BufferedReader", process.stdout)
    with connection, contextlib.suppress(OSError, ValueError):
        while piece := output.read1(_PIECE_BYTES):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Tunnel:
    """A connection to a target, or the reason why it failed.

    Attributes:
        target: The target.
        address: `host:port` to connect to from this machine.
        problem: Why its server cannot be reached; empty if it can.
        relay: The relay, if no port could be forwarded.
    """

    target: Target
    address: str = ""
    problem: str = ""
    relay: _Relay | None = None


@contextlib.contextmanager
def open_tunnels(targets: Sequence[Target], programs: Programs, console: Console) -> Iterator[list[Tunnel]]:
    """Open tunnels to all targets in parallel, and check that each server answers.

    Args:
        targets: The targets.
        programs: Runs the programs that keep tunnels open, and ends them.
        console: Receives details with `--verbose`.

    Yields:
        A tunnel for each target, in the same order.
    """
    opened = in_parallel(lambda target: _open(target, programs, console), targets)
    tunnels = [_as_tunnel(target, one) for target, one in zip(targets, opened, strict=True)]
    try:
        yield tunnels
    finally:
        for tunnel in tunnels:
            if tunnel.relay is not None:
                tunnel.relay.close()


def _as_tunnel(target: Target, opened: Tunnel | Exception) -> Tunnel:
    if isinstance(opened, Tunnel):
        return opened
    if not isinstance(opened, CommandError):
        raise opened
    return Tunnel(target, problem=str(opened))


def _open(target: Target, programs: Programs, console: Console) -> Tunnel:
    if target.access is None:
        problem = problem_at(target.address)
        return Tunnel(target, target.address, _NO_SERVER.format(what=problem, port=target.port) if problem else "")
    forwarded = _forward(target, target.access, programs)
    if not forwarded.problem:
        return forwarded
    console.detail(f"{target.title}: its port was not forwarded ({forwarded.problem}): trying a relay there")
    return _relay(target, target.access, programs)


def _forward(target: Target, access: Access, programs: Programs) -> Tunnel:
    """Run a program that forwards the port, and wait until the server answers."""
    local_port = _free_port()
    address = f"127.0.0.1:{local_port}"
    deadline = time.monotonic() + _OPENING_SECONDS
    with TemporaryFile("a+b") as errors:
        process = programs.start(access.forward(local_port, target.port), stdout=subprocess.DEVNULL, stderr=errors)
        problem = f"no tunnel within {_OPENING_SECONDS:g} s"
        while process.poll() is None and time.monotonic() < deadline:
            try:
                problem = _problem_of_greeting(address, _GREETING_SECONDS)
                break
            except ConnectionRefusedError:  # It does not listen yet.
                time.sleep(_POLL_SECONDS)
        if not problem and process.poll() is None:
            return Tunnel(target, address)
        programs.end(process)
        errors.seek(0)
        return Tunnel(target, problem=_last_lines(errors.read()) or problem)


def _relay(target: Target, access: Access, programs: Programs) -> Tunnel:
    """Open a relay: a program on the target copies the bytes."""
    relay = _Relay(programs, access.execute(_remote_program(target.port)))
    problem = problem_at(f"127.0.0.1:{relay.port}", _OPENING_SECONDS)
    if not problem:
        return Tunnel(target, f"127.0.0.1:{relay.port}", relay=relay)
    error = relay.close()
    if error and _NOTHING_THERE not in error:
        return Tunnel(target, problem=error)  # The connection failed, not the server.
    return Tunnel(target, problem=_NO_SERVER.format(what=error or problem, port=target.port))


def problem_at(address: str, seconds: float = _GREETING_SECONDS) -> str:
    """Return why no gRPC server answers at an address; empty if one sends its HTTP/2 settings.

    Args:
        address: `host:port`.
        seconds: The timeout.
    """
    try:
        return _problem_of_greeting(address, seconds)
    except ConnectionRefusedError:
        return f"nothing listens at {address}"


def _problem_of_greeting(address: str, seconds: float) -> str:
    try:
        with socket.create_connection(host_and_port(address), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except ConnectionRefusedError:
        raise
    except TimeoutError:
        return f"no answer at {address} within {seconds:g} s"
    except ConnectionError:
        answer = b""
    except OSError as error:
        return f"cannot reach {address}: {error.strerror or error}"
    if not answer:
        return f"{address} closes every connection"
    return "" if answer[3:4] == bytes([_SETTINGS_FRAME]) else f"the server at {address} is not a profiler server"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
