"""The engine for more than one machine: the same map, files and manifest as the local engine's, on Apache Beam.

    run_beam("gs://bucket/prefix", as_of_ns, options=["--runner=DataflowRunner", "--project=...", "--region=..."])

It needs the extra `beam`, which is imported when it runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError, MissingExtraError
from ml_diagnostics_common.files import in_bucket

from ml_diagnostics_fleet._paths import FleetPaths, new_run
from ml_diagnostics_fleet.job_rows import ERROR
from ml_diagnostics_fleet.local_engine import FleetRun
from ml_diagnostics_fleet.manifest import latest_events, latest_rows
from ml_diagnostics_fleet.rows_files import check_rules, newest_rows, read_table
from ml_diagnostics_fleet.schemas import JobKey
from ml_diagnostics_fleet.segment_events import parts_of_logs

__all__ = ["PipelineError", "run_beam", "run_beam_continuously"]

_IN_THIS_PROCESS: Final = "FnApiRunner"
_WITH_TIMERS_FOR_MESSAGES: Final = "bundlebaseddirectrunner"
"""Beam's runner for streams in one process: it reads Pub/Sub, and no list that is repeated."""
_WITHOUT_TIMERS: Final = {"directrunner", "fnapirunner", "interactiverunner", "switchingdirectrunner"}
"""Runners that wait for the end of their input before a timer: a pipeline without an end has no results there."""
_DONE: Final = "DONE"
_STOPPED: Final = {"CANCELLED", "DRAINED", "UPDATED"}
"""States of Beam in which a pipeline without an end has ended as its user wanted."""
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
            the table: no compactor is needed. Segments that are damaged are passed over with a warning.
        now_ns: The time; None for this machine's.

    Returns:
        The results, as of `run_local`; `failed_groups` is empty.

    Raises:
        ConfigurationError: `source` is neither of both, or an option is invalid.
        MissingExtraError: The extra `beam` is not installed.
        ManifestError: The manifest is damaged, or of a newer version.
        PipelineError: The pipeline failed.
        StorageError: The mirror cannot be read.
    """
    if source not in _SOURCES:
        raise ConfigurationError(f"source={source!r} is unknown; expected one of {', '.join(_SOURCES)}")
    _check_extra()
    from ml_diagnostics_fleet import _beam_batch

    paths, started_ns = FleetPaths(mirror), time.time_ns() if now_ns is None else now_ns
    parsed = _parsed(options, paths.mirror)
    if parsed.get("no_wait_until_finish"):
        raise ConfigurationError("--no_wait_until_finish is not for a run that returns its results: it waits for them")
    given = list(options) if parsed["runner"] else [*options, f"--runner={_IN_THIS_PROCESS}"]
    run = _beam_batch.Run(paths.mirror, new_run(started_ns), as_of_ns, started_ns)
    if source == "events":
        manifest = latest_events(mirror)
        _run(lambda: _beam_batch.pipeline_of_events(given, run, manifest), {_DONE})
    else:
        logs = parts_of_logs(mirror)
        _run(lambda: _beam_batch.pipeline_of_segments(given, run, logs), {_DONE})
    snapshot = next((one for one in latest_rows(mirror).snapshots if one.as_of_ns == as_of_ns), None)
    if snapshot is None:  # A workers' mirror of the same name, and not this one.
        raise PipelineError(
            f"the pipeline is done, and its rows are not in {paths.mirror}: do its workers write there?"
        )
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
    """Keep the rows of all jobs up to date, until the pipeline is cancelled or drained.

    A new object makes its jobs due: all facts of a job are read again then, and its rows are replaced as a whole. So an
    object may be late by any time, or come twice. Readers take the newest snapshot, as after any other run; in it each
    job has a moment of its own.

    Args:
        mirror: The mirror; each worker must reach it.
        options: Options of Beam, with a runner for streams: Dataflow, Flink or Prism. In this process, to try it,
            `--runner=BundleBasedDirectRunner`, with a subscription. `--no_wait_until_finish` returns after the start.
        subscription: A Pub/Sub subscription to the bucket's notifications, `projects/P/subscriptions/S`; empty to list
            the mirror every 5 minutes.
        pace_seconds: A job's rows are made at most this often; rounded up to whole seconds.

    Raises:
        ConfigurationError: The pace is not positive, the options are invalid or name no such runner, or the
            subscription is invalid.
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

    paths = FleetPaths(mirror)
    runner = _parsed(options, paths.mirror)["runner"]
    if runner in _WITHOUT_TIMERS or not runner or (runner == _WITH_TIMERS_FOR_MESSAGES and not subscription):
        raise ConfigurationError(
            f"runner={runner!r} has no results of a pipeline without an end; name another one, such as "
            "--runner=DataflowRunner, --runner=FlinkRunner or --runner=PrismRunner"
        )
    check_rules(newest_rows(mirror))
    given = [*options, "--streaming"]
    _run(lambda: beam_continuous.pipeline(given, paths.mirror, subscription, pace_seconds), _STOPPED)


def _check_extra() -> None:
    if importlib.util.find_spec("apache_beam") is None:
        raise MissingExtraError("the engine for Apache Beam", "ml-diagnostics-fleet", "beam")


def _parsed(options: Sequence[str], mirror: str) -> dict[str, Any]:
    """Return options of Beam by name, `runner` without its module and in lower case, as Beam compares it.

    Beam drops an option that it does not know, with a warning: a runner has options of its own.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    before = ""
    for option in options:
        if not option.startswith("-") and (not before.startswith("--") or "=" in before):
            raise ConfigurationError(f"{option!r} is not an option of Beam; expected a list of --NAME=VALUE")
        before = option
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed: dict[str, Any] = PipelineOptions(list(options)).get_all_options()
    except SystemExit:
        reason = errors.getvalue().strip().rpartition("error: ")[2]
        raise ConfigurationError(f"the options of Beam are invalid: {reason}") from None
    name = str(parsed["runner"] or "").rpartition(".")[2].lower()
    parsed["runner"] = name if not name or name.endswith("runner") else f"{name}runner"
    if parsed["runner"] == "dataflowrunner" and not in_bucket(mirror):
        raise ConfigurationError(f"Dataflow's workers cannot reach the folder {mirror}; give gs://bucket/prefix")
    return parsed


def _run(pipeline: Callable[[], Any], ends: Collection[str]) -> None:
    """Run a pipeline until it ends.

    Args:
        pipeline: Return it.
        ends: The states in which it may end.

    Raises:
        PipelineError: It failed, or ended in another state.
    """
    root = None
    try:
        root = pipeline()
        with root:  # It runs at the end of the block.
            pass
    except Exception as error:  # Of any kind: some runners have only the text of what a worker raised.
        state = getattr(getattr(root, "result", None), "state", "")
        if state in ends:  # Dataflow raises in each state but DONE.
            return
        lines = str(error).strip().splitlines() or [""]
        raise PipelineError(f"the pipeline failed: {type(error).__name__}: {lines[-1]}") from error
    if _DONE in ends and root.result.state != _DONE:
        raise PipelineError(f"the pipeline is {root.result.state}, and not {_DONE}: its rows do not count")
