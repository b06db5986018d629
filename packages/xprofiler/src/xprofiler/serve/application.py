"""The WSGI application: our summary page at /, its files, and XProf at the path that its pages expect.

The server listens on loopback, but a page on the internet could still send requests through the user's browser. So
the Host header must name this machine, which prevents DNS rebinding. Requests that write files, or read folders other
than the log directory, are rejected: XProf's own capture, its cache generation, and its path parameters.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError

from xprofiler.serve.page import (
    POLICY,
    STATIC_PREFIX,
    TRACE_VIEWERS,
    XPROF_PREFIX,
    empty_page,
    failure_page,
    summary_page,
)
from xprofiler.serve.static_files import read_static_files
from xprofiler.summary.private_copy import PrivateCopy, xprof_name
from xprofiler.summary.profiles import Profile, find_profiles
from xprofiler.summary.summary import Summary
from xprofiler.summary.text import as_json

__all__ = ["Application", "Catalog", "Wsgi"]

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_FRESH_SECONDS: Final = 2.0  # A page requests the list about ten times in a second.
_KEPT_SUMMARIES: Final = 16
_OUR_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?", re.ASCII)
_CLOSED: Final = frozenset({f"{XPROF_PREFIX}/capture_profile", f"{XPROF_PREFIX}/generate_cache"})
_PATH_PARAMETERS: Final = ("session_path", "run_path")
# XProf closes the connection if the run is missing.
_NEED_A_RUN: Final = frozenset(
    f"{XPROF_PREFIX}/{name}" for name in ("data", "data_csv", "hosts", "module_list", "run_tools")
)
# These cache their results by host, or by program.
_NOT_BY_HOST: Final = TRACE_VIEWERS | {"graph_viewer", "memory_viewer"}
_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class Catalog:
    """The profiles of a log directory while it is served: new ones appear, and files change. Thread-safe.

    Args:
        path: The log directory.
        folder: The folder for XProf's copies of profiles.
        summarize: Read a profile, as `reading.summarize` does.
        clock: Return monotonic seconds.
    """

    def __init__(
        self,
        path: str,
        folder: Path,
        summarize: Callable[[str, dict[str, Path]], Summary],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._copy = PrivateCopy(folder)
        self._summarize = summarize
        self._clock = clock
        self._lock = threading.Lock()
        self._listed: list[Profile] = []
        self._listed_at = float("-inf")
        self._summaries: dict[str, tuple[dict[str, float], Summary]] = {}

    def profiles(self) -> list[Profile]:
        """Return all profiles, the newest first. The list is at most two seconds old."""
        with self._lock:
            if self._clock() - self._listed_at > _FRESH_SECONDS:
                self._listed = find_profiles(self.path)
                self._listed_at = self._clock()
            return self._listed

    def profile(self, name: str) -> Profile:
        """Return the profile of a name.

        Raises:
            NotFoundError: The profile does not exist.
        """
        for profile in self.profiles():
            if profile.name == name:
                return profile
        raise NotFoundError(f"there is no session {name} below {self.path}")

    def files(self, profile: Profile) -> dict[str, Path]:
        """Return a profile's files by host, in a folder where XProf may write."""
        return self._copy.add(profile)

    def xprof_name(self, profile: Profile) -> str:
        """Copy a profile for XProf, and return its name there."""
        self.files(profile)
        return xprof_name(profile.name)

    def xprof_name_of_host(self, profile: Profile, host: str) -> str:
        """Copy one host of a profile for XProf, and return its name there.

        XProf 2.24 caches the results of one host under the name that it also uses for all hosts and for other hosts, so
        its first answer would be repeated for all of them.
        """
        name = f".hosts/{host}/{profile.name}"
        self._copy.add(Profile(name, profile.folder, {host: str(self.files(profile)[host])}))
        return xprof_name(name)

    def summary(self, profile: Profile) -> Summary:
        """Return the summary of a profile; read it again only if a file has changed."""
        files = self.files(profile)
        times = {host: file.stat().st_mtime for host, file in files.items()}
        with self._lock:
            known = self._summaries.get(profile.name)
        if known is not None and known[0] == times:
            return known[1]
        summary = self._summarize(profile.name, files)
        with self._lock:
            self._summaries[profile.name] = (times, summary)
            while len(self._summaries) > _KEPT_SUMMARIES:
                del self._summaries[next(iter(self._summaries))]
        return summary


class _Answer(NamedTuple):
    status: str
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Application:
    """The WSGI application.

    Args:
        catalog: The profiles.
        xprof: XProf's application for the folder that the catalog fills.
    """

    def __init__(self, catalog: Catalog, xprof: Wsgi) -> None:
        self._catalog = catalog
        self._xprof = xprof
        self._static_files = read_static_files()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        answer = self._refused(environ) or self._own(environ) or self._before_xprof(environ)
        if answer is None:
            return self._xprof(environ, start_response)
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            *answer.headers,
        ]
        start_response(answer.status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _refused(self, environ: Mapping[str, Any]) -> _Answer | None:
        if _host_name(environ.get("HTTP_HOST", "")) not in _OUR_NAMES:
            return _text("403 Forbidden", "This server answers only to localhost and 127.0.0.1.")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text("405 Method Not Allowed", "Only GET and HEAD.")
        if _route(environ) in _CLOSED:
            return _text("403 Forbidden", "Not available here: use `xprofiler capture`.")
        if any(name in _parameters(environ) for name in _PATH_PARAMETERS):
            return _text("403 Forbidden", "Only sessions of the served log directory.")
        return None

    def _own(self, environ: Mapping[str, Any]) -> _Answer | None:
        session = _parameters(environ).get("session")
        path = environ["PATH_INFO"]
        if path == "/":
            return self._page(session)
        if path == "/summary.json":
            return self._json(session)
        if path.startswith(STATIC_PREFIX):
            return self._static(path.removeprefix(STATIC_PREFIX))
        if path == XPROF_PREFIX:
            return _Answer("308 Permanent Redirect", _TEXT, b"", (("Location", f"{XPROF_PREFIX}/"),))
        if not path.startswith(f"{XPROF_PREFIX}/"):
            return _text("404 Not Found", "There is nothing here. The summary is at /.")
        return None

    def _static(self, name: str) -> _Answer:
        found = self._static_files.get(name)
        if found is None:
            return _text("404 Not Found", "There is no such file.")
        return _Answer("200 OK", found.media_type, found.data)

    def _before_xprof(self, environ: dict[str, Any]) -> _Answer | None:
        """Copy the requested session for XProf, and answer requests that XProf would answer wrongly or not at all."""
        try:
            if environ["PATH_INFO"] == f"{XPROF_PREFIX}/runs":
                names = sorted((profile.name for profile in self._catalog.profiles()), reverse=True)
                return _Answer("200 OK", _JSON, json.dumps(names).encode())
            if "run" not in _parameters(environ) and _route(environ) in _NEED_A_RUN:
                return _text("400 Bad Request", "The session is missing: add ?run=NAME.")
            if "run" in _parameters(environ):
                parameters = parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)
                run = self._copied(_parameters(environ))
                environ["QUERY_STRING"] = urlencode(
                    [(key, run if key == "run" else value) for key, value in parameters]
                )
        except (DiagnosticsError, OSError) as error:
            return _text(_status(error), str(error))
        return None

    def _copied(self, parameters: Mapping[str, str]) -> str:
        """Copy the session for XProf, or one host of it if requested, and return the name of the copy."""
        profile = self._catalog.profile(parameters["run"])
        host, is_one = parameters.get("host", ""), len(profile.xplanes) == 1
        if is_one or host not in profile.xplanes or parameters.get("tag") in _NOT_BY_HOST:
            return self._catalog.xprof_name(profile)
        return self._catalog.xprof_name_of_host(profile, host)

    def _page(self, session: str | None) -> _Answer:
        path = self._catalog.path
        try:
            profiles = self._catalog.profiles()
        except (DiagnosticsError, OSError) as error:
            return _Answer(_status(error), _HTML, failure_page("The log directory", str(error), [], path))
        if session is None and not profiles:
            return _Answer("200 OK", _HTML, empty_page(path))
        name = session if session is not None else profiles[0].name
        try:
            summary = self._catalog.summary(self._catalog.profile(name))
        except (DiagnosticsError, OSError) as error:
            return _Answer(_status(error), _HTML, failure_page(name, str(error), profiles, path))
        return _Answer("200 OK", _HTML, summary_page(summary, profiles, path))

    def _json(self, session: str | None) -> _Answer:
        try:
            profiles = self._catalog.profiles()
            if session is None and not profiles:
                raise NotFoundError(f"there is no profile below {self._catalog.path}")
            profile = profiles[0] if session is None else self._catalog.profile(session)
            return _Answer("200 OK", _JSON, as_json(self._catalog.summary(profile)).encode())
        except (DiagnosticsError, OSError) as error:
            return _Answer(_status(error), _JSON, json.dumps({"error": str(error)}).encode())


def _parameters(environ: Mapping[str, Any]) -> dict[str, str]:
    return dict(
        reversed(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    )  # The first of equal names wins.


def _host_name(host: str) -> str:
    """Return the name in a Host header; empty if it is not of the form `name:port`."""
    found = _HOST.fullmatch(host)
    return found["name"].lower() if found else ""


def _route(environ: Mapping[str, Any]) -> str:
    return str(environ["PATH_INFO"]).rstrip("/")


def _status(error: Exception) -> str:
    return "404 Not Found" if isinstance(error, (NotFoundError, ObjectNotFoundError)) else "500 Internal Server Error"


def _text(status: str, message: str) -> _Answer:
    return _Answer(status, _TEXT, f"{message}\n".encode())
