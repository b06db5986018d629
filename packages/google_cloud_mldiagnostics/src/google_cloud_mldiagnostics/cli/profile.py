"""`mldiagnostics profile RUN`: a profile of a running job, of all its hosts over the same stretch of time."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_cloud_mldiagnostics.cli.command import NOT_DONE, OK, add_place_options, format_option, run_argument

if TYPE_CHECKING:
    from ml_diagnostics_common.profiler_service import CaptureResult

    from google_cloud_mldiagnostics.reading.run_view import ProcessView, RunView

__all__ = ["ProfileCommand", "Target", "targets_of"]

_ADDRESS: Final = re.compile(r"\S+:\d{1,5}")
_SESSION: Final = re.compile(r"\w[\w.-]{0,119}", re.ASCII)


class Target(NamedTuple):
    """One process that is asked for a profile.

    Attributes:
        name: For people.
        address: `host:port` of its profiler's server.
        folder: The folder of sessions, as the process can write it.
        file_name: What its file is called; empty for what it calls itself.
    """

    name: str
    address: str
    folder: str
    file_name: str


class ProfileCommand:
    """Has a job profile itself."""

    name = "profile"
    summary = "profile a running job, all its hosts at once"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        run_argument(parser)
        parser.add_argument(
            "--hosts",
            metavar="HOST,...",
            type=_listed,
            help="these hosts, by name, or as host:port (default: all that the run has told of)",
        )
        parser.add_argument(
            "--duration", metavar="MS", type=_milliseconds, default=2000, help="milliseconds (default: %(default)s)"
        )
        parser.add_argument("--session", metavar="NAME", type=_session, help="its name (default: the time, in UTC)")
        levels = (("host", 2, "0 to 3"), ("device", 1, "0 or 1"), ("python", 1, "0 or 1"))
        for tracer, level, values in levels:
            parser.add_argument(
                f"--{tracer}-tracer-level",
                metavar="N",
                type=int,
                default=level,
                help=f"{values} (default: %(default)s)",
            )
        format_option(parser, "json")
        add_place_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Asks all processes at once, waits for them, and says where the profile is."""
        import time

        from ml_diagnostics_common.profiler_service import ProfilerService, TracerLevels

        from google_cloud_mldiagnostics.cli.places import source_of
        from google_cloud_mldiagnostics.cli.text import note, print_data
        from google_cloud_mldiagnostics.exceptions import ControlPlaneError
        from google_cloud_mldiagnostics.mirroring import is_told_of
        from google_cloud_mldiagnostics.reading.run_history import RunHistory
        from google_cloud_mldiagnostics.reading.run_source import LocalSource

        source = source_of(options)
        run = source.find(options.run)
        history = RunHistory()
        for batch in source.entries.of_processes(run):
            history.add(batch)
        view = source.view(run, history)
        targets = targets_of(view, options.hosts)
        session_id = options.session or _now()
        hosts = "1 process" if len(targets) == 1 else f"{len(targets)} processes"
        note(f"profiling {hosts} of {view.run_id} for {options.duration / 1000:g} s")
        began_ns = time.time_ns()
        levels = TracerLevels(options.host_tracer_level, options.device_tracer_level, options.python_tracer_level)
        results = ProfilerService().capture(
            [target.address for target in targets],
            [target.folder for target in targets],
            session_id,
            options.duration,
            host_names=[target.file_name for target in targets],
            levels=levels,
        )
        folders = _folders(view, targets, session_id)
        try:
            kept = _session_resource(folders, targets, results, began_ns) | levels.as_resource()
            if is_told_of(kept) or isinstance(source, LocalSource):
                source.control_plane.put_session(view.run_id, session_id, kept)
        except ControlPlaneError as error:
            note(f"the profile is there, and the run was not told of it: {error}")
        if options.format == "json":
            print_data(json.dumps(_as_dict(view, session_id, folders, targets, results), indent=2) + "\n")
        else:
            print_data(_format(session_id, folders, targets, results))
        return OK if all(result.is_captured for result in results) else NOT_DONE


def targets_of(view: RunView, hosts: Sequence[str] | None) -> list[Target]:
    """Returns whom to ask.

    Args:
        view: The run.
        hosts: Names of hosts, or addresses; None for all processes that can be profiled.

    Raises:
        ProfilingError: There is none, or one that was named cannot be profiled.
    """
    from google_cloud_mldiagnostics.exceptions import ProfilingError

    able = [process for process in view.processes if process.profiler_port is not None and not process.state.has_ended]
    if hosts is None:
        if not able:
            raise ProfilingError(_why_nobody(view))
        return [_target(process, view) for process in able]
    targets: list[Target] = []
    for name in hosts:
        found = [process for process in able if name in (process.host, process.address, _address(process))]
        if found:
            targets += [_target(process, view) for process in found]
        elif _ADDRESS.fullmatch(name):
            targets.append(Target(name, name, _sessions_folder(view), ""))
        else:
            known = ", ".join(process.host for process in able) or "none"
            raise ProfilingError(
                f"the run {view.run_id} has no host {name!r} that can be profiled; it has {known}. Another is given as "
                "host:port"
            )
    return targets


def _why_nobody(view: RunView) -> str:
    if view.state.has_ended:
        return f"the run {view.run_id} has ended ({view.state.value}): there is nothing to profile"
    return (
        f"no process of the run {view.run_id} can be profiled: it must have been started with "
        "machinelearning_run(on_demand_xprof=True). Where a profiler's server runs all the same, give --hosts host:port"
    )


def _target(process: ProcessView, view: RunView) -> Target:
    folder = process.capture_folder or _sessions_folder(view)
    return Target(process.name, _address(process), folder, process.capture_name)


def _address(process: ProcessView) -> str:
    from ml_diagnostics_common.environment import identity

    # What a host calls its address may be closed to itself, behind a firewall or in a container.
    host = "localhost" if process.host == identity().host else process.address or process.host
    return f"{host}:{process.profiler_port}"


def _sessions_folder(view: RunView) -> str:
    """Where a process that looks after no folder of its own shall write.

    Raises:
        ProfilingError: The run has no place for profiles.
    """
    from google_cloud_mldiagnostics.exceptions import ProfilingError
    from google_cloud_mldiagnostics.profiling.layout import sessions_folder

    if not view.gcs_path:
        raise ProfilingError(
            f"the run {view.run_id} has no gcs_path: where shall a process that it does not know write?"
        )
    return sessions_folder(f"{view.gcs_path}/{view.run_id}")


def _folders(view: RunView, targets: Sequence[Target], session_id: str) -> list[str]:
    """Where the profile is, or is brought to by the job: one folder, or one a host where they share none."""
    from google_cloud_mldiagnostics.profiling.layout import session_folder

    if view.gcs_path.startswith("gs://"):
        return [session_folder(f"{view.gcs_path}/{view.run_id}", session_id)]
    return list(dict.fromkeys(f"{target.folder}/{session_id}" for target in targets))


def _session_resource(
    folders: Sequence[str], targets: Sequence[Target], results: Sequence[CaptureResult], began_ns: int
) -> dict[str, Any]:
    """The profile as a control plane keeps it. The job tells of it too, if it lives long enough to see it."""
    from ml_diagnostics_common.entry import format_timestamp

    told = {
        target.file_name or target.name: {
            "startTime": format_timestamp(began_ns),
            "endTime": format_timestamp(began_ns + round(result.seconds * 1e9)),
            "sessionPhase": "SUCCEEDED" if result.is_captured else "FAILED",
        }
        for target, result in zip(targets, results, strict=True)
    }
    return {
        "profilerTargets": list(told),
        "targetSessions": told,
        "storageFolderUri": folders[0],
        "dashboardUri": "",
        "duration": f"{max(result.seconds for result in results):.3f}s",
        "kind": "KIND_SNAPSHOT",
    }


def _format(
    session_id: str, folders: Sequence[str], targets: Sequence[Target], results: Sequence[CaptureResult]
) -> str:
    import shlex

    from google_cloud_mldiagnostics.cli.text import columns, format_duration, one_line
    from google_cloud_mldiagnostics.profiling.layout import logdir_of

    cells = [("process", "address", "result")]
    for target, result in zip(targets, results, strict=True):
        said = (
            f"captured, after {format_duration(result.seconds)}"
            if result.is_captured
            else one_line(result.problem, 300)
        )
        cells.append((target.name, target.address, said))
    captured = sum(result.is_captured for result in results)
    lines = [f"profile {session_id}: {captured} of {len(results)} captured", "", *columns(cells, "<<<")]
    if captured:
        lines.append("")
        lines += [f"  in    {folder}{', brought there by the job' * folder.startswith('gs://')}" for folder in folders]
        roots = dict.fromkeys(logdir_of(folder) for folder in folders)
        lines += [f"  open  xprof --logdir {shlex.quote(root)} --port 8791" for root in roots]
    return "\n".join(lines) + "\n"


def _as_dict(
    view: RunView,
    session_id: str,
    folders: Sequence[str],
    targets: Sequence[Target],
    results: Sequence[CaptureResult],
) -> dict[str, Any]:
    return {
        "run": view.run_id,
        "session": session_id,
        "folders": list(folders),
        "hosts": [
            {
                "process": target.name,
                "address": target.address,
                "captured": result.is_captured,
                "seconds": result.seconds,
                "problem": result.problem,
            }
            for target, result in zip(targets, results, strict=True)
        ],
    }


def _now() -> str:
    """The time in UTC, to the millisecond, as sessions are called."""
    import datetime

    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y_%m_%d_%H_%M_%S_%f")[:-3]


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("give the names of hosts, with commas between them")
    return names


def _milliseconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 86_400_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: give milliseconds, at most a day of them")
    return int(text)


def _session(text: str) -> str:
    if not _SESSION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a session: letters, digits, '_', '.' and '-'")
    return text
