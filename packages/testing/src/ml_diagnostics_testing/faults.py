"""Fault injection: which faults to apply to which requests, and when.

    server.faults.script([Status(503), Status(429, retry_after=2), None, Reset()], on="write")
    server.faults.sometimes(Status(503, after_apply=True), probability=0.5, on="write")
    server.faults.always(Skew(-3600))

Every server of this package has `faults`, and consults it once per request. Faults work over HTTP and gRPC.
"""

import math
import random
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

_START, _END = b'{"padding": "', b'"}'
_BLOCK = b"x" * (1 << 20)
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@dataclass(frozen=True)
class Status:
    """Answer with an error.

    Args:
        code: The HTTP status; over gRPC the status that Google's APIs pair with it (503 is UNAVAILABLE).
        retry_after: Seconds in the Retry-After header; over gRPC, in a `google.rpc.RetryInfo`.
        after_apply: Apply the request before answering with the error, so that a client that retries applies it twice.
        reason: The error's reason in Google's JSON, such as "rateLimitExceeded"; by default that of the status. Only
            over HTTP.
    """

    code: int = 503
    retry_after: float | None = None
    after_apply: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Reset:
    """Break the connection instead of answering (TCP RST; over gRPC, the call ends UNAVAILABLE).

    Args:
        after_apply: Apply the request before breaking the connection.
    """

    after_apply: bool = False


@dataclass(frozen=True)
class Hang:
    """Accept the request and send nothing; break the connection in the end.

    Args:
        seconds: The duration. None: until `Faults.release`, until the client cancels (gRPC) or the server closes.
        after_apply: Apply the request first.
    """

    seconds: float | None = None
    after_apply: bool = False


@dataclass(frozen=True)
class Truncate:
    """Apply the request, and cut the answer off in mid-body (over gRPC, the call ends with INTERNAL).

    Args:
        keep_bytes: How many bytes of the body are sent.
    """

    keep_bytes: int = 10


@dataclass(frozen=True)
class Oversize:
    """Apply the request, and answer with a JSON object of a given size, generated while it is sent.

    Args:
        size_bytes: The size of the body before compression.
        gzip: Compress the body, to a thousandth of its size. This applies to gRPC, too.
    """

    size_bytes: int
    gzip: bool = False

    def body(self) -> Iterator[bytes]:
        """Yield the body in pieces, so that its size costs no memory."""
        return _gzipped_object(self.size_bytes) if self.gzip else _plain_object(self.size_bytes)


@dataclass(frozen=True)
class Drip:
    """Apply the request, and send the answer one byte at a time (over gRPC, send nothing).

    Args:
        seconds: The pause between two bytes.
        body_only: Send the headers at once.
    """

    seconds: float = 0.5
    body_only: bool = False


@dataclass(frozen=True)
class Delay:
    """Wait before handling the request.

    Args:
        seconds: The time from the request's arrival until it is handled.
    """

    seconds: float


@dataclass(frozen=True)
class Skew:
    """Skew the server's clock: the Date header, and every time that the server itself assigns.

    Args:
        seconds: How far the clock is ahead; negative if it is behind.
    """

    seconds: float


Ending = Status | Reset | Hang | Truncate | Oversize | Drip
Fault = Ending | Delay | Skew


@dataclass(frozen=True)
class Plan:
    """The faults of one request.

    Attributes:
        delay_seconds: The time to wait before handling the request.
        skew_seconds: How far the server's clock is ahead for this request.
        ending: The fault that ends the request; None if it succeeds.
        released: Is set by the next `release`, also if the request waits only afterwards.
    """

    delay_seconds: float = 0.0
    skew_seconds: float = 0.0
    ending: Ending | None = None
    released: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    @property
    def applies(self) -> bool:
        """True if the server applies the request."""
        return self.ending is None or isinstance(self.ending, Truncate | Oversize | Drip) or self.ending.after_apply


@dataclass
class _Rule:
    faults: Iterator[Fault | None]
    on: str | None


@dataclass
class Faults:
    """The faults of one server. Safe to change while the server runs.

    Rules apply in the order in which they were added. Delays and skews add up; the first other fault ends the
    request, and later rules are skipped. `on` limits a rule to one operation of the server ("write", "list", ...;
    each server documents its own); None means every operation.

    Attributes:
        injected: Every injected fault, oldest first, with the operation of the request.
    """

    injected: list[tuple[str, Fault]] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)
    _closed: bool = False

    def script(self, faults: Iterable[Fault | None], *, on: str | None = None) -> None:
        """Apply one fault to each of the next requests, in this order; None applies no fault. Then the script ends."""
        self._add(iter(tuple(faults)), on)

    def always(self, fault: Fault, *, on: str | None = None) -> None:
        """Apply this fault to every request, until `clear`."""
        self._add(iter(lambda: fault, None), on)

    def sometimes(self, fault: Fault, *, probability: float, on: str | None = None, seed: int = 0) -> None:
        """Apply this fault to a share of the requests, until `clear`.

        Args:
            fault: The fault.
            probability: The share, 0 to 1.
            on: The operation; None means every operation.
            seed: The seed of the selection. The same seed selects the same requests.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"expected a probability between 0 and 1, got {probability}")
        dice = random.Random(seed)
        self._add((fault if dice.random() < probability else None for _ in iter(int, 1)), on)

    def clear(self) -> None:
        """Remove every rule and end hanging requests; keep `injected`."""
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
        """Remove every rule, and end all waiting, now and in future."""
        with self._lock:
            self._rules.clear()
            self._closed = True
        self.release()

    def plan(self, operation: str) -> Plan:
        """Choose the faults of the next request for an operation. Servers call this once per request."""
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
                    return Plan(delay_seconds, skew_seconds, fault, self._released)
            return Plan(delay_seconds, skew_seconds, None, self._released)

    def wait(
        self, seconds: float | None, while_: Callable[[], bool] | None = None, *, plan: Plan | None = None
    ) -> None:
        """Block the calling thread for a time, or until `release`. Servers call this.

        Args:
            seconds: The duration; None means without limit.
            while_: Called every 20 ms; the wait ends when it returns False.
            plan: The faults of the request that waits; a `release` since they were chosen counts.
        """
        with self._lock:
            released = self._released if plan is None else plan.released
        if while_ is None:
            released.wait(seconds)
            return
        end = math.inf if seconds is None else time.monotonic() + seconds
        while while_() and (left := end - time.monotonic()) > 0 and not released.wait(min(left, 0.02)):
            pass

    def _add(self, faults: Iterator[Fault | None], on: str | None) -> None:
        with self._lock:
            self._rules.append(_Rule(faults, on))


def _plain_object(size_bytes: int) -> Iterator[bytes]:
    """Yield a JSON object of this size, in pieces."""
    yield _START
    left = size_bytes - len(_START) - len(_END)
    while left > 0:
        yield _BLOCK[:left]
        left -= len(_BLOCK)
    yield _END


def _gzipped_object(size_bytes: int) -> Iterator[bytes]:
    """Yield the same object, gzip-compressed.

    After a full flush, a compressed block does not depend on earlier ones. Each distinct piece is therefore
    compressed once, and its block is sent repeatedly.
    """
    yield _GZIP_HEADER
    made: dict[bytes, bytes] = {}
    checksum = count = 0
    for piece in _plain_object(size_bytes):
        if piece not in made:
            deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
            made[piece] = deflate.compress(piece) + deflate.flush(zlib.Z_FULL_FLUSH)
        yield made[piece]
        checksum, count = zlib.crc32(piece, checksum), count + len(piece)
    yield zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS).flush()
    yield struct.pack("<II", checksum, count & 0xFFFFFFFF)
