"""The ProfilerService of a job, on loopback: what JAX's and PyTorch/XLA's `start_server` serve, without a job.

    with ProfilerServiceServer() as server:
        profile(server.address, ...)
        print(server.profiles)

Asked for a profile, it waits for as long as that takes and writes `<root>/<session>/<host name>.xplane.pb`, to a folder
or to a bucket. `python -m ml_diagnostics_testing.profiler_service --count 64` serves many in a process of their own.

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

from ml_diagnostics_testing.grpc_server import GrpcServer, Method
from ml_diagnostics_testing.http_server import ApiError, RequestRecord, Service
from ml_diagnostics_testing.xspace import fields_of, xspace

__all__ = ["Profile", "ProfilerServiceServer"]

_NAME: Final = "tensorflow.ProfilerService"


@dataclass
class Profile:
    """A profile that was asked for.

    Attributes:
        root: The folder of sessions.
        session_id: The session.
        host_name: What the file is called, without `.xplane.pb`.
        duration_ms: How long.
        start_ns: When it shall begin, in nanoseconds since 1970; 0 is at once.
        levels: How much is traced, by the numbers of ProfileOptions: 2 the host, 3 the device, 4 Python.
        began_ns: When it began, by the server's clock; 0 before that.
        is_written: Whether the file is there.
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
        """Where the file is."""
        return f"{self.root.rstrip('/')}/{self.session_id}/{self.host_name}.xplane.pb"


class ProfilerServiceServer(Service):
    """A job's ProfilerService, from construction until `close`; a context manager.

    It profiles one session at a time, and refuses others meanwhile. The operation of its `faults` and `requests` is
    "profile": `Status(503)` cannot be reached, `Hang()` never answers, `Status(503, after_apply=True)` loses the
    answer, `Delay` is slow to begin, `Skew` has a wrong clock, by which it waits for the moment of a profile.

    Args:
        port: Where it listens on 127.0.0.1; 0 is any free port.
        storage_url: The Cloud Storage that gs:// means; empty is STORAGE_EMULATOR_HOST's.
        clock: Returns the time in seconds since the epoch, for `requests`.

    Attributes:
        writes: What it writes, and says that all is well: a profile, half of one, an empty file, or nothing.
        write_seconds: How long it takes to write.
        dies_after_seconds: How long after the beginning of a profile it dies; None is never.
        has_bucket_access: Whether it can write to gs://.
        profiles: What was asked for, in order.
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
        """Its port."""
        return self._grpc.port

    @property
    def address(self) -> str:
        """Its `host:port`."""
        return f"127.0.0.1:{self.port}"

    def die(self) -> None:
        """Break off at once, as a process that is killed does; nothing can be asked of it afterwards."""
        self._grpc.stop()
        self.faults.close()

    def close(self) -> None:
        """Stop serving; profiles under way end unwritten."""
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
            raise ApiError(400, f"no ProfileRequest: {error}") from None
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
        """Pass the time of a profile, or of its part before death."""
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
            raise ApiError(500, f"no Cloud Storage on loopback is known, for {path}: set STORAGE_EMULATOR_HOST")
        bucket, _, name = path.removeprefix("gs://").partition("/")
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        url = f"{storage}/upload/storage/v1/b/{urllib.parse.quote(bucket, safe='')}/o?{query}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/octet-stream"}, method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy
        try:
            opener.open(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise


def _read(raw: bytes) -> Profile:
    """Read a serialised ProfileRequest; ValueError if it is none."""
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
    """Print where each listens, a line each, then serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m ml_diagnostics_testing.profiler_service",
        description="Serve ProfilerServices on loopback until interrupted; print their addresses.",
    )
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="the first one's port (default: any)")
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the servers' threads begin: they inherit it
    with contextlib.ExitStack() as stack:
        for number in range(arguments.count):
            port = arguments.port + number if arguments.port else 0
            print(stack.enter_context(ProfilerServiceServer(port)).address, flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
