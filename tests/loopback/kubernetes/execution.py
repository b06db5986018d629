"""`kubectl exec`: run a command on this machine, connected to the client's streams."""

import contextlib
import json
import threading
from io import BufferedReader
from typing import IO, Any

from .channels import ERROR, STDERR, STDOUT, Channels
from .pods import Pod, exit_code


def execute(pod: Pod, argv: list[str], container: str, channels: Channels, *, with_stdin: bool) -> None:
    """Run a command in a pod's folder until it exits.

    As in a real cluster, a command keeps running after the client disconnects, with its output closed.

    Args:
        pod: The pod.
        argv: The program and its arguments.
        container: The container.
        channels: The client's streams.
        with_stdin: True if the client sends input.
    """
    receiving: threading.Thread | None = None
    try:
        process = pod.start(argv, container, with_stdin=with_stdin)
        pumps = [
            threading.Thread(target=_pump, args=(stream, channels, number), daemon=True)
            for stream, number in ((process.stdout, STDOUT), (process.stderr, STDERR))
        ]
        receiving = threading.Thread(target=_feed, args=(channels, process.stdin), daemon=True)
        for thread in (*pumps, receiving):
            thread.start()
        code = exit_code(process.wait())
        for thread in pumps:
            thread.join()
        status = _ended(argv, code)
    except OSError as error:
        status = _not_started(argv, error)
    try:
        channels.send(ERROR, json.dumps(status).encode())
    except OSError:  # the client has disconnected
        pass
    channels.close()
    if receiving is None:
        _feed(channels, None)
    else:
        receiving.join()


def _pump(stream: IO[bytes] | None, channels: Channels, number: int) -> None:
    """Send a command's output, until it ends or the client disconnects."""
    assert isinstance(stream, BufferedReader)
    with stream:
        try:
            while piece := stream.read1(32768):
                channels.send(number, piece)
        except OSError:  # the client has disconnected; the command gets EPIPE at its next write
            pass


def _feed(channels: Channels, stdin: IO[bytes] | None) -> None:
    """Pass the client's input to the command until the client disconnects, even if the command has stopped reading."""
    for piece in channels.stdin():
        if stdin is None or stdin.closed:
            continue
        try:
            stdin.write(piece)
            stdin.flush()
            if not piece:
                stdin.close()
        except OSError:
            _close(stdin)
    if stdin is not None:
        _close(stdin)


def _close(stdin: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # the command has not read all of its input
        stdin.close()


def _ended(argv: list[str], code: int | None) -> dict[str, Any]:
    if not code:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: error executing command {argv}, exit code {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _not_started(argv: list[str], error: OSError) -> dict[str, Any]:
    program = argv[0] if argv else ""
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "InternalError",
        "message": "Internal error occurred: error executing command in container: OCI runtime exec failed: exec "
        f'failed: unable to start container process: exec: "{program}": {error.strerror}: unknown',
        "code": 500,
    }
