"""`goodput export`: gauges of jobs, served to Prometheus or sent by OTLP."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE, CommandError, UsageError
from ml_diagnostics_common.command.options import port, seconds
from ml_diagnostics_common.texts import format_count

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement.exporters.board import Board

__all__ = ["ExportCommand"]

_TO_END_SECONDS = 3.0
_EVERY_SECONDS = 60.0
_OPTIONS = {"port": "prometheus", "listen": "prometheus", "endpoint": "otlp", "every": "otlp", "once": "otlp"}
"""The options that only one format has."""


class ExportCommand:
    """Exports gauges of jobs until it is stopped.

    Args:
        wait: Waits until the command is to end.
    """

    name = "export"
    summary = "export gauges of jobs, to Prometheus or by OTLP, until you stop it"

    def __init__(self, *, wait: Callable[[], object] = lambda: threading.Event().wait()) -> None:
        self._wait = wait

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "format", metavar="FORMAT", choices=("prometheus", "otlp"), help="prometheus: serve them; otlp: send them"
        )
        parser.add_argument(
            "jobs", metavar="JOB", nargs="*", default=[], help="jobs to export (default: all in this machine's journal)"
        )
        parser.add_argument("--port", type=port, metavar="N", help="prometheus: the port to listen on (default: 9464)")
        parser.add_argument(
            "--listen",
            metavar="ADDRESS",
            help="prometheus: the address to listen on; all clients that reach it read job names (default: 127.0.0.1)",
        )
        parser.add_argument(
            "--endpoint",
            metavar="URL",
            type=_endpoint,
            help="otlp: where to send (default: OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318/v1/metrics)",
        )
        parser.add_argument("--every", metavar="TIME", type=seconds, help="otlp: time between sends (default: 60s)")
        parser.add_argument("--once", action="store_true", help="otlp: send once and exit")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Export until the command is interrupted."""
        for name, format_ in _OPTIONS.items():
            if format_ != options.format and getattr(options, name) not in (None, False):
                raise UsageError(f"--{name} is an option of `goodput export {format_}`")
        gc.enable()  # Short commands do without; this one may run for weeks.
        if options.format == "prometheus":
            return self._serve(options, console)
        return self._send(options, console)

    def _serve(self, options: argparse.Namespace, console: Console) -> int:
        from ml_goodput_measurement.exporters.prometheus import DEFAULT_PORT, PrometheusEndpoint, require_prometheus

        require_prometheus()
        board = _board(options)
        endpoint = PrometheusEndpoint(board)
        host, number = options.listen or "127.0.0.1", options.port or DEFAULT_PORT
        try:
            found = endpoint.start(host, number)
        except OSError as error:
            raise CommandError(
                f"cannot listen on {host}:{number}: {error.strerror or error}; choose another --port"
            ) from None
        board.start()
        console.notify(f"serving http://{_in_url(host)}:{found}/metrics")
        try:
            with contextlib.suppress(KeyboardInterrupt):  # Its normal end.
                self._wait()
        finally:
            endpoint.stop()
            board.stop()
        return DONE

    def _send(self, options: argparse.Namespace, console: Console) -> int:
        from ml_goodput_measurement.exporters.otlp import OtlpExporter, require_otlp, resource_attributes

        require_otlp()
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # It logs each try; a failure is reported here.
        board = _board(options)
        board.refresh()
        every = options.every or _EVERY_SECONDS
        exporter = OtlpExporter(
            board,
            endpoint=options.endpoint,
            interval_seconds=every,
            attributes=resource_attributes(),
            warns_of_failures=not options.once,
        )
        try:
            if options.once:
                return _sent_once(exporter.flush(), board, console)
            board.start()
            console.notify(f"sending every {every:g} s")
            with contextlib.suppress(KeyboardInterrupt):  # Its normal end.
                self._wait()
        finally:
            board.stop()
            exporter.stop(_TO_END_SECONDS, is_sent=options.once)
        return DONE


def _endpoint(text: str) -> str:
    """Check the address of a receiver: http://collector:4318/v1/metrics."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port that is not a number, or half of an address in brackets.
        is_valid = False
    if not is_valid:
        raise argparse.ArgumentTypeError(f"{text[:200]!r} is not an address such as http://localhost:4318/v1/metrics")
    return text


def _sent_once(is_sent: bool, board: Board, console: Console) -> int:
    if not is_sent:
        raise CommandError("the gauges could not be sent: check that the receiver of --endpoint runs")
    console.notify(f"sent {format_count(len(board.shown().states), 'job')}")
    return DONE


def _board(options: argparse.Namespace) -> Board:
    """Return the board of the jobs that were named, or of all on this machine."""
    from ml_goodput_measurement._cli.search import find_job
    from ml_goodput_measurement._query.sources import logs_of_jobs
    from ml_goodput_measurement.exporters.board import Board, jobs_of_this_machine

    if not options.jobs:
        return Board(jobs_of_this_machine, local_only=True)
    logs = logs_of_jobs()
    jobs: list[tuple[str, str]] = []
    for job in options.jobs:
        found = [log for log, names in sorted(logs.items()) if job in names]
        # Of several logs with the job, that with the latest event is exported.
        jobs += [(job, log) for log in found] if len(found) > 1 else [find_job(job, None)]
    return Board(lambda: jobs, warns_of_missing=True)


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
