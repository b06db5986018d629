"""The verdicts on the runs of a store: which are known, which are old, and which is worked out next."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ml_diagnostics_console._web.doctor_process import DoctorLostError
from ml_diagnostics_console._web.verdict_answer import Judged, not_judged

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["Doctor", "Judging", "Known"]

_LEAST_SECONDS: Final = 30.0
"""A live run changes each second. Its verdict is worked out again after this time, or a hundred times what it took, so
that an open page costs little; at once if its state changes."""
_FACTOR: Final = 100.0
_MOST_PAUSES: Final = 2.0
"""A page that is opened long after another one was closed must not start with what was true then."""
_IDLE_SECONDS: Final = 300.0
"""The time without a question after which the memory of what was read is given back."""
_FIRST_REST_SECONDS: Final = 5.0
_MOST_REST_SECONDS: Final = 600.0
_CLOSE_SECONDS: Final = 5.0
_HEALTHY: Final = "healthy"


class Judging(Protocol):
    """Works out verdicts."""

    def judge(self, run_id: str) -> Judged:
        """Return the verdict on a run, or raise DoctorLostError."""
        ...

    def end(self) -> None:
        """Give back what it keeps, also while it works."""
        ...


class Known(NamedTuple):
    """A verdict that was worked out.

    Attributes:
        version: The version of the run.
        state: Its state.
        at: When, by the monotonic clock.
        seconds: How long it took.
        judged: The verdict, or why there is none.
        is_lost: True if the doctor was lost over it.
    """

    version: int
    state: str
    at: float
    seconds: float
    judged: Judged
    is_lost: bool = False


class Doctor:
    """Has verdicts worked out one after the other, the last one that was asked for first.

    A doctor that is lost is asked again when the run has changed: at once, then after ever longer rests while no other
    question is answered either.

    Args:
        judging: Works them out.
        idle_seconds: It gives back what it keeps after this time without a question.
    """

    def __init__(self, judging: Judging, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._judging, self._idle_seconds = judging, idle_seconds
        self._lock = threading.Condition()
        self._known: dict[str, Known] = {}
        self._news: set[str] = set()
        self._waiting: dict[str, RunData] = {}
        self._working = ""
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._losses, self._rests_until = 0, 0.0

    def ask(self, run: RunData) -> dict[str, Any]:
        """Return the answer on a run, and have it worked out if it is not known, or old.

        One of another state, or of long ago, is none: "slow" is not why a run has ended.
        """
        with self._lock:
            known = self._known.get(run.id)
            if known is not None and not self._is_old(known, run):
                return known.judged.answer
            if not self._request(run):
                return known.judged.answer if known is not None else self._why_it_rests()
            is_shown = known is not None and known.state == run.state and not known.is_lost
            if known is None or not is_shown or _age(known) > _MOST_PAUSES * _pause(known):
                return {"state": "working"}
            return known.judged.answer

    def known(self, run: RunData) -> Known | None:
        """Return what is known of a run."""
        with self._lock:
            return self._known.get(run.id)

    def answer(self, run: RunData) -> dict[str, Any] | None:
        """Return the answer on a run if it has a sentence, and is of its present state; None without one."""
        known = self.known(run)
        if known is None or known.state != run.state or not known.judged.answer.get("sentence"):
            return None
        return known.judged.answer

    def finding(self, run: RunData) -> str:
        """Return the sentence on what is wrong with a run; empty if nothing is, or none is known that still holds."""
        known = self.known(run)
        answer = self.answer(run)
        if known is None or answer is None or answer.get("class") == _HEALTHY:
            return ""
        is_stale = run.is_live and _age(known) > _MOST_PAUSES * _pause(known)
        return "" if is_stale else str(answer["sentence"])

    def take_news(self) -> set[str]:
        """Return the runs with another verdict than at the last call."""
        with self._lock:
            news, self._news = self._news, set()
            return news

    def wait(self, run: RunData, seconds: float) -> dict[str, Any]:
        """Return the answer on the run as it is, waiting for it so long at most."""
        deadline, wanted = time.monotonic() + seconds, run.version
        with self._lock:
            while True:
                known = self._known.get(run.id)
                if known is not None and known.version >= wanted:
                    return known.judged.answer
                self._request(run)
                left = deadline - time.monotonic()
                if left <= 0 or not self._lock.wait(left):
                    return known.judged.answer if known is not None else {"state": "working"}

    def take(self, run: RunData, judged: Judged) -> None:
        """Take a verdict that was worked out elsewhere, on the run as it is."""
        with self._lock:
            kept = replace(judged, reports="")
            self._keep(run, Known(run.version, run.state, time.monotonic(), 0.0, kept))

    def close(self) -> None:
        """Work out no more, and end what is being worked out."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            self._lock.notify_all()
            thread = self._thread
        self._judging.end()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while thread is not None and thread.is_alive() and time.monotonic() < deadline:
            self._judging.end()  # It may have started another one meanwhile.
            thread.join(0.1)

    def _keep(self, run: RunData, known: Known) -> None:
        before = self._known.get(run.id)
        self._known[run.id] = known
        if before is None or (before.judged.answer, before.state) != (known.judged.answer, known.state):
            self._news.add(run.id)
        self._lock.notify_all()

    def _is_old(self, known: Known, run: RunData) -> bool:
        if known.is_lost:
            return known.version != run.version or _age(known) > _LEAST_SECONDS
        if known.version == run.version:
            return False
        return not run.is_live or known.state != run.state or _age(known) > _pause(known)

    def _why_it_rests(self) -> dict[str, Any]:
        if self._is_closed:
            return not_judged("the server is ending").answer
        seconds = max(1, round(self._rests_until - time.monotonic()))
        return not_judged(f"its process has ended {self._losses} times; it is started again in {seconds} s").answer

    def _request(self, run: RunData) -> bool:
        """Have a run judged next; return False if the doctor rests, or is closed. The lock is held."""
        if self._is_closed or time.monotonic() < self._rests_until:
            return False
        if run.id != self._working:
            self._waiting.pop(run.id, None)
            self._waiting[run.id] = run
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="doctor", daemon=True)
                self._thread.start()
            self._lock.notify_all()
        return True

    def _work(self) -> None:
        while (run := self._next()) is not None:
            version, state, started = run.version, run.state, time.monotonic()
            try:
                judged, is_lost = self._judging.judge(run.id), False
            except DoctorLostError as error:
                judged, is_lost = not_judged(str(error)), True
            with self._lock:
                now = time.monotonic()
                self._working = ""
                self._keep(run, Known(version, state, now, now - started, judged, is_lost))
                self._losses = self._losses + 1 if is_lost else 0
                if self._losses > 1:
                    rest_seconds = _FIRST_REST_SECONDS * 2 ** min(self._losses, 20)
                    self._rests_until = now + min(rest_seconds, _MOST_REST_SECONDS)
            del run
        self._judging.end()

    def _next(self) -> RunData | None:
        """Wait for the next run; None when there will be none. What is kept is given back while nothing is asked."""
        is_idle = False
        while True:
            with self._lock:
                if self._is_closed:
                    return None
                if self._waiting:
                    self._working, run = self._waiting.popitem()
                    return run
                if not self._lock.wait(None if is_idle else self._idle_seconds) and not self._waiting:
                    is_idle = True
            if is_idle:
                self._judging.end()


def _age(known: Known) -> float:
    return time.monotonic() - known.at


def _pause(known: Known) -> float:
    """Return the time after which the verdict on a live run is worked out again, in seconds."""
    return max(_LEAST_SECONDS, _FACTOR * known.seconds)
