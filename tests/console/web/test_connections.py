"""Clients that keep connections without a request do not lock out others."""

from __future__ import annotations

import asyncio
import errno
import time
from typing import Any

import pytest
import uvicorn
from ml_diagnostics_console._web.connections import HEAD_SECONDS, Connection, report_too_many_files_once
from uvicorn.server import ServerState

from ...waiting import LONG_SECONDS

_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"


class _Loop(asyncio.SelectorEventLoop):
    """A loop with a clock that is put forward: the time for a head passes when the test wants it, not in a stall."""

    ahead_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_seconds


async def _pass_time_of_a_head() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop)
    loop.ahead_seconds += 2 * Connection.head_seconds
    await asyncio.sleep(0.001)  # What is due by now is called first.


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await _pass_time_of_a_head()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _received(*parts: bytes) -> bytes:
    """Return all that a client gets until its connection is closed, if it sends some parts and then waits."""
    config = uvicorn.Config(
        _answer,
        http=Connection,
        lifespan="off",
        ws="none",
        log_config=None,
        timeout_keep_alive=round(30 * HEAD_SECONDS),
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        received = b""
        try:
            for part in parts:
                writer.write(part)
                if part.endswith(b"\r\n\r\n"):
                    received += await reader.readuntil(b"ok")
            rest = asyncio.create_task(reader.read())
            deadline = time.monotonic() + LONG_SECONDS
            while not rest.done():
                assert time.monotonic() < deadline, "it is not disconnected"
                await _pass_time_of_a_head()
            received += await rest
        except ConnectionResetError:
            pass
        finally:
            writer.close()
    return received


def _run(*parts: bytes) -> bytes:
    loop = _Loop()
    try:
        return loop.run_until_complete(_received(*parts))
    finally:
        loop.close()


@pytest.mark.parametrize("parts", [(), (b"GE",), (_REQUEST,)], ids=["nothing", "a line", "a head"])
def test_a_client_that_sends_no_request_is_disconnected(parts: tuple[bytes, ...]) -> None:
    assert _run(*parts) == b""


def test_a_request_may_take_its_time_to_be_answered() -> None:
    assert _run(_REQUEST + b"Connection: close\r\n\r\n").endswith(b"ok")


def test_a_second_request_that_is_not_complete_is_disconnected() -> None:
    received = _run(_REQUEST + b"\r\n", b"GET /")
    assert received.count(b"HTTP/1.1 200 OK") == 1
    assert received.endswith(b"ok")


def test_a_full_table_of_files_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.new_event_loop()
    report_too_many_files_once(loop)
    for _ in range(3):
        loop.call_exception_handler({"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    loop.close()
    assert capsys.readouterr().err.count("\n") == 1


def test_other_errors_of_the_loop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    report_too_many_files_once(loop)
    loop.call_exception_handler({"message": "a callback failed", "exception": ValueError("x")})
    loop.close()
    assert "a callback failed" in caplog.text
