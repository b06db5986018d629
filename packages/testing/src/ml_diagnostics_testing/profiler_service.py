"""The ProfilerService of a job on loopback: the service of JAX's and PyTorch/XLA's `start_server`, without a job.

    with ProfilerServiceServer() as server:
        profile(server.address, ...)
        print(server.profiles)

For each request it waits for the duration of the profile, and writes `<root>/<session>/<host name>.xplane.pb` to a
folder or a bucket. `python -m ml_diagnostics_testing.profiler_service --count 64` runs many servers in one process.

Source: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/profiler_service.proto
"""

import argparse
import contextlib
import os
import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ml_diagnostics_testing._grpc_server import GrpcServer, Method
from ml_diagnostics_testing._xspace import fields_of, xspace
from ml_diagnostics_testing.http_server import ApiError, RequestRecord, Service

__all__ = ["Profile", "ProfilerServiceServer"]

_NAME: Final = "tensorflow.ProfilerService"


@dataclass
class Profile:
    """A requested profile.

    Attributes:
        root: The folder of sessions.
        session_id: The session.
        host_name: The file name without `.xplane.pb`.
        duration_ms: The duration.
        start_ns: The requested start, in nanoseconds since the epoch; 0 means at once.
        levels: The tracer levels, by field number of ProfileOptions: 2 the host, 3 the device, 4 Python.
        began_ns: The actual start, by the server's clock; 0 before the start.
        is_written: True once the file exists.
    """

    root: str
    session_id: str
    host_name: str
    duration_ms: int
    start_ns: int = 0
    levels: dict[int, int] = field(default_factory=dict)
    began_ns: int = 0
    is_written: bool = False

    @property
    def path(self) -> str:
        """The path of the file."""
        return f"{self.root.rstrip('/')}/{self.session_id}/{self.host_name}.xplane.pb"


class ProfilerServiceServer(Service):
    """Serve a job's ProfilerService, from construction until `close`; a context manager.

    It profiles one session at a time, and rejects other requests meanwhile. The operation of its `faults` and
    `requests` is "profile": `Status(503)` is an unreachable server, `Hang()` one that never answers. With
    `Status(503, after_apply=True)`, the profile is written and the answer is an error. `Delay` delays the start. `Skew`
    sets the clock by which the server waits for a requested start.

    Args:
        port: The port to listen on at 127.0.0.1; 0 selects a free one.
        storage_url: The Cloud Storage for gs:// paths; by default that of STORAGE_EMULATOR_HOST.
        clock: Returns the time in seconds since the epoch, for `requests`.

    Attributes:
        writes: The result that is written while success is reported: a profile, half of one, an empty file, or nothing.
        write_seconds: How long writing takes.
        dies_after_seconds: How long after the start of a profile the server dies; None means never.
        has_bucket_access: False makes writes to gs:// fail.
        profiles: The requested profiles, oldest first.
    """

    def __init__(self, port: int = 0, *, storage_url: str = "", clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock=clock)
        self.writes: Literal["profile", "half", "empty", "nothing"] = "profile"
        self.write_seconds = 0.0
        self.dies_after_seconds: float | None = None
        self.has_bucket_access = True
        self.profiles: list[Profile] = []
        self._storage_url = storage_url
        self._busy = threading.Lock()
        self._grpc = GrpcServer(self, _NAME, {"Profile": Method("profile", self._profile)}, port=port)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._grpc.port

    @property
    def address(self) -> str:
        """Its address, `host:port`."""
        return f"127.0.0.1:{self.port}"

    def die(self) -> None:
        """Break all connections and accept no more, like a killed process."""
        self._grpc.stop()
        self.faults.close()

    def close(self) -> None:
        """Stop serving; profiles in progress are not written."""
        self.die()
        self._grpc.close()

    def __enter__(self) -> "ProfilerServiceServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _profile(self, raw: bytes, record: RequestRecord, now: float) -> bytes:
        try:
            profile = _read(raw)
        except ValueError as error:
            raise ApiError(400, f"invalid ProfileRequest: {error}") from None
        self.profiles.append(profile)
        if not self._busy.acquire(blocking=False):
            raise ApiError(500, "Another profiling session active.")
        try:
            self._trace(profile, int((now - record.time) * 1e9))
            if self._grpc.is_serving:
                self._write(profile)
        finally:
            self._busy.release()
        return b""

    def _trace(self, profile: Profile, skew_ns: int) -> None:
        """Wait for the duration of a profile, or until the server dies."""
        self.faults.wait(max(0.0, (profile.start_ns - time.time_ns() - skew_ns) / 1e9))
        profile.began_ns = time.time_ns() + skew_ns
        seconds = profile.duration_ms / 1000
        if self.dies_after_seconds is not None and self.dies_after_seconds < seconds:
            self.faults.wait(self.dies_after_seconds)
            self.die()
        else:
            self.faults.wait(seconds + self.write_seconds)

    def _write(self, profile: Profile) -> None:
        if self.writes == "nothing":
            return
        whole = xspace(profile.host_name, profile.began_ns, profile.duration_ms)
        data = {"profile": whole, "half": whole[: len(whole) // 2], "empty": b""}[self.writes]
        try:
            if profile.root.startswith("gs://"):
                self._upload(profile.path, data)
            else:
                path = Path(profile.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        except OSError as error:
            raise ApiError(500, f"{profile.path}; {error}") from error
        profile.is_written = True

    def _upload(self, path: str, data: bytes) -> None:
        if not self.has_bucket_access:
            raise ApiError(500, f"Error executing an HTTP request: HTTP response code 403 when writing {path}")
        storage = self._storage_url or os.environ.get("STORAGE_EMULATOR_HOST", "")
        if not storage:
            raise ApiError(500, f"cannot write {path}: set STORAGE_EMULATOR_HOST to a Cloud Storage on loopback")
        bucket, _, name = path.removeprefix("gs://").partition("/")
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        url = f"{storage}/upload/storage/v1/b/{urllib.parse.quote(bucket, safe='')}/o?{query}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/octet-stream"}, method="POST")
        # An empty ProxyHandler ignores proxy variables of the environment, which must not apply to loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise


def _read(raw: bytes) -> Profile:
    """Parse a serialised ProfileRequest; ValueError if it is invalid."""
    request: dict[int, Any] = dict(fields_of(raw))
    options: dict[int, Any] = dict(fields_of(request.get(4, b"")))
    texts = [bytes(request.get(number, b"")).decode() for number in (5, 6, 7)]
    return Profile(
        root=texts[0],
        session_id=texts[1],
        host_name=texts[2] or "localhost",
        duration_ms=options.get(9) or request.get(1, 0),
        start_ns=options.get(8, 0),
        levels={number: options.get(number, 0) for number in (2, 3, 4)},
    )


def main() -> None:
    """Print the address of each server on a line, then serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m ml_diagnostics_testing.profiler_service",
        description="Serve ProfilerServices on loopback until interrupted; print their addresses.",
    )
    parser.add_argument(
        "--count", type=int, default=1, metavar="N", help="the number of servers (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="the port of the first server (default: any free port)")
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the servers start their threads, which inherit the mask
    with contextlib.ExitStack() as stack:
        for number in range(arguments.count):
            port = arguments.port + number if arguments.port else 0
            print(stack.enter_context(ProfilerServiceServer(port)).address, flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
