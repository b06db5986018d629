"""Which answers of a run go into its case file: each page's first, then zoomed ones while there is space.

The page in the file asks for the same paths as on the server; of windows and widths it takes the smallest window that
holds what is asked for. So each drawing is there as a whole, and as halves, quarters and eighths.
"""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import numpy as np
import numpy.typing as npt
from ml_diagnostics_common.redaction import redact_text

from ml_diagnostics_console._web.answers import Answer
from ml_diagnostics_console._web.case_report import without_secrets, zipped
from ml_diagnostics_console._web.profile_view import read_summaries
from ml_diagnostics_console._web.routes import handle
from ml_diagnostics_console._web.store import Store
from ml_diagnostics_console._web.wire import MAGIC, decode, encode

__all__ = ["CaseAnswers", "CaseBlock", "collect"]

Column = npt.NDArray[Any]

_LEVELS: Final = 4
_ALWAYS_INSIDE: Final = 40
"""The first so many answers are inside however large they are: those that the first pages need."""
_WIDTH: Final = 800
_ZOOMED_WIDTH: Final = 320
_HEAT_SHARE: Final = 2
"""Rows of hosts have one value for so many pixels: there are as many rows as hosts."""
_MOST_METRICS: Final = 200
_MOST_MOMENTS: Final = 8
_PROFILE_SECONDS: Final = 30.0
_MOST_LOGS: Final = 128
_LOG_BYTES: Final = 65_536
_LOG_HEADERS: Final = ("x-log-size", "x-log-from", "x-log-next")
_AXES: Final = ("time", "step", "elapsed")
_FLOAT_BITS: Final = 18
"""Bits of a value that are kept, of five digits: noise below them would be half of the file."""
_TIME_COLUMNS: Final = frozenset({"x", "mean_x", "odd_x"})
_MILLISECONDS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class CaseBlock:
    """An answer in the file.

    Attributes:
        path: The path that the page asks for.
        text: The answer, as gzip in base64.
        headers: The headers that the page reads.
    """

    path: str
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its size in the file, in bytes."""
        return len(self.markup.encode()) + 1

    @property
    def markup(self) -> str:
        """Its element: data that no browser runs."""
        headers = f' data-headers="{html.escape(json.dumps(dict(self.headers)))}"' if self.headers else ""
        return f'<script type="text/plain" data-answer="{html.escape(self.path)}"{headers}>{self.text}</script>'


@dataclass
class CaseAnswers:
    """The collected answers.

    Attributes:
        blocks: The answers.
        inside: Sentences on what is inside.
        left_out: Sentences on what was left out, and why.
    """

    blocks: list[CaseBlock] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def collect(store: Store, run_id: str, most_bytes: int) -> CaseAnswers:
    """Return the answers on a run.

    Args:
        store: The runs.
        run_id: The run.
        most_bytes: The most bytes of all blocks together. What every page needs first is always inside.
    """
    return _Collector(store, run_id, most_bytes).collect()


class _Collector:
    def __init__(self, store: Store, run_id: str, most_bytes: int) -> None:
        self._store, self._most_bytes = store, most_bytes
        self._base = f"/api/runs/{quote(run_id, safe='')}"
        self._found = CaseAnswers()
        self._bytes = 0
        self._is_full = False

    def collect(self) -> CaseAnswers:
        run = self._json(self._base)
        if run is None:
            return self._found
        self._found.inside.append("the overview of the run")
        self._verdict()
        self._stacks()
        self._small("configs", "its configs")
        self._profiles(run)
        self._logs()
        self._drawings(run)
        return self._found

    def _ask(self, path: str) -> Answer | None:
        address, _, query = path.partition("?")
        answer = handle(self._store, address, dict(parse_qsl(query, keep_blank_values=True)))
        return answer if answer.status == 200 else None

    def _put(self, path: str, answer: Answer, *, is_needed: bool = True, shown: str = "") -> bool:
        """Add an answer without secrets; False if there is no space for it and it is not needed."""
        headers = {name.lower(): value for name, value in answer.headers.items() if name.lower() in _LOG_HEADERS}
        block = CaseBlock(shown or path, zipped(_safe(answer)), headers)
        if not is_needed and self._bytes + block.size > self._most_bytes:
            self._is_full = True
            return False
        self._bytes += block.size
        self._found.blocks.append(block)
        return True

    def _json(self, path: str) -> Any:
        answer = self._ask(path)
        if answer is None:
            return None
        self._put(path, answer)
        return msgspec.json.decode(answer.body)

    def _small(self, name: str, title: str) -> None:
        if self._json(f"{self._base}/{name}") is not None:
            self._found.inside.append(title)
        else:
            self._found.left_out.append(f"{title}: this version cannot answer them")

    def _verdict(self) -> None:
        verdict = self._json(f"{self._base}/verdict")
        if verdict is None:
            return
        self._found.inside.append("the doctor's verdict with its proofs")
        for proof in verdict.get("proofs") or []:
            if proof.get("explain"):
                self._json(f"{self._base}/explain?of={quote(str(proof['explain']), safe='')}")

    def _stacks(self) -> None:
        newest = self._json(f"{self._base}/stacks")
        if newest is None:
            return
        moments = newest.get("moments") or []
        kept = 0
        for at in _evenly(moments, _MOST_MOMENTS):
            path = f"{self._base}/stacks?at={_number(at)}"
            answer = self._ask(path)
            kept += answer is not None and self._put(path, answer, is_needed=False)
        self._found.inside.append(f"stacks at {kept} of {len(moments)} moments" if moments else "stacks")
        if kept < len(moments):
            self._found.left_out.append(f"stacks at {len(moments) - kept} other moments")

    def _profiles(self, run: Mapping[str, Any]) -> None:
        sessions = run.get("sessions") or []
        if sessions:
            read_summaries(self._store, str(run.get("id")), _PROFILE_SECONDS)
        states = [
            (self._json(f"{self._base}/profiles/{quote(str(session.get('id')), safe='')}") or {}).get("state")
            for session in sessions
        ]
        if sessions:
            self._found.inside.append(f"summaries of {states.count('ready')} of {len(sessions)} profiles")
            self._found.left_out.append("the profiles themselves: they stay in the run's folder")

    def _logs(self) -> None:
        listed = self._json(f"{self._base}/logs")
        sources = (listed or {}).get("sources") or []
        for source in sources[:_MOST_LOGS]:
            choice = {"host": str(source.get("host", "")), "stream": str(source.get("stream", ""))}
            answer = self._ask(f"{self._base}/logs?{urlencode({**choice, 'tail': str(_LOG_BYTES)})}")
            if answer is not None:  # Under the path that the page asks for: it shows more than it expects.
                asked = {**choice, "host": redact_text(choice["host"]), "tail": "4096"}
                shown = f"{self._base}/logs?{urlencode(asked)}"
                self._put(shown, answer, is_needed=False, shown=shown)
        if sources:
            self._found.inside.append(f"the last {_LOG_BYTES // 1024} kB of {min(len(sources), _MOST_LOGS)} logs")
            self._found.left_out.append("earlier lines of the logs, and their search")

    def _drawings(self, run: Mapping[str, Any]) -> None:
        metrics = list(run.get("metrics_list") or [])
        shown = metrics[:_MOST_METRICS]
        start, end = run.get("started"), run.get("ended") or run.get("beat") or run.get("now")
        times = (float(start), float(end)) if start and end and end > start else None
        paths = list(self._curves(shown))
        done: dict[int, int] = dict.fromkeys(range(_LEVELS), 0)
        for level in range(_LEVELS):
            for name, span in (("ledger", times), *((f"heat?metric={_name(each)}", times) for each in shown)):
                if name == "ledger" or _hosts(shown, name) > 1:
                    self._windows(name, level, span)
            for path, axis in paths:
                if axis == "elapsed" and level:
                    continue
                span = times if axis == "time" else self._steps(path) if axis == "step" else None
                done[level] += self._windows(path, level, span)
            if level == 0:
                self._replaced(run, shown)
        full = [level for level in range(_LEVELS) if done[level] >= sum(a != "elapsed" for _, a in paths) * 2**level]
        self._found.inside.append(f"{len(shown)} metrics, where the time went and rows of hosts")
        if len(metrics) > len(shown):
            self._found.left_out.append(f"{len(metrics) - len(shown)} further metrics")
        if len(full) < _LEVELS:
            self._found.left_out.append(f"zoomed drawings beyond {2 ** max(0, len(full) - 1)} times, of some metrics")

    def _curves(self, metrics: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield the paths of curves without their windows, and their axis, those of the first pages first."""
        for axis in _AXES:
            for metric in metrics:
                spread = "&hosts=spread" if (metric.get("hosts") or 1) > 1 else ""
                # Without steps, the axis of steps is answered with times.
                answered = axis if axis != "step" or metric.get("has_steps") else "elapsed"
                yield f"points?metric={_name(metric)}&x={axis}{spread}", answered

    def _replaced(self, run: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> None:
        """Add the values of steps that were done again after a restart."""
        if len(run.get("attempt_list") or ()) < 2:
            return
        for metric in metrics:
            if metric.get("has_steps") and (metric.get("hosts") or 1) == 1:
                path = f"{self._base}/points?metric={_name(metric)}&x=step&replaced=1&width={_WIDTH}"
                answer = self._ask(path)
                if answer is not None and decode(answer.body)[0].get("curves"):
                    self._put(path, answer, is_needed=False)

    def _steps(self, path: str) -> tuple[float, float] | None:
        """Return the span of the axis of steps of a metric."""
        answer = self._ask(f"{self._base}/{path}&width=1")
        if answer is None:
            return None
        x = decode(answer.body)[1].get("x")
        return (float(x[0]), float(x[-1])) if x is not None and len(x) > 1 and x[-1] > x[0] else None

    def _windows(self, path: str, level: int, span: tuple[float, float] | None) -> int:
        """Add the windows of a level of one drawing, and return how many are there."""
        base, share = f"{self._base}/{path}", _HEAT_SHARE if path.startswith("heat?") else 1
        joint = "&" if "?" in path else "?"
        if level == 0:
            full = f"{base}{joint}width={_WIDTH // share}"
            answer = self._ask(full)
            return int(
                answer is not None and self._put(full, answer, is_needed=len(self._found.blocks) < _ALWAYS_INSIDE)
            )
        if span is None or self._is_full:
            return 0
        count, kept = 2**level, 0
        edges = [span[0] + (span[1] - span[0]) * n / count for n in range(count + 1)]
        for low, high in itertools.pairwise(edges):
            window = f"{base}{joint}from={_number(low)}&to={_number(high)}&width={_ZOOMED_WIDTH // share}"
            answer = None if self._is_full else self._ask(window)
            kept += answer is not None and self._put(window, answer, is_needed=False)
        return kept


def _safe(answer: Answer) -> bytes:
    """Return the body of an answer without secrets, and without noise below what a drawing shows."""
    if answer.body.startswith(MAGIC):
        return _rounded(answer.body)
    if answer.media_type.startswith("application/json"):
        return msgspec.json.encode(without_secrets(msgspec.json.decode(answer.body)))
    return redact_text(answer.body.decode("utf-8", "replace")).encode()


def _rounded(body: bytes) -> bytes:
    """Return columns with values of five digits, and times of milliseconds: they become half as large."""
    header, columns = decode(body)
    header = without_secrets(header)
    is_time = header.get("x") != "step"
    rounded = []
    for name, column in columns.items():
        if column.dtype == np.uint8:
            rounded.append(column)
        elif name in _TIME_COLUMNS or name in ("start", "end"):
            rounded.append(np.round(column * _MILLISECONDS) / _MILLISECONDS if is_time else column)
        else:
            rounded.append(_five_digits(column))
    return encode(header, rounded)


def _five_digits(column: Column) -> Column:
    mantissas, exponents = np.frexp(column)
    rounded: Column = np.ldexp(np.round(mantissas * 2.0**_FLOAT_BITS) / 2.0**_FLOAT_BITS, exponents)
    return rounded


def _evenly(moments: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many moments, the last one among them."""
    if len(moments) <= most:
        return list(moments)
    return [moments[math.ceil((n + 1) * len(moments) / most) - 1] for n in range(most)]


def _name(metric: Mapping[str, Any]) -> str:
    return quote(str(metric.get("name", "")), safe="")


def _hosts(metrics: Sequence[Mapping[str, Any]], path: str) -> int:
    """Return the number of hosts of the metric of a path of heat."""
    return next((metric.get("hosts") or 1 for metric in metrics if path == f"heat?metric={_name(metric)}"), 1)


def _number(value: float) -> str:
    """Return a number as the page writes it into a path."""
    number = float(value)
    return str(int(number)) if number.is_integer() else repr(number)
