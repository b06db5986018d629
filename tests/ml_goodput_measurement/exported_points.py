"""An exporter to Cloud Monitoring between a loopback server and a clock that tests turn, and what arrived."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ml_goodput_measurement._export.cloud_monitoring import CloudMonitoringExporter
from ml_goodput_measurement.goodput_utils import GCPOptions

from .snapshots import cumulative, snapshot

NOW = 1_800_000_000
HOUR = 3600
OPTIONS = GCPOptions(location="us-central2-b", acc_type="TPU-v5p", cluster_name="c", project_id="test-project")


class Clock:
    """The time of the server, and of this machine's wall clock and monotonic clock."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.wall_is_fast_by = 0.0
        self.waited: list[Any] = []

    def server(self) -> Any:
        return NOW + self.elapsed

    def wall_ns(self) -> Any:
        return int((self.server() + self.wall_is_fast_by) * 1e9)

    def monotonic(self) -> Any:
        return self.elapsed

    def wait(self, seconds: Any) -> None:
        self.waited.append(seconds)
        self.elapsed += seconds


@contextlib.contextmanager
def exporters(server: Any, clock: Any) -> Iterator[Any]:
    """Yield a function that makes exporters to that server; close them at the end."""
    with contextlib.ExitStack() as made:

        def make(options: Any = OPTIONS, environ: Any = None, **arguments: Any) -> Any:
            exporter = CloudMonitoringExporter(
                "run-1",
                options,
                environ=server.environment() if environ is None else environ,
                clock_ns=clock.wall_ns,
                monotonic=clock.monotonic,
                wait=clock.wait,
                **arguments,
            )
            made.callback(exporter.close)
            return exporter

        yield make


def of_type(server: Any, name: Any) -> Any:
    return server.series(f'metric.type = "compute.googleapis.com/workload/{name}"')


def ends(server: Any, name: str = "goodput_time") -> Any:
    """Return the ends of the points of the only series of that type, in seconds from the start, oldest first."""
    from google.protobuf.timestamp_pb2 import Timestamp  # type: ignore[import-untyped]

    (series,) = of_type(server, name)
    found = []
    for point in reversed(series["points"]):
        end = Timestamp()
        end.FromJsonString(point["interval"]["endTime"])
        found.append(end.ToNanoseconds() / 1e9 - NOW)
    return found


def only_goodput(seconds: float = 875.0) -> Any:
    return snapshot(cumulative=cumulative(goodput_seconds=seconds))
