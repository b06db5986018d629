"""Google's control plane for tests: with a clock that only sleeps, and a sample run."""

from __future__ import annotations

from typing import Any

from google.auth.credentials import AnonymousCredentials, Credentials
from google_cloud_mldiagnostics.control_plane import Change, Resource
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from ml_diagnostics_testing.faults import Fault, Hang, Reset, Status, Truncate

from ..loopback.control_plane import ControlPlaneServer

RUN = {
    "name": "train-1",
    "displayName": "train",
    "runSet": "sweep",
    "configs": {"userConfigs": {"epochs": "100"}, "softwareConfigs": {}},
    "labels": {"created_by": "diagon_sdk", "attempt": "1"},
    "runPhase": "ACTIVE",
    "tools": [{"xprof": {}}],
}
# Failures after the service did the work, and failures before.
LOST = [Status(503, after_apply=True), Reset(after_apply=True), Hang(after_apply=True), Truncate(5)]
NOT_DONE = [Status(503), Status(429), Status(500), Reset(), Hang()]
ACCOUNT = "trainer@test-project.iam.gserviceaccount.com"


class Time:
    """A clock that advances only when the code under test sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def connected(server: Any, time: Time, credentials: Credentials | None = None, **options: Any) -> GoogleControlPlane:
    return GoogleControlPlane(
        "test-project",
        "us-central1",
        credentials or AnonymousCredentials(),
        base_url=server.url,
        clock=time.clock,
        sleep=time.sleep,
        **{"principal": ACCOUNT, **options},
    )


def asked(server: ControlPlaneServer) -> list[str]:
    return [record.operation for record in server.requests]


def patience(fault: Fault) -> dict[str, Any]:
    """Return the timeout of a request: short for faults without an answer."""
    return {"request_seconds": 0.4 if isinstance(fault, Hang) else 10.0}


def patient_after(control_plane: GoogleControlPlane, time: Time, failures: int) -> None:
    """Let requests have the usual time after so many failed ones: a busy machine may take longer to answer them."""

    def sleep(seconds: float) -> None:
        Time.sleep(time, seconds)
        if len(time.slept) >= failures:
            control_plane._request_seconds = 10.0

    control_plane._sleep = sleep


def in_phase(phase: str) -> Change:
    return lambda run: {**run, "runPhase": phase}


def session(host: str, phase: str = "ACTIVE") -> Resource:
    return {
        "profilerTargets": [host],
        "targetSessions": {host: {"startTime": "2026-11-21T05:12:42Z", "sessionPhase": phase}},
        "storageFolderUri": "gs://b/train-1/plugins/profile/s1",
        "kind": "KIND_PROGRAMMATIC",
    }
