"""A client of the ProfilerService inside jobs: JAX's and PyTorch/XLA's `start_server`. Needs the extra `[profile]`.

The process that receives a request traces itself and writes `<root>/<session>/<host name>.xplane.pb`. `root` is a path
on *its* machine, or in a bucket. To profile many hosts at once, this client calls all at once, with the same session.

The messages are encoded here, since they are a dozen numbers. Source of the format:
https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/profiler_service.proto
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.exceptions import ConfigurationError, MissingExtraError
from ml_diagnostics_common.failures import Kind, classify
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.interrupts import interrupts_put_off

__all__ = ["CaptureResult", "ProfilerService", "TracerLevels", "file_name_of", "profile_request"]

_METHOD: Final = "/tensorflow.ProfilerService/Profile"
_NO_METHOD: Final = "/ml_diagnostics.RoundTrip/Measure"  # No server has it, and all respond at once.
_OPTIONS_VERSION: Final = 1
_CONNECT_SECONDS: Final = 5.0
_LEAD_SECONDS: Final = 0.15
_LONGEST_ROUND_TRIP_SECONDS: Final = 2.0
_EXTRA_SECONDS: Final = 60.0


@dataclass(frozen=True)
class TracerLevels:
    """The detail of a trace.

    Attributes:
        host: 0 nothing, 1 the program's annotations, 2 also the main parts of the runtime, 3 everything.
        device: 0 nothing, 1 everything.
        python: 0 nothing, 1 every call of a Python function.
    """

    host: int = 2
    device: int = 1
    python: int = 1

    def as_resource(self) -> dict[str, str]:
        """Return the levels as in a profilerSession of the control plane; only those with known names there."""
        known = (
            ("hostTracerLevel", self.host == 2, "HOST_TRACER_LEVEL_INFO"),
            ("deviceTracerLevel", self.device == 1, "DEVICE_TRACER_LEVEL_ENABLED"),
            ("pythonTracerLevel", self.python == 0, "PYTHON_TRACER_LEVEL_DISABLED"),
        )
        return {name: level for name, is_so, level in known if is_so}


@dataclass(frozen=True)
class CaptureResult:
    """The result of one host.

    Attributes:
        address: The host's address, as it was given.
        problem: Why there is no profile; empty if there is one.
        seconds: How long it took to respond.
        failure: The kind of failure, None if there is none: TIMEOUT of a host that may still be waiting for the
            moment to start, by its own clock; CONFLICT of one where another profile runs.
    """

    address: str
    problem: str = ""
    seconds: float = 0.0
    failure: Kind | None = None

    @property
    def is_captured(self) -> bool:
        """True if the host reports that it has written its profile."""
        return not self.problem


@dataclass(frozen=True)
class ProfilerService:
    """Requests profiles from processes.

    Attributes:
        connect_seconds: How long to wait for connections.
        extra_seconds: How long a host may take beyond the duration of the profile, to write it.
        lead_seconds: The time until all hosts start, if there are several; at least twice the longest round trip. Each
            host uses its own clock: one that is ahead starts at once, one that is behind starts later by as much.
        ahead_seconds: How far the hosts' clocks are ahead of this machine's.
        log: Receives a line for every call, and for its result.
    """

    connect_seconds: float = _CONNECT_SECONDS
    extra_seconds: float = _EXTRA_SECONDS
    lead_seconds: float = _LEAD_SECONDS
    ahead_seconds: float = 0.0
    log: Callable[[str], object] = field(default=lambda text: None, repr=False)
    _options: tuple[tuple[str, int], ...] = field(
        default=(("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)), repr=False
    )

    def capture(
        self,
        addresses: Sequence[str],
        root: str | Sequence[str],
        session_id: str,
        duration_ms: int,
        *,
        host_names: Sequence[str] | None = None,
        levels: TracerLevels | None = None,
        at_once: Sequence[bool] | None = None,
    ) -> list[CaptureResult]:
        """Profile all hosts at the same time.

        Args:
            addresses: `host:port` of each.
            root: The folder of sessions, writable for each host: absolute, or `gs://...`; one for all or one each.
            session_id: The session.
            duration_ms: The duration.
            host_names: The names of their files, without `.xplane.pb`; None, or an empty one, selects `host_port`.
            levels: The detail of the traces.
            at_once: For each, True to start at once instead of together with the others; None selects none.

        Returns:
            A result for each address, in their order. A host that fails does not affect the others.

        Raises:
            ConfigurationError: An argument is not valid.
            MissingExtraError: grpcio is not installed.
        """
        roots = [root] * len(addresses) if isinstance(root, str) else list(root)
        given = [""] * len(addresses) if host_names is None else list(host_names)
        _check(addresses, roots, given, duration_ms)
        names = [name or file_name_of(address) for name, address in zip(given, addresses, strict=True)]
        try:
            import grpc  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingExtraError("profiling on demand", "ml-diagnostics-common", "profile") from error

        channels = [grpc.insecure_channel(address, options=self._options) for address in addresses]
        try:
            reached = self._connect(channels)
            alone = list(at_once or [len(addresses) == 1] * len(addresses))
            lead = 0.0 if all(alone) else max(self.lead_seconds, 2 * _slowest_round_trip(channels, reached))
            start_ns = time.time_ns() + int((lead + self.ahead_seconds) * 1e9)
            starts = [0 if is_alone else start_ns for is_alone in alone]
            requests = [
                profile_request(folder, session_id, duration_ms, name, levels or TracerLevels(), start)
                for folder, name, start in zip(roots, names, starts, strict=True)
            ]
            start = time.monotonic()
            timeout = duration_ms / 1000 + lead + self.extra_seconds
            # Closing a channel waits for the thread of its calls: for ever, if an interrupt came before gRPC starts it.
            with interrupts_put_off():
                calls = {
                    number: _Call(channels[number].unary_unary(_METHOD).future(requests[number], timeout=timeout))
                    for number, is_reached in enumerate(reached)
                    if is_reached
                }
            for number in calls:
                moment = f"from {starts[number]} ns on" if starts[number] else "at once"
                self.log(
                    f"Profile request to {addresses[number]}: {session_id}/{names[number]}.xplane.pb in "
                    f"{roots[number]}, {duration_ms} ms, {moment}"
                )
            results = [
                _result(address, calls.get(number), start, self.connect_seconds)
                for number, address in enumerate(addresses)
            ]
            for result in results:
                self.log(f"Response of {result.address} after {result.seconds:.3f} s: {result.problem or 'OK'}")
            return results
        finally:
            for channel in channels:
                channel.close()

    def _connect(self, channels: Sequence[Any]) -> list[bool]:
        """Wait for all connections, so that all requests can be sent within milliseconds."""
        import grpc

        with interrupts_put_off():
            ready = [grpc.channel_ready_future(channel) for channel in channels]
        deadline = time.monotonic() + self.connect_seconds
        reached = []
        for future in ready:
            try:
                future.result(timeout=max(0.0, deadline - time.monotonic()))
                reached.append(True)
            except grpc.FutureTimeoutError:
                future.cancel()
                reached.append(False)
        return reached


class _Call:
    """A call in progress, and the time of its end."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self._ended = 0.0
        future.add_done_callback(self._end)

    def result(self) -> float:
        """Wait for its end, and return the time of it, in monotonic seconds; raise its error."""
        self._future.result()
        return self.ended

    @property
    def ended(self) -> float:
        return self._ended or time.monotonic()  # The callback may not have run yet.

    def _end(self, _: Any) -> None:
        self._ended = time.monotonic()


def _slowest_round_trip(channels: Sequence[Any], reached: Sequence[bool]) -> float:
    """Return the longest round trip of the open connections, in seconds."""
    import grpc

    start = time.monotonic()
    timeout = _LONGEST_ROUND_TRIP_SECONDS
    with interrupts_put_off():
        calls = [
            channel.unary_unary(_NO_METHOD).future(b"", timeout=timeout)
            for channel, is_reached in zip(channels, reached, strict=True)
            if is_reached
        ]
    for call in calls:
        try:
            call.result()
        except grpc.RpcError:
            pass  # Most often, because the method does not exist.
    return time.monotonic() - start


def file_name_of(address: str) -> str:
    """Return the default name of a host's file: `host_port`."""
    return re.sub(r"[^\w.-]", "_", address)


def profile_request(
    root: str, session_id: str, duration_ms: int, host_name: str, levels: TracerLevels, start_ns: int = 0
) -> bytes:
    """Return a serialized ProfileRequest.

    Args:
        root: The folder where the host writes `<session>/<host name>.xplane.pb`.
        session_id: The session.
        duration_ms: The duration.
        host_name: The name of the file.
        levels: The detail of the trace.
        start_ns: The start, in nanoseconds since 1970; 0 starts at once.
    """
    options = _message(
        {
            2: levels.host,
            3: levels.device,
            4: levels.python,
            5: _OPTIONS_VERSION,
            7: 1,  # The programs, with the events.
            8: start_ns,
            9: duration_ms,
        }
    )
    return _message({1: duration_ms, 4: options, 5: root.encode(), 6: session_id.encode(), 7: host_name.encode()})


def _message(fields: Mapping[int, int | bytes]) -> bytes:
    parts = bytearray()
    for number, value in fields.items():
        if isinstance(value, int):
            parts += _varint(number << 3) + _varint(value)
        else:
            parts += _varint(number << 3 | 2) + _varint(len(value)) + value
    return bytes(parts)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _check(addresses: Sequence[str], roots: Sequence[str], names: Sequence[str], duration_ms: int) -> None:
    if not addresses or not all(re.fullmatch(r"\S+:\d{1,5}", address) for address in addresses):
        raise ConfigurationError(f"{list(addresses)!r} are not valid addresses of hosts: give each as 'host:port'")
    if not 0 < duration_ms <= 86_400_000:
        raise ConfigurationError(f"{duration_ms} ms is not a valid duration of a profile: give 1 ms to one day")
    if not len(addresses) == len(roots) == len(names):
        raise ConfigurationError(f"{len(addresses)} hosts, {len(names)} names and {len(roots)} folders: give one each")
    if not all(root.startswith("/") or in_bucket(root) for root in roots):
        raise ConfigurationError(f"{roots!r}: the hosts write there, so give an absolute folder or gs://bucket/folder")
    if not all(re.fullmatch(r"[^/\s\0]*", name) for name in names):
        raise ConfigurationError(f"{list(names)!r}: give each host a name that is valid for a file")
    written = [(root, name or address) for root, name, address in zip(roots, names, addresses, strict=True)]
    if len(set(written)) < len(written):
        raise ConfigurationError(f"{list(names)!r}: two hosts with one name would overwrite each other")


def _result(address: str, call: _Call | None, start: float, connect_seconds: float) -> CaptureResult:
    import grpc

    if call is None:
        return CaptureResult(
            address,
            f"no profiler's server answers there within {connect_seconds:g} s: is the job running, with "
            "jax.profiler.start_server(port) or on_demand_xprof=True, and can this machine reach it?",
            failure=Kind.UNREACHABLE,
        )
    try:
        return CaptureResult(address, "", call.result() - start)
    except grpc.RpcError as error:
        failure = classify(error)
        kind, problem = failure.kind, f"{failure.code}: {failure.message}"
        if kind is Kind.CONFLICT or "another profiling session" in failure.message.lower():
            kind, problem = (
                Kind.CONFLICT,
                f"another profile runs there ({failure.message}); try again when it has ended",
            )
        elif failure.code == "UNAVAILABLE":
            # Not retried: the request may have been executed. gRPC itself retries those that a server never processed.
            problem = f"{problem}; the process may have crashed: check whether the job still runs"
        return CaptureResult(address, problem, call.ended - start, kind)
