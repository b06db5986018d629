"""The HTTP of google-api-python-client: responses are bounded in size and time.

Connections are the standard library's: httplib2 limits neither and knows no proxy without PySocks; to import requests,
for the clients of common, takes 35 ms, a tenth of `xprofiler list`.
"""

from __future__ import annotations

import base64
import functools
import http.client
import os
import selectors
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import google.auth.exceptions
import httplib2
from ml_diagnostics_common.authorized_requests import LIST_BYTES, RESPONSE_BYTES
from ml_diagnostics_common.bounded_body import BodyError, bounded_pieces
from ml_diagnostics_common.timed_response import TimedResponse

__all__ = ["BoundedHttp"]

_BROKEN = (http.client.HTTPException, BodyError)


class BoundedHttp:
    """Connections that are kept, and tokens that are renewed. Several threads may use it.

    Args:
        credentials: Add the token to each request.
        ca_certs: A file of the authorities to trust; None is that of REQUESTS_CA_BUNDLE, or else what httplib2 trusts.
    """

    def __init__(self, credentials: Any, ca_certs: str | None) -> None:
        self._credentials = credentials
        self._ca_certs = ca_certs
        self._context: ssl.SSLContext | None = None
        self._idle: list[tuple[str, _Connection | _TlsConnection]] = []  # Its append and pop are atomic.

    def within(self, timeout_seconds: float) -> _TimedHttp:
        """Return what google-api-python-client needs of an `httplib2.Http`.

        Args:
            timeout_seconds: How long a request may take in all.
        """
        return _TimedHttp(self, timeout_seconds)

    def request(
        self, uri: str, method: str, body: bytes | None, headers: Mapping[str, str], timeout_seconds: float
    ) -> tuple[httplib2.Response, bytes]:
        """Make one request; twice where the server does not accept the token, with a new one.

        Raises:
            TimeoutError: There was no whole response in time.
            OSError: There was none, or one that is too large.
            google.auth.exceptions.GoogleAuthError: There is no access token.
        """
        deadline = time.monotonic() + timeout_seconds
        token_request = functools.partial(self._request_token, deadline=deadline)
        for is_last in (False, True):
            authorized = dict(headers)
            self._credentials.before_request(token_request, method, uri, authorized)
            answer = self._exchange(uri, method, body, authorized, deadline, LIST_BYTES)
            if answer.status != 401 or is_last:
                break
            self._credentials.refresh(token_request)
        return httplib2.Response({**answer.headers, "status": str(answer.status)}), answer.data

    def close(self) -> None:
        """Close the connections; a later request opens others."""
        while self._idle:
            self._idle.pop()[1].close()

    def _request_token(
        self,
        url: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        *,
        deadline: float,
        **_: Any,
    ) -> _Answer:
        """Make a request of google.auth's, within the time of the request that needs the token."""
        own = deadline if timeout is None else min(deadline, time.monotonic() + timeout)
        data = body.encode() if isinstance(body, str) else body
        try:
            return self._exchange(url, method, data, dict(headers or {}), own, RESPONSE_BYTES)
        except OSError as error:
            raise google.auth.exceptions.TransportError(error) from error

    def _exchange(
        self, uri: str, method: str, body: bytes | None, headers: dict[str, str], deadline: float, most_bytes: int
    ) -> _Answer:
        url = urllib.parse.urlsplit(uri)
        connection = self._connection(url)
        try:
            _give_time(connection, deadline)
            # No more than what is decompressed here, in bounded memory.
            headers = {name: value for name, value in headers.items() if name.lower() != "accept-encoding"}
            headers["accept-encoding"] = "gzip"
            target = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
            if connection.proxy_headers is not None:
                target, headers = uri, {**headers, **connection.proxy_headers}
            connection.request(method, target, body, headers)
            _give_time(connection, deadline)
            response = connection.getresponse()
            pieces = bounded_pieces(
                response.read,
                announced=response.length,
                encoding=response.headers.get("Content-Encoding"),
                most_bytes=most_bytes,
            )
            data = b"".join(pieces)
            if response.length:  # `read` with a size does not raise.
                raise http.client.IncompleteRead(b"", response.length)
        except BaseException as error:
            connection.close()  # What is asked next must not get the answer to this.
            if isinstance(error, _BROKEN):
                raise ConnectionError(str(error) or type(error).__name__) from error
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append((f"{url.scheme}://{url.netloc}", connection))
        return _Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, data)

    def _connection(self, url: urllib.parse.SplitResult) -> _Connection | _TlsConnection:
        """Return a connection that is not in use."""
        kept, found = [], None
        while found is None and self._idle:
            server, connection = self._idle.pop()
            if server != f"{url.scheme}://{url.netloc}":
                kept.append((server, connection))
            elif _is_dropped(connection):
                connection.close()
            else:
                found = connection
        self._idle.extend(kept)
        return found or self._new_connection(url)

    def _new_connection(self, url: urllib.parse.SplitResult) -> _Connection | _TlsConnection:
        host = url.hostname
        if not host or url.scheme not in ("http", "https"):
            raise ConnectionError(f"expected a URL of http or https, got {url.scheme}://{url.netloc}")
        proxy = _proxy(url.scheme, host)
        if proxy is None:
            if url.scheme == "https":
                return _TlsConnection(host, url.port, context=self._trust())
            return _Connection(host, url.port)
        if url.scheme == "https":
            tunnel = _TlsConnection(proxy.host, proxy.port, context=self._trust())
            tunnel.set_tunnel(host, url.port, proxy.headers)
            return tunnel
        plain = _Connection(proxy.host, proxy.port)
        plain.proxy_headers = proxy.headers
        return plain

    def _trust(self) -> ssl.SSLContext:
        if self._context is None:  # It takes milliseconds; two threads may both make one.
            given = self._ca_certs or os.environ.get("REQUESTS_CA_BUNDLE") or httplib2.CA_CERTS
            is_folder = Path(given).is_dir()
            self._context = ssl.create_default_context(
                cafile=None if is_folder else given, capath=given if is_folder else None
            )
        return self._context


class _Proxy(NamedTuple):
    host: str
    port: int | None
    headers: dict[str, str]


def _proxy(scheme: str, host: str) -> _Proxy | None:
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    given = proxies.get(scheme) or proxies.get("all")
    if not given or proxy_bypass(host):
        return None
    proxy = urllib.parse.urlsplit(given if "://" in given else f"http://{given}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ConnectionError(f"the proxy for {scheme} is not one of HTTP: {proxy.scheme}://{proxy.hostname}")
    if not proxy.username:
        return _Proxy(proxy.hostname, proxy.port, {})
    login = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    basic = base64.b64encode(login.encode()).decode()
    return _Proxy(proxy.hostname, proxy.port, {"Proxy-Authorization": f"Basic {basic}"})


class _TimedHttp:
    """A `BoundedHttp` with a time for each request; for google-api-python-client."""

    def __init__(self, bounded: BoundedHttp, timeout_seconds: float) -> None:
        self._bounded = bounded
        self._timeout_seconds = timeout_seconds

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: Any,
    ) -> tuple[httplib2.Response, bytes]:
        """Make one request; see `BoundedHttp.request`."""
        data = body.encode() if isinstance(body, str) else body
        return self._bounded.request(uri, method, data, headers or {}, self._timeout_seconds)

    def close(self) -> None:
        """Do nothing: the connections are closed by their owner."""


class _Answer(NamedTuple):
    """A response, as google.auth reads one."""

    status: int
    headers: dict[str, str]
    data: bytes


class _Connection(http.client.HTTPConnection):
    response_class = TimedResponse
    proxy_headers: dict[str, str] | None = None
    """If it is one to a proxy without a tunnel: what that wants, beside the whole URL."""


class _TlsConnection(http.client.HTTPSConnection):
    response_class = TimedResponse
    proxy_headers = None


def _give_time(connection: Any, deadline: float) -> None:
    """Give the connection's next operation what is left of the time: a `TimedResponse` as a whole.

    Raises:
        TimeoutError: Nothing is left.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    connection.timeout = left
    if connection.sock is not None:
        connection.sock.settimeout(left)


def _is_dropped(connection: Any) -> bool:
    """Return whether the server has closed a connection on which nothing was asked."""
    if connection.sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))
