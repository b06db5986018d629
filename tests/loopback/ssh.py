"""An ssh server on loopback: a machine for the real ssh, and for gcloud compute ssh.

    with SshServer(ports={9012: 40123}) as machine:
        ssh = write_ssh(folder, {"203.0.113.2": machine})
        subprocess.run([ssh, "me@203.0.113.2", "echo hello"])

Commands run on this machine, in a folder of your choice. Forwarded ports connect to ports of this machine. `write_ssh`
creates an `ssh` command that maps the addresses known to gcloud to these servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import threading
import time
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import asyncssh
from ml_diagnostics_testing.faults import Ending, Hang
from ml_diagnostics_testing.http_server import RequestRecord, Service

__all__ = ["SshServer", "write_ssh"]

_CHUNK_BYTES = 65536


class SshServer(Service):
    """Serve ssh logins to one machine on a free port of 127.0.0.1, from construction until `close`.

    The operations of its `faults` and `requests` are "login", "exec" and "forward"; a request's `path` is the user,
    the command, or the host and port, and the `status` of a command is its exit status. `Hang` waits without an
    answer. Any other fault rejects the login (permission denied), aborts the connection before the command runs, or
    refuses the forwarded connection.

    As with the real server, a command keeps running when its connection breaks, unless it has a terminal. `close` ends
    all commands.

    Args:
        folder: The working directory of commands; by default that of this process.
        environment: Additional environment variables for commands.
        ports: The local port for each forwarded port, so that each machine can have its own port 9012. Other ports
            connect to the same port of this machine.
        authorized_keys: Called at each login; returns a text that contains the authorized public keys. None accepts
            any key.
        clock: Returns the time in seconds since the epoch.

    Attributes:
        port: The port it listens on.
        ports: The argument of that name; may be changed.
        authorized_keys: The argument of that name; may be changed.
        connections: The open connections.
    """

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        ports: Mapping[int, int] | None = None,
        authorized_keys: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(clock=clock)
        self.port = 0
        self.ports = dict(ports or {})
        self.authorized_keys = authorized_keys
        self._folder = folder
        self._environment = dict(environment or {})
        self.connections: set[Any] = set()
        self._children: set[Process] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="SshServer", daemon=True)
        self._thread.start()
        self._server: Any = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def close(self) -> None:
        """Stop serving: break open connections and kill running commands. Safe to call twice."""
        self.faults.close()
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> SshServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _listen(self) -> Any:
        server = await asyncssh.create_server(
            lambda: _Login(self),
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            process_factory=self._run,
            encoding=None,
            line_editor=False,
        )
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _stop(self) -> None:
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        killed = list(self._children)
        for child in killed:
            _signal_group(child, signal.SIGKILL)
        await asyncio.gather(*(child.wait() for child in killed))
        await self._server.wait_closed()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=1)  # tasks that wait for a killed command end by themselves
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def suffer(self, operation: str, what: str) -> tuple[Ending | None, RequestRecord]:
        """Record a request, apply its delay or hang, and return the fault that ends it, if any."""
        plan, record = await self._loop.run_in_executor(None, self.start_request, operation, "ssh", what, 0)
        if isinstance(plan.ending, Hang):
            seconds = plan.ending.seconds
            await self._loop.run_in_executor(None, lambda: self.faults.wait(seconds, plan=plan))
        return plan.ending, record

    async def _run(self, process: Any) -> None:
        """Run a command or a shell, connected to the client's streams."""
        fault, record = await self.suffer("exec", process.command or "")
        if fault is not None:
            process.channel.get_connection().abort()
            return
        child, transport = await self._start(process.command)
        self._children.add(child)
        helpers = [asyncio.ensure_future(_feed(process.stdin, child)), asyncio.ensure_future(_hang_up(process, child))]
        try:
            await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
            record.status = await child.wait()
            with contextlib.suppress(OSError, asyncssh.Error):  # the client has disconnected
                _send_exit_status(process, record.status)
        finally:
            for helper in helpers:
                helper.cancel()
            self._children.discard(child)
            transport.close()

    async def _start(self, command: str | None) -> tuple[Process, asyncio.SubprocessTransport]:
        """Start a command or a shell.

        asyncio.create_subprocess_exec does not return the transport, which must be closed.
        """
        transport, protocol = await self._loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(_CHUNK_BYTES, self._loop),
            *(["/bin/sh", "-c", command] if command else ["/bin/sh"]),
            cwd=self._folder,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        return Process(transport, protocol, self._loop), transport

    async def forward(self, connection: Any, host: str, port: int) -> Any:
        """Connect a forwarded connection to the local port for it."""
        fault, _ = await self.suffer("forward", f"{host}:{port}")
        if fault is not None or host not in ("localhost", "127.0.0.1", "::1"):
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, f"cannot connect to {host}:{port}")
        return await connection.forward_connection("127.0.0.1", self.ports.get(port, port))


class _Login(asyncssh.SSHServer):
    """The callbacks of one connection."""

    def __init__(self, machine: SshServer) -> None:
        self._machine = machine
        self._connection: Any = None
        self._is_refused = False

    def connection_made(self, conn: Any) -> None:
        self._connection = conn
        self._machine.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._machine.connections.discard(self._connection)

    async def begin_auth(self, username: str) -> bool:
        fault, _ = await self._machine.suffer("login", username)
        self._is_refused = fault is not None
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: Any) -> bool:
        if self._is_refused:
            return False
        if self._machine.authorized_keys is None:
            return True
        text = key.export_public_key().decode().split()[1]
        return text in self._machine.authorized_keys()

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        return self._machine.forward(self._connection, dest_host, dest_port)


def write_ssh(folder: str | os.PathLike[str], machines: Mapping[str, SshServer]) -> Path:
    """Write an `ssh` command that connects to loopback servers by the addresses of the machines in the cloud.

    Put its folder first on PATH to make gcloud use it. It runs the real ssh with a generated configuration, which
    ignores proxies, including the Identity-Aware Proxy. Connections to addresses without a server are refused.

    Args:
        folder: The folder to write to.
        machines: The servers by address. A key holds one or more addresses or ssh patterns, separated by spaces;
            `compute.vm_addresses(vm)` returns those of a VM.

    Returns:
        The path of the command.

    Raises:
        FileNotFoundError: ssh is not installed on this machine.
    """
    real = shutil.which("ssh")
    if real is None:
        raise FileNotFoundError("ssh is not installed on this machine: install openssh-client")
    configuration = Path(folder, "ssh_config")
    lines = [
        f"Host {addresses}\n  HostName 127.0.0.1\n  Port {server.port}\n" for addresses, server in machines.items()
    ]
    configuration.write_text("".join([*lines, "Host *\n  HostName 127.0.0.1\n  Port 1\n"]), encoding="utf-8")
    program = Path(folder, "ssh")
    options = f"-F {shlex.quote(str(configuration))} -o ProxyCommand=none"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(real)} {options} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


async def _pump(reader: asyncio.StreamReader | None, writer: Any) -> None:
    """Copy a command's output to the client. Keep reading if the client disconnects, so that the command can end."""
    is_connected = True
    while reader is not None and (data := await reader.read(_CHUNK_BYTES)):
        if is_connected:
            try:
                writer.write(data)
                await writer.drain()
            except (OSError, asyncssh.Error):
                is_connected = False


async def _hang_up(process: Any, child: Process) -> None:
    """Send SIGHUP to a command when its terminal closes."""
    await process.channel.wait_closed()
    if process.term_type:
        _signal_group(child, signal.SIGHUP)


async def _feed(reader: Any, child: Process) -> None:
    """Copy the client's input to a command, until either ends."""
    if child.stdin is None:
        return
    try:
        while data := await reader.read(_CHUNK_BYTES):
            child.stdin.write(data)
            await child.stdin.drain()
    except (OSError, asyncssh.Error, asyncssh.BreakReceived, asyncssh.SignalReceived):
        pass
    finally:
        child.stdin.close()


def _send_exit_status(process: Any, status: int) -> None:
    if status >= 0:
        process.exit(status)
    else:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


def _signal_group(child: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has exited
        os.killpg(child.pid, number)
