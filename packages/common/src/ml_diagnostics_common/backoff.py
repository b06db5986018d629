"""How long to wait after a failure, and how often to ask: the two ways in which we are gentle to a server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["Backoff", "RequestBudget"]

_LONGEST_ASKED_SECONDS = 600.0


class Backoff:
    """Exponential backoff with jitter that never undercuts what the server asked for.

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
        """Counts one more failure and says how long to wait.

        Half of the wait is fixed and half is drawn, so that many processes that failed together do not come
        back together.

        Args:
            retry_after_seconds: The wait that the server asked for, if it did.

        Returns:
            Seconds to wait before the next attempt.
        """
        import random  # Only here: it loads hashlib, and most jobs never need it.

        ceiling = min(self._longest_seconds, self._first_seconds * 2.0 ** min(self.failures, 30))
        self.failures += 1
        wait = ceiling * (0.5 + 0.5 * random.random())
        if retry_after_seconds is not None:
            asked = min(retry_after_seconds, max(self._longest_seconds, _LONGEST_ASKED_SECONDS))
            wait = max(wait, asked + 0.1 * ceiling * random.random())
        return wait

    def succeeded(self) -> None:
        """Forgets the failures."""
        self.failures = 0


class RequestBudget:
    """At most so many requests in any 60 seconds; whoever asks for more waits. One project may share one.

    Args:
        requests_per_minute: How many requests may go out in any 60 seconds.
        clock: Monotonic seconds.
        sleep: Waits a number of seconds.
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
        """Waits until one more request fits, and counts it.

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
