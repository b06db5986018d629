"""The metrics of the operator, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["OperatorMetrics"]

_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


class OperatorMetrics:
    """The metrics of one operator.

    Attributes:
        registry: The contents of `/metrics`.
        captures: Captures that have ended, by `result`: succeeded, failed, refused or recovered.
        capture_seconds: How long each took.
        pods: Pods of these captures, by `result`: captured or failed.
        queue: The number of objects that wait.
        running: The number of captures that run.
        leader: 1 while this operator acts.
        facts: Recorded facts of pods, by `result`: recorded or dropped.
        last_list: When objects were last listed, in seconds since 1970.
    """

    def __init__(self) -> None:
        """Count from zero."""
        self.registry = registry = CollectorRegistry()
        self.captures = Counter("mldiagnostics_operator_captures", "Captures", ["result"], registry=registry)
        self.capture_seconds = Histogram(
            "mldiagnostics_operator_capture_seconds", "Time of a capture", buckets=_SECONDS, registry=registry
        )
        self.pods = Counter("mldiagnostics_operator_pods", "Pods", ["result"], registry=registry)
        self.queue = Gauge("mldiagnostics_operator_queue", "Waiting objects", registry=registry)
        self.running = Gauge("mldiagnostics_operator_running", "Running captures", registry=registry)
        self.leader = Gauge("mldiagnostics_operator_leader", "This one acts", registry=registry)
        self.facts = Counter("mldiagnostics_operator_facts", "Facts of pods", ["result"], registry=registry)
        self.last_list = Gauge(
            "mldiagnostics_operator_last_list_or_watch_seconds", "Last list of objects", registry=registry
        )
