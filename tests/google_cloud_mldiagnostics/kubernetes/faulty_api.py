"""A proxy of the API server that loses requests and answers, and drops and repeats the events of watches."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
from types import TracebackType

import aiohttp
from aiohttp import web

from ...kube_api import KubeApi

_STATUS = {"kind": "Status", "status": "Failure", "code": 500, "message": "etcdserver: request timed out"}


class FaultyApi:
    """Forwards requests to an API server, with faults.

    Args:
        server: The API server.
        seed: The seed of the random faults.
        refused: The part of the requests that is refused with 500, and does nothing.
        lost: The part of the requests that is served, and answered with 500.
        dropped: The part of the events that is not forwarded.
        doubled: The part of the events that is forwarded twice.

    Attributes:
        url: Its base URL; its certificate is that of the server.
        faults: How many faults there were.
    """

    def __init__(
        self,
        server: KubeApi,
        *,
        seed: int = 0,
        refused: float = 0.0,
        lost: float = 0.0,
        dropped: float = 0.0,
        doubled: float = 0.0,
    ) -> None:
        self.url = ""
        self.faults = 0
        self._server = server
        self._random = random.Random(seed)
        self._refused, self._lost, self._dropped, self._doubled = refused, lost, dropped, doubled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = threading.Event()
        self._ended: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> FaultyApi:
        self._thread.start()
        assert self._is_ready.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._ended is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._server.authority, self._server.authority.with_suffix(".key"))
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._server.context())) as self._session:
            await site.start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            self._is_ready.set()
            await self._ended.wait()
        await runner.cleanup()

    def _happens(self, part: float) -> bool:
        is_fault = self._random.random() < part
        self.faults += is_fault
        return is_fault

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self._happens(self._refused):
            return web.json_response(_STATUS, status=500)
        headers = {key: request.headers[key] for key in ("Authorization", "Content-Type") if key in request.headers}
        url, body = self._server.url + request.path_qs, await request.read()
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            if request.query.get("watch") == "true" and answer.status == 200:
                return await self._forward_events(request, answer)
            content = await answer.read()
            if self._happens(self._lost):
                return web.json_response(_STATUS, status=500)
            return web.Response(body=content, status=answer.status, content_type="application/json")

    async def _forward_events(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for line in answer.content:
            if not self._happens(self._dropped):
                await response.write(line * 2 if self._happens(self._doubled) else line)
        return response
