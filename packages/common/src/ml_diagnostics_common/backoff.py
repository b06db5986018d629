"""Limits of remote calls: how long to wait, when to give up, how many requests a minute, how many pages of a list."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ml_diagnostics_common.failures import RemoteError, classify

__all__ = ["Backoff", "EndlessListError", "PageTokens", "RequestBudget", "Retries"]

_T = TypeVar("_T")
_LONGEST_REQUESTED_SECONDS = 600.0
_MOST_PAGES_WITHOUT_NEWS = 100


class Backoff:
    """Exponential backoff with jitter that is never shorter than the delay that the server asks for.

    Args:
        first_seconds: The longest wait after the first failure.
        longest_seconds: The longest wait of our own choosing; a server may ask for ten minutes.

    Attributes:
        failures: Failures since the last success.
    """

    def __init__(self, first_seconds: float = 1.0, longest_seconds: float = 60.0) -> None:
        self.failures = 0
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds

    def failed(self, retry_after_seconds: float | None = None) -> float:
        """Count one more failure, and return how long to wait.

        Half of the wait is fixed and half is random, so that many processes that failed together do not retry
        together.

        Args:
            retry_after_seconds: The delay that the server asks for; None if it asks for none.

        Returns:
            Seconds to wait before the next attempt.
        """
        from random import SystemRandom  # Not at the top: it loads hashlib, and most jobs never need it.

        random = SystemRandom()  # The job's own generator, which it may have seeded, must not be advanced.
        ceiling = min(self._longest_seconds, self._first_seconds * 2.0 ** min(self.failures, 30))
        self.failures += 1
        wait = ceiling * (0.5 + 0.5 * random.random())
        if retry_after_seconds is not None:
            requested = min(retry_after_seconds, max(self._longest_seconds, _LONGEST_REQUESTED_SECONDS))
            wait = max(wait, requested + 0.1 * ceiling * random.random())
        return wait

    def succeeded(self) -> None:
        """Reset the failures to zero."""
        self.failures = 0


class Retries:
    """The retries of one call.

        data = Retries(Backoff(), seconds_left=lambda: deadline - time.monotonic())(download)

    Args:
        backoff: Returns the waits.
        seconds_left: Returns how long the call may still take. A wait that takes longer is not started.
        most_tries: The limit of tries, the first included.
        retry_if: Return whether to retry after a failure; by default after a temporary one.
        sleep: Wait for a number of seconds; return True to give up, as the `wait` of an event does.
    """

    def __init__(
        self,
        backoff: Backoff,
        *,
        seconds_left: Callable[[], float] = lambda: math.inf,
        most_tries: float = math.inf,
        retry_if: Callable[[RemoteError], bool] = lambda failure: failure.is_temporary,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._backoff = backoff
        self._seconds_left = seconds_left
        self._most_tries = most_tries
        self._retry_if = retry_if
        self._sleep = sleep

    @property
    def failures(self) -> int:
        """The number of tries that failed."""
        return self._backoff.failures

    def __call__(self, call: Callable[[], _T]) -> _T:
        """Make a call until it succeeds; raise its error if no retry is left."""
        while True:
            try:
                return call()
            except Exception as error:
                self.wait_after(error)

    def wait_after(self, error: Exception) -> None:
        """Wait before the next try; raise the error if no retry is left."""
        failure = classify(error)
        seconds = self._backoff.failed(failure.retry_after_seconds)
        is_last = self.failures >= self._most_tries or seconds >= self._seconds_left()
        if is_last or not self._retry_if(failure) or self._sleep(seconds):
            raise error


class RequestBudget:
    """A limit of requests in any 60 seconds. All readers of one project may share one.

    Args:
        requests_per_minute: The limit.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.
    """

    def __init__(
        self,
        requests_per_minute: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sent: deque[float] = deque(maxlen=max(1, requests_per_minute))
        self._clock = clock
        self._sleep = sleep

    def spend(self) -> float:
        """Wait until the limit allows one more request, and count it.

        Returns:
            Seconds waited.
        """
        waited = 0.0
        if len(self._sent) == self._sent.maxlen:
            waited = max(0.0, self._sent[0] + 60.0 - self._clock())
            if waited > 0:
                self._sleep(waited)
        self._sent.append(self._clock())
        return waited


class EndlessListError(Exception):
    """A list makes no progress: its server repeats a page token, or sends page after page with nothing new."""


class PageTokens:
    """Check the page tokens of one list, which may repeat or never end.

    tokens = PageTokens()
    while True:
        page = ask(token)
        token = tokens.next(page.next_page_token, has_news=bool(page.items))
        if not token:
            return
    """

    def __init__(self) -> None:
        self._sent = ""
        self._without_news = 0

    def next(self, token: str, *, has_news: bool) -> str:
        """Return the token to send next; empty after the last page.

        Args:
            token: The next token, as in the page.
            has_news: True if the page had an item that the pages before it did not have.

        Raises:
            EndlessListError: The list makes no progress.
        """
        if token and token == self._sent:
            raise EndlessListError(f"the page token {token[:40]!r} repeats: the list would never end")
        self._without_news = 0 if has_news else self._without_news + 1
        if token and self._without_news >= _MOST_PAGES_WITHOUT_NEWS:
            raise EndlessListError(f"{self._without_news} pages in a row had nothing new: the list may never end")
        self._sent = token
        return token
