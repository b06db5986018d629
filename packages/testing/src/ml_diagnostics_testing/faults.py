"""Faults on demand: what goes wrong, for which requests, and when.

    server.faults.script([Status(503), Status(429, retry_after=2), None, Reset()], on="write")
    server.faults.sometimes(Status(503, after_apply=True), probability=0.5, on="write")
    server.faults.always(Skew(-3600))

Every server of this package has `faults`, and asks it once a request. They are the same over HTTP and gRPC.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """The server answers with an error.

    Args:
        code: The HTTP status; over gRPC the status that Google's APIs pair with it (503 is UNAVAILABLE).
        retry_after: Seconds in the Retry-After header; over gRPC, in a `google.rpc.RetryInfo`.
        after_apply: Do what was asked, and only then answer with the error: a client that retries asks twice.
        reason: The error's reason in Google's JSON, such as "rateLimitExceeded"; empty is that of the status. Only
            over HTTP.
    """

    code: int = 503
    retry_after: float | None = None
    after_apply: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Reset:
    """The connection breaks instead of an answer (TCP RST; over gRPC, the call ends UNAVAILABLE).

    Args:
        after_apply: Do what was asked, and only then break the connection.
    """

    after_apply: bool = False


@dataclass(frozen=True)
class Hang:
    """The server takes the request and says nothing; in the end it breaks the connection.

    Args:
        seconds: How long. None is until `Faults.release`, the client leaves (gRPC) or the server closes.
        after_apply: Do what was asked before falling silent.
    """

    seconds: float | None = None
    after_apply: bool = False


@dataclass(frozen=True)
class Truncate:
    """The request is done, and its answer ends in mid-body (over gRPC, the call ends with INTERNAL).

    Args:
        keep_bytes: How much of the body still arrives.
    """

    keep_bytes: int = 10


@dataclass(frozen=True)
class Oversize:
    """The request is done, and its answer is a JSON object of the size given, made while it is sent.

    Args:
        size_bytes: The size of the body, before it is compressed.
        gzip: Compress it: a thousandth of it is sent. It is sent over gRPC compressed, too.
    """

    size_bytes: int
    gzip: bool = False


@dataclass(frozen=True)
class Drip:
    """The request is done, and its answer arrives one byte at a time (over gRPC, it never arrives).

    Args:
        seconds: Between two bytes.
        body_only: Send the headers at once.
    """

    seconds: float = 0.5
    body_only: bool = False


@dataclass(frozen=True)
class Delay:
    """The server works, slowly.

    Args:
        seconds: Time from the request's arrival until work on it begins.
    """

    seconds: float


@dataclass(frozen=True)
class Skew:
    """The server's clock is wrong: the Date header, and every time that the server itself assigns.

    Args:
        seconds: How much the clock is fast; negative is slow.
    """

    seconds: float


Ending = Status | Reset | Hang | Truncate | Oversize | Drip
Fault = Ending | Delay | Skew


@dataclass(frozen=True)
class Plan:
    """What one request will suffer.

    Attributes:
        delay_seconds: Time to wait before the request is looked at.
        skew_seconds: How much the server's clock is fast for this request.
        ending: How the request ends; None is well.
    """

    delay_seconds: float = 0.0
    skew_seconds: float = 0.0
    ending: Ending | None = None

    @property
    def applies(self) -> bool:
        """Whether the server does what was asked."""
        return self.ending is None or isinstance(self.ending, Truncate | Oversize | Drip) or self.ending.after_apply


@dataclass
class _Rule:
    faults: Iterator[Fault | None]
    on: str | None


@dataclass
class Faults:
    """The faults of one server. Safe to change while the server runs.

    Rules are asked in the order in which they were added. Delays and skews add up; the first other fault
    decides how the request ends, and later rules are not asked. `on` limits a rule to one operation of the
    server ("write", "list", ...; each server names its own); None is every operation.

    Attributes:
        injected: Every fault that was injected, oldest first, with the operation that it hit.
    """

    injected: list[tuple[str, Fault]] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)
    _closed: bool = False

    def script(self, faults: Iterable[Fault | None], *, on: str | None = None) -> None:
        """Give the next requests one fault each, in this order; None lets one pass. Then the script ends."""
        self._add(iter(tuple(faults)), on)

    def always(self, fault: Fault, *, on: str | None = None) -> None:
        """Give every request this fault, until `clear`."""
        self._add(iter(lambda: fault, None), on)

    def sometimes(self, fault: Fault, *, probability: float, on: str | None = None, seed: int = 0) -> None:
        """Give a share of the requests this fault, until `clear`.

        Args:
            fault: The fault.
            probability: The share, 0 to 1.
            on: The operation; None is every one.
            seed: Fixes which requests are hit: the same seed, the same ones.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability}; give a share between 0 and 1")
        dice = random.Random(seed)
        self._add((fault if dice.random() < probability else None for _ in iter(int, 1)), on)

    def clear(self) -> None:
        """Forget every rule and let hanging requests go; `injected` stays."""
        with self._lock:
            self._rules.clear()
        self.release()

    def release(self) -> None:
        """End every `Hang` and `Delay` under way."""
        with self._lock:
            self._released.set()
            if not self._closed:
                self._released = threading.Event()

    def close(self) -> None:
        """Forget every rule, and let nothing hang any more."""
        with self._lock:
            self._rules.clear()
            self._closed = True
        self.release()

    def plan(self, operation: str) -> Plan:
        """Decide what the next request for an operation suffers. Servers call this, once a request."""
        delay_seconds = skew_seconds = 0.0
        with self._lock:
            for rule in self._rules:
                if rule.on not in (None, operation):
                    continue
                fault = next(rule.faults, None)
                if fault is None:
                    continue
                self.injected.append((operation, fault))
                if isinstance(fault, Delay):
                    delay_seconds += fault.seconds
                elif isinstance(fault, Skew):
                    skew_seconds += fault.seconds
                else:
                    return Plan(delay_seconds, skew_seconds, fault)
        return Plan(delay_seconds, skew_seconds)

    def wait(self, seconds: float | None, while_: Callable[[], bool] | None = None) -> None:
        """Hold the calling thread for a time, or until `release`. Servers call this.

        Args:
            seconds: How long; None is for ever.
            while_: Asked now and then: False ends the wait.
        """
        with self._lock:
            released = self._released
        if while_ is None:
            released.wait(seconds)
            return
        end = math.inf if seconds is None else time.monotonic() + seconds
        while while_() and (left := end - time.monotonic()) > 0 and not released.wait(min(left, 0.02)):
            pass

    def _add(self, faults: Iterator[Fault | None], on: str | None) -> None:
        with self._lock:
            self._rules.append(_Rule(faults, on))
