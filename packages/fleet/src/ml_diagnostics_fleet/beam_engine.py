"""The engine for more than one machine: the same map, files and manifest as the local engine's, on Apache Beam.

    run_beam("gs://bucket/prefix", as_of_ns, options=["--runner=DataflowRunner", "--project=...", "--region=..."])

It needs the extra `beam`, which is imported when it runs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError, MissingExtraError
from ml_diagnostics_common.files import in_bucket

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.job_rows import ERROR
from ml_diagnostics_fleet.local_engine import FleetRun
from ml_diagnostics_fleet.manifest import latest_events, latest_rows
from ml_diagnostics_fleet.rows_files import check_rules, newest_rows, read_table
from ml_diagnostics_fleet.schemas import JobKey
from ml_diagnostics_fleet.segment_events import parts_of_logs

__all__ = ["PipelineError", "run_beam", "run_beam_continuously"]

_IN_THIS_PROCESS: Final = "--runner=FnApiRunner"
_WITHOUT_TIMERS: Final = {"", "BundleBasedDirectRunner", "DirectRunner", "FnApiRunner", "SwitchingDirectRunner"}
"""Runners that wait for the end of their input before a timer: a pipeline without an end has no results there."""
_SOURCES: Final = ("events", "segments")
_SUBSCRIPTION: Final = re.compile("projects/[^/]+/subscriptions/[^/]+")


class PipelineError(DiagnosticsError):
    """A pipeline failed: it wrote nothing that counts."""


def run_beam(
    mirror: str | os.PathLike[str],
    as_of_ns: int,
    *,
    options: Sequence[str] = (),
    source: str = "events",
    now_ns: int | None = None,
) -> FleetRun:
    """Apply the map to all jobs of a mirror, and write their rows.

    Args:
        mirror: The mirror; each worker must reach it.
        as_of_ns: The moment at which jobs that run end, in ns since 1970.
        options: Options of Beam, such as `--runner=DataflowRunner`; without a runner, it runs in this process.
        source: `events` for the table of events, of which nothing is shuffled; `segments` for all segments, without
            the table: no compactor is needed.
        now_ns: The time; None for this machine's.

    Returns:
        The results, as of `run_local`; `failed_groups` is empty.

    Raises:
        ConfigurationError: `source` is neither of both.
        MissingExtraError: The extra `beam` is not installed.
        ManifestError: The manifest is damaged, or of a newer version.
        PipelineError: The pipeline failed.
        StorageError: The mirror cannot be read.
    """
    if source not in _SOURCES:
        raise ConfigurationError(f"source={source!r} is unknown; expected one of {', '.join(_SOURCES)}")
    _check_extra()
    from ml_diagnostics_fleet import _beam_batch

    paths = FleetPaths(mirror)
    run = _beam_batch.Run(paths.mirror, as_of_ns, time.time_ns() if now_ns is None else now_ns)
    if source == "events":
        manifest = latest_events(mirror)
        _run(lambda: _beam_batch.run_events(_with_runner(options), run, manifest))
    else:
        logs = parts_of_logs(mirror)
        _run(lambda: _beam_batch.run_segments(_with_runner(options), run, logs))
    snapshot = next(one for one in latest_rows(mirror).snapshots if one.as_of_ns == as_of_ns)
    jobs = read_table(mirror, snapshot, "jobs").select(["log", "job", "rules"]).to_pylist()
    errors = [
        (JobKey(row["log"], row["job"]), row["rules"].removeprefix(ERROR))
        for row in jobs
        if row["rules"].startswith(ERROR)
    ]
    return FleetRun(snapshot, snapshot.jobs, snapshot.events, sorted(errors))


def run_beam_continuously(
    mirror: str | os.PathLike[str],
    *,
    options: Sequence[str] = (),
    subscription: str = "",
    pace_seconds: float = 600.0,
) -> None:
    """Keep the rows of all jobs up to date, until the pipeline is cancelled.

    A new object makes its jobs due: all facts of a job are read again then, and its rows are replaced as a whole. So an
    object may be late by any time, or come twice. Readers take the newest snapshot, as after any other run; in it each
    job has a moment of its own.

    Args:
        mirror: The mirror; each worker must reach it.
        options: Options of Beam, with a runner that is not in this process: such as Dataflow, Flink or Prism.
        subscription: A Pub/Sub subscription to the bucket's notifications, `projects/P/subscriptions/S`; empty to list
            the mirror every 5 minutes.
        pace_seconds: A job's rows are made at most this often.

    Raises:
        ConfigurationError: The pace is not positive, the options name no such runner, or the subscription is invalid.
        ManifestError: There are rows of another version of the rules, or the manifest is damaged.
        MissingExtraError: The extra `beam` is not installed.
        PipelineError: The pipeline failed.
        StorageError: The mirror cannot be read.
    """
    if not 0 < pace_seconds < 86_400:
        raise ConfigurationError(f"pace_seconds={pace_seconds!r} is invalid; expected more than 0, less than a day")
    if subscription and not (_SUBSCRIPTION.fullmatch(subscription) and in_bucket(os.fspath(mirror).strip())):
        raise ConfigurationError(
            f"subscription={subscription!r} is invalid for {os.fspath(mirror)}; expected projects/P/subscriptions/S, "
            "and a mirror in a bucket"
        )
    _check_extra()
    from ml_diagnostics_fleet import beam_continuous

    runner = _runner_of(options)
    if runner in _WITHOUT_TIMERS:
        raise ConfigurationError(
            f"runner={runner!r} has no results of a pipeline without an end; name another one, such as "
            "--runner=DataflowRunner, --runner=FlinkRunner or --runner=PrismRunner"
        )
    paths = FleetPaths(mirror)
    check_rules(newest_rows(mirror))
    given = [*options, "--streaming"]
    _run(lambda: beam_continuous.run(given, paths.mirror, subscription, pace_seconds))


def _check_extra() -> None:
    if importlib.util.find_spec("apache_beam") is None:
        raise MissingExtraError("the engine for Apache Beam", "ml-diagnostics-fleet", "beam")


def _with_runner(options: Sequence[str]) -> list[str]:
    return list(options) if _runner_of(options) else [*options, _IN_THIS_PROCESS]


def _runner_of(options: Sequence[str]) -> str:
    """Return the name of the runner in options of Beam, without its module; empty if they name none."""
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    runner = PipelineOptions(list(options)).view_as(StandardOptions).runner
    return str(runner or "").rpartition(".")[2]


def _run(pipeline: Callable[[], None]) -> None:
    try:
        pipeline()
    except Exception as error:  # Of any kind: some runners have only the text of what a worker raised.
        lines = str(error).strip().splitlines() or [""]
        raise PipelineError(f"the pipeline failed: {type(error).__name__}: {lines[-1]}") from error
