"""Which session a profile belongs to: the same on all hosts that begin it together, and never one that is over."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from typing import Final

from google_cloud_mldiagnostics.agreement import agree

__all__ = ["SessionIds", "checked_session_id"]

_JOINED_WITHIN_SECONDS: Final = 120.0
_FORMAT: Final = "%Y_%m_%d_%H_%M_%S_%f"
_LONGEST_ID: Final = 120
_TIMEOUT_SECONDS: Final = 3.0
_MOST_STALE: Final = 200


class SessionIds:
    """Names the profiles of a run, in the order in which this process takes them.

    All processes count alike, as they run the same program. One that takes a profile which the others do not is ahead
    of them by one; so a session that another process began more than two minutes ago is passed over.

    Args:
        run_id: The run.
    """

    def __init__(self, run_id: str) -> None:
        self._key = f"xprof/{run_id}"
        self._count = 0
        self._given: Counter[str] = Counter()
        self._taken: set[str] = set()

    def next(self, given: str | None, now: datetime.datetime) -> str:
        """Names the next profile; takes one question to the coordinator of `jax.distributed`, where there is one.

        Args:
            given: The name that the user wants; the second of one name gets a number, so that nothing is overwritten.
            now: In UTC.
        """
        if given is not None:
            self._given[given] += 1
            times = self._given[given]
            return given if times == 1 else f"{given}-{times}"
        proposal = now.strftime(_FORMAT)[:-3]  # Milliseconds.
        for _ in range(_MOST_STALE):
            self._count += 1
            agreed = agree(f"{self._key}/{self._count}", proposal, timeout_seconds=_TIMEOUT_SECONDS)
            if agreed not in self._taken and _age_seconds(agreed, now) < _JOINED_WITHIN_SECONDS:
                break
        else:
            agreed = proposal
        self._taken.add(agreed)
        return agreed

    def skip(self, given: str | None) -> None:
        """Counts a profile that other processes take and this one does not."""
        if given is not None:
            self._given[given] += 1
        else:
            self._count += 1


def checked_session_id(session_id: str | None) -> str | None:
    """Makes a name of a folder of what the user gave; None if nothing is left of it."""
    if session_id is None:
        return None
    return re.sub(r"[^\w.-]+", "_", str(session_id)).lstrip(".")[:_LONGEST_ID] or None


def _age_seconds(session_id: str, now: datetime.datetime) -> float:
    try:
        began = datetime.datetime.strptime(session_id, _FORMAT).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return 0.0  # Of another release of ours.
    return abs((now - began).total_seconds())
