"""The application of the page: routes over the store, its static files and its events, behind the guard."""

from __future__ import annotations

import asyncio
import gzip
import re
import sys
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.texts import one_line
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ml_diagnostics_console._web.answers import GREATEST_ANSWER_BYTES, Answer, NotThereError, json_answer
from ml_diagnostics_console._web.assets import Asset, Assets
from ml_diagnostics_console._web.bundle import Bundle
from ml_diagnostics_console._web.fleet_page import FILES, fleet_document, problem_document, runs_of_jobs
from ml_diagnostics_console._web.fleet_reports import FleetError, FleetReports
from ml_diagnostics_console._web.guard import SECURITY_HEADERS, SPEEDSCOPE_POLICY, Guard, Token
from ml_diagnostics_console._web.modules import ModuleError
from ml_diagnostics_console._web.request_threads import RequestThreads, in_daemon_thread
from ml_diagnostics_console._web.routes import handle

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ml_diagnostics_console._web.event_stream import EventStream
    from ml_diagnostics_console._web.refreshing import Refreshing
    from ml_diagnostics_console._web.store import Store

__all__ = ["GREATEST_ANSWER_BYTES", "make_app"]

_ZIPPED_FROM_BYTES: Final = 2048
_ZIPPED_TYPES: Final = ("application/json", "text/")
_GZIP_BITS: Final = 16 + 12
"""The form of gzip, with a window of 4 KiB: each open page has one."""
_TOKEN_PAGE: Final = "token.html"
_ICON: Final = "icon.svg"
_SPEEDSCOPE: Final = "vendor/speedscope/"
_PAGE: Final = re.compile(r"/|/compare|/runs/[^/]+(?:/(?:metrics|stacks|logs|configs|profiles(?:/[^/]+)?))?")
_PAGE_OF_CHARTS: Final = re.compile(r"/compare|/runs/[^/]+/metrics")
_LAST_RUN: Final = re.compile(r"/runs/last(/.*)?")
_CASE: Final = re.compile(r"/api/runs/([^/]+)/case\.html")
_OPEN_TO_ALL: Final = ("/favicon.ico", "/api/token")
"""Paths that are answered without the cookie of the token: they hold no data."""
_STATIC: Final = "/static/"
_WITH_VERSION: Final = re.compile(r"v/(\w+)/(.+)")
_LONGEST_FAILURE: Final = 500
_LEFT: Final = 499
"""The client closed its connection: the answer has no reader."""
_FOR_A_YEAR: Final = "public, max-age=31536000, immutable"


def make_app(
    store: Store,
    refreshing: Refreshing,
    stream: EventStream,
    assets: Assets,
    guard: Guard,
    token: Token | None,
    fleet: FleetReports | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        store: The runs.
        refreshing: Keeps the store up to date.
        stream: The open pages.
        assets: The static files.
        guard: Rejects requests that are not from the page.
        token: The secret of clients; None if the server listens on loopback alone.
        fleet: The reports of a fleet; None for none.
    """
    page = _Page(store, refreshing, stream, assets, token, fleet or FleetReports(""))
    app = Starlette(
        routes=[
            Route("/static/{name:path}", page.static),
            Route("/favicon.ico", page.icon),
            Route("/api/token", page.token),
            Route("/api/events", page.events),
            Route("/api/fleet.html", page.fleet_file),
            Route("/api/{path:path}", page.api),
            Route("/fleet", page.fleet),
            Route("/{path:path}", page.shell),
        ],
        exception_handlers={Exception: _failed},
    )
    return _Guarded(app, guard, token, page)


class _Page:
    """The endpoints."""

    def __init__(
        self,
        store: Store,
        refreshing: Refreshing,
        stream: EventStream,
        assets: Assets,
        token: Token | None,
        fleet: FleetReports,
    ) -> None:
        self._store, self._refreshing, self._stream = store, refreshing, stream
        self._assets, self._bundle, self._token = assets, Bundle(assets, has_fleet=fleet.has_mirror), token
        self._fleet, self._fleet_turn = fleet, asyncio.Semaphore(1)
        self._threads = RequestThreads()
        self._exports = RequestThreads(1)  # Each takes the processor for seconds; those that wait keep no thread.

    async def static(self, request: Request) -> Response:
        """Answer a file; at a path with its version, for ever."""
        version, name = "", request.path_params["name"]
        with_version = _WITH_VERSION.fullmatch(name)
        if with_version is not None:
            version, name = with_version.groups()
        try:
            asset = self._bundle.find(name)
        except ModuleError as error:
            return PlainTextResponse(str(error), 500)
        if asset is None:
            return PlainTextResponse("there is no such file", 404)
        headers = {"content-security-policy": SPEEDSCOPE_POLICY} if name.startswith(_SPEEDSCOPE) else {}
        if version == asset.version:
            headers["cache-control"] = _FOR_A_YEAR
        return _file(asset, request, headers=headers)

    async def icon(self, request: Request) -> Response:
        asset = self._assets.find(_ICON)
        return Response(status_code=204) if asset is None else _file(asset, request)

    async def shell(self, request: Request) -> Response:
        """Answer every page of the site with the one shell, which reads the URL."""
        path = _raw_path(request)
        last = _LAST_RUN.fullmatch(path)
        if last is not None:
            rest, query = last[1] or "", request.url.query
            return await self._threads.call(lambda: self._redirect_to_last(rest, query))
        try:
            shell = self._bundle.shell(has_charts=_PAGE_OF_CHARTS.fullmatch(path) is not None)
        except ModuleError as error:
            return PlainTextResponse(str(error), 500)
        return _file(shell, request, 200 if _PAGE.fullmatch(path) else 404)

    async def fleet(self, request: Request) -> Response:
        """Answer the page of the fleet: the shell with the report, which takes seconds for new rows."""
        return await self._in_turn(request, self._fleet_page)

    async def fleet_file(self, request: Request) -> Response:
        """Answer the report as the file that `goodput fleet report --html` writes."""
        return await self._in_turn(request, self._fleet_file)

    async def _in_turn(self, request: Request, answer: Callable[[Request], Response]) -> Response:
        """Answer about the fleet, one request at a time; no report is made for a client that has left meanwhile."""
        async with self._fleet_turn:
            if await request.is_disconnected():
                return Response(status_code=_LEFT)
            return await in_daemon_thread(lambda: answer(request))

    def locked(self, request: Request) -> Response:
        """Answer a page without the token's cookie: a page that exchanges the token in the URL for it."""
        asset = self._assets.find(_TOKEN_PAGE)
        if asset is None:
            return PlainTextResponse(f"this installation lacks the file static/{_TOKEN_PAGE}", 404)
        return _file(asset, request, 401)

    async def token(self, request: Request) -> Response:
        """Set the cookie if the request has the token."""
        if self._token is None:
            return Response(status_code=204)
        if not self._token.is_in_authorization(request.scope["headers"]):
            return _respond(json_answer({"error": "the token is not valid"}, 401), request)
        return Response(status_code=204, headers={"set-cookie": self._token.cookie, "cache-control": "no-store"})

    async def events(self, request: Request) -> Response:
        if not self._stream.has_capacity():
            error = "too many pages are open on this server; close some of them"
            return _respond(json_answer({"error": error}, 503), request)
        cursor = request.headers.get("last-event-id") or request.query_params.get("cursor", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": "accept-encoding"}
        if request.method == "HEAD":
            return Response(headers=headers, media_type="text/event-stream")
        events = self._stream.events(cursor)
        if _takes_gzip(request):
            headers["content-encoding"] = "gzip"
            events = _zipped(events)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def api(self, request: Request) -> Response:
        path = _raw_path(request)
        case = _CASE.fullmatch(path)
        if case is not None:
            return await self._exports.call(lambda: self._export(request, case[1]))
        return await self._threads.call(lambda: self._answer(request, path))

    def _answer(self, request: Request, path: str) -> Response:
        self._refreshing.freshen()
        return _respond(handle(self._store, path, dict(request.query_params)), request)

    def _export(self, request: Request, run_id: str) -> Response:
        from ml_diagnostics_console._web.case_file import case_answer

        self._refreshing.freshen()
        return _respond(case_answer(self._store, run_id, self._assets), request)

    def _fleet_page(self, request: Request) -> Response:
        try:
            shell = self._bundle.shell(has_charts=False).data.decode()
            text, status = self._fleet_document(shell, request)
        except (ModuleError, ValueError) as error:
            return PlainTextResponse(str(error), 500)
        return _file(Asset(text.encode(), ".html"), request, status)

    def _fleet_document(self, shell: str, request: Request) -> tuple[str, int]:
        try:
            report = self._fleet.report(dict(request.query_params))
        except FleetError as error:
            return problem_document(shell, error.sentence), error.status
        self._refreshing.freshen()
        self._store.wait_for_rows()
        with self._store.lock:
            runs = runs_of_jobs(self._store.runs())
        return fleet_document(shell, report, runs, self._bundle.links(*FILES)), 200

    def _fleet_file(self, request: Request) -> Response:
        try:
            report = self._fleet.report(dict(request.query_params))
        except FleetError as error:
            return _respond(json_answer({"error": error.sentence}, error.status), request)
        headers = {"content-disposition": 'attachment; filename="fleet.html"'}
        return _file(Asset(report.encode(), ".html"), request, headers=headers)

    def _redirect_to_last(self, rest: str, query: str) -> Response:
        self._refreshing.freshen()
        try:
            with self._store.lock:
                run_id = self._store.run("last").id
        except NotThereError as error:
            return PlainTextResponse(str(error), 404)
        return RedirectResponse(f"/runs/{run_id}{rest}" + (f"?{query}" if query else ""), 302)


class _Guarded:
    """Refuses requests before they are routed, and adds the headers of safety to every answer."""

    def __init__(self, app: ASGIApp, guard: Guard, token: Token | None, page: _Page) -> None:
        self._app, self._guard, self._token, self._page = app, guard, token, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                have = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in have)]
            await send(message)

        await self._chosen(scope)(scope, receive, send_safely)

    def _chosen(self, scope: Scope) -> ASGIApp:
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        refusal = self._guard.refusal(scope["method"], headers)
        if refusal:
            return _respond(json_answer({"error": refusal}, 403))
        path: str = scope["path"]
        is_open = path in _OPEN_TO_ALL or path.startswith(_STATIC)
        if self._token is None or is_open or self._token.is_in_cookie(headers):
            return self._app
        if path.startswith("/api/"):
            return _respond(
                json_answer({"error": "open the address that mldiagnostics ui printed: it has a token"}, 401)
            )
        return self._page.locked(Request(scope))


def _raw_path(request: Request) -> str:
    """Return the path with its escapes, so that a name with a slash stays one part of it."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return raw.decode("latin-1")


def _respond(answer: Answer, request: Request | None = None) -> Response:
    """Return an answer as a response: bounded, never cached, compressed where that pays."""
    if len(answer.body) > GREATEST_ANSWER_BYTES:
        size = f"{len(answer.body):,} bytes, and at most {GREATEST_ANSWER_BYTES:,} are sent"
        answer = json_answer({"error": f"the answer has {size}; ask for less, for instance a shorter span"}, 413)
    headers = {"cache-control": "no-store", **{name.lower(): value for name, value in answer.headers.items()}}
    body = answer.body
    is_long_text = len(body) >= _ZIPPED_FROM_BYTES and answer.media_type.startswith(_ZIPPED_TYPES)
    if is_long_text and request is not None and _takes_gzip(request):
        body = gzip.compress(body, 1, mtime=0)
        headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    return Response(body, answer.status, headers, media_type=answer.media_type)


def _file(asset: Asset, request: Request, status: int = 200, *, headers: dict[str, str] | None = None) -> Response:
    """Return a static file; unless `headers` differ, browsers ask each time if it has changed."""
    all_headers = {"cache-control": "no-cache", "etag": asset.etag, "vary": "accept-encoding", **(headers or {})}
    known = request.headers.get("if-none-match", "")
    if status == 200 and asset.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=all_headers)
    body = asset.data
    if asset.zipped is not None and _takes_gzip(request):
        body = asset.zipped
        all_headers["content-encoding"] = "gzip"
    return Response(body, status, all_headers, media_type=asset.media_type)


def _takes_gzip(request: Request) -> bool:
    accepted = request.headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    return "gzip" in (part.partition(";")[0] for part in accepted if not part.endswith(";q=0"))


async def _zipped(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Compress a stream; each chunk can be read at once. Events resemble each other, and become a third as long."""
    zipper = zlib.compressobj(6, zlib.DEFLATED, _GZIP_BITS)
    try:
        async for chunk in chunks:
            yield zipper.compress(chunk) + zipper.flush(zlib.Z_SYNC_FLUSH)
    finally:
        await chunks.aclose()


async def _failed(request: Request, error: Exception) -> Response:
    """Answer with a sentence where a part of the server itself fails; routes answer their own errors."""
    text = one_line(f"{_raw_path(request)}: {type(error).__name__}: {error}", _LONGEST_FAILURE)
    print(f"mldiagnostics: {text}", file=sys.stderr)
    return _respond(json_answer({"error": f"this could not be answered: {type(error).__name__}"}, 500))
