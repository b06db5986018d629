"""Google's control plane and Cloud Logging on loopback, in a process of their own, as slow as one likes.

They share nothing with what is measured, and take no CPU from it that it wants for itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import process

PROJECT = "project"
REGION = "us-central1"
NOWHERE = "127.0.0.1:1"


class Addresses:
    """The addresses that stand for Google's services.

    Attributes:
        control_plane: The URL of the control plane.
        logging: The URL of Cloud Logging.
    """

    def __init__(self, control_plane: str, logging: str) -> None:
        self.control_plane = control_plane
        self.logging = logging

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that redirect our libraries to it."""
        return {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER": self.control_plane,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": self.logging,
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "GCE_METADATA_HOST": NOWHERE,
        }


class RunCloud(Addresses):
    """A cloud that runs."""

    def __init__(self, urls: dict[str, str], server: subprocess.Popen[str]) -> None:
        self._server = server
        super().__init__(**urls)

    def steps(self, metric: str) -> int:
        """Return the number of steps with a value of a metric in Cloud Logging."""
        return int(self._ask("steps", metric))

    def phases(self) -> list[str]:
        """Return the last state of each run at the control plane."""
        return list(self._ask("phases"))

    def _ask(self, *question: str) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(" ".join(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


@contextmanager
def run_cloud(*, polls: int = 0, logging_delay_seconds: float = 0.0) -> Iterator[RunCloud]:
    """Serve until the block is left.

    Args:
        polls: How often a long-running operation must be asked for until it is done.
        logging_delay_seconds: How long each request to Cloud Logging takes, at least.
    """
    with process.server(__name__, polls, logging_delay_seconds) as (urls, server):
        yield RunCloud(urls, server)


def serve(polls: int, delay_seconds: float) -> None:
    """Print the addresses of the servers, then answer queries until stdin ends."""
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
    from ml_diagnostics_testing.faults import Delay

    from tests.loopback.control_plane import ControlPlaneServer

    os.nice(19)  # A cloud runs elsewhere, and uses no CPU of the measured process.
    with CloudLoggingServer(PROJECT) as log, ControlPlaneServer(PROJECT, REGION) as runs:
        runs.operations.polls = polls
        if delay_seconds:
            log.faults.always(Delay(delay_seconds), on="write")
        _print_json({"control_plane": runs.url, "logging": log.url})
        for line in sys.stdin:
            match line.split():
                case ["steps", metric]:
                    _print_json(len(_steps(log.entries(), metric)))
                case ["phases"]:
                    _print_json([run.get("runPhase", "") for run in runs.runs()])


def _steps(entries: list[dict[str, Any]], metric: str) -> set[int]:
    return {
        int(entry["jsonPayload"]["step_index"])
        for entry in entries
        if entry["resource"]["labels"].get("namespace") == metric
    }


def _print_json(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
