"""`mldiagnostics profile RUN`: profile a running job, all its hosts at the same time."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ml_diagnostics_common.command.errors import DONE, FAILED, NotFoundError
from ml_diagnostics_common.command.formats import add_format_option, format_data, format_table, shortened
from ml_diagnostics_common.command.options import whole_number
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.texts import format_count, format_duration

from google_cloud_mldiagnostics._cli import add_run_argument, add_source_options, run_source

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console
    from ml_diagnostics_common.profiler_service import CaptureResult

    from google_cloud_mldiagnostics._reading.run_view import ProcessView, RunView

__all__ = ["ProfileCommand", "Target", "targets_of"]

_ADDRESS: Final = re.compile(r"\S+:\d{1,5}")
_MOST_MS: Final = 86_400_000
_HOST_FIELDS: Final = ("process", "address", "captured", "seconds", "problem")
_SESSION: Final = re.compile(r"\w[\w.-]{0,119}", re.ASCII)


class Target(NamedTuple):
    """One process to profile.

    Attributes:
        name: The name in messages.
        address: `host:port` of its profiler server.
        folder: The folder of sessions, with the path that the process writes to.
        file_name: The name of its file; empty if the process chooses it.
    """

    name: str
    address: str
    folder: str
    file_name: str


class ProfileCommand:
    """Profiles a running job."""

    name = "profile"
    summary = "profile a running job, all its hosts at once"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_run_argument(parser)
        parser.add_argument(
            "--hosts",
            metavar="HOST,...",
            type=_listed,
            help="these hosts, by name, or as host:port (default: all that the run reported)",
        )
        parser.add_argument(
            "--duration",
            metavar="MS",
            type=whole_number(1, _MOST_MS),
            default=2000,
            help="milliseconds (default: %(default)s)",
        )
        parser.add_argument("--session", metavar="NAME", type=_session, help="its name (default: the time, in UTC)")
        for tracer, level, most in (("host", 2, 3), ("device", 1, 1), ("python", 1, 1)):
            parser.add_argument(
                f"--{tracer}-tracer-level",
                metavar="N",
                type=whole_number(0, most),
                default=level,
                help=f"0 to {most} (default: %(default)s)",
            )
        add_format_option(parser)
        add_source_options(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Profile all processes at once, and print the folder of the profile."""
        import datetime
        import time

        from ml_diagnostics_common.profiler_service import ProfilerService, TracerLevels

        from google_cloud_mldiagnostics._profiling.sessions import time_id
        from google_cloud_mldiagnostics._reading.run_history import RunHistory
        from google_cloud_mldiagnostics._reading.run_source import LocalSource
        from google_cloud_mldiagnostics._run_state.mirroring import is_sent_to_cloud
        from google_cloud_mldiagnostics.exceptions import ControlPlaneError

        source = run_source(options, console)
        run = source.find(options.run)
        history = RunHistory()
        for batch in source.entries.of_processes(run):
            history.add(batch)
        view = source.view(run, history)
        targets = targets_of(view, options.hosts)
        session_id = options.session or time_id(datetime.datetime.now(datetime.timezone.utc))
        processes = format_count(len(targets), "process", "processes")
        console.notify(f"Profiling {processes} of {view.run_id} for {format_duration(options.duration / 1000)}.")
        start_ns = time.time_ns()
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
            kept = _session_resource(folders, targets, results, start_ns) | levels.as_resource()
            if is_sent_to_cloud(kept) or isinstance(source, LocalSource):
                source.control_plane.put_session(view.run_id, session_id, kept)
        except ControlPlaneError as error:
            console.warn(f"the profile was saved, but could not be added to the run: {error}")
        if options.format == "table":
            console.data(_format(session_id, folders, targets, results, console.width))
        else:
            shown = _as_dict(view, session_id, folders, targets, results)
            console.data(format_data(shown, options.format, shown["hosts"], _HOST_FIELDS))
        return DONE if all(result.is_captured for result in results) else FAILED


def targets_of(view: RunView, hosts: Sequence[str] | None) -> list[Target]:
    """Return the processes to profile.

    Args:
        view: The run.
        hosts: Names of hosts, or addresses; None for all processes that can be profiled.

    Raises:
        ProfilingError: No process can be profiled.
        NotFoundError: The run has no such host.
    """
    from google_cloud_mldiagnostics.exceptions import ProfilingError

    able = [process for process in view.processes if process.profiler_port is not None and not process.state.has_ended]
    if hosts is None:
        if not able:
            raise ProfilingError(_why_none(view))
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
            raise NotFoundError(
                f"the run {view.run_id} has no host {name!r} that can be profiled; it has {known}. For a host that the "
                "run does not know, give host:port"
            )
    return targets


def _why_none(view: RunView) -> str:
    if view.state.has_ended:
        return f"the run {view.run_id} has ended ({view.state.value}): there is nothing to profile"
    return (
        f"no process of the run {view.run_id} can be profiled: it must have been started with "
        "machinelearning_run(on_demand_xprof=True). If a profiler server runs nevertheless, give --hosts host:port"
    )


def _target(process: ProcessView, view: RunView) -> Target:
    folder = process.capture_folder or _sessions_folder(view)
    return Target(process.name, _address(process), folder, process.capture_name)


def _address(process: ProcessView) -> str:
    from ml_diagnostics_common.environment import identity

    # The address of this host may not be reachable from itself, behind a firewall or in a container.
    host = "localhost" if process.host == identity().host else process.address or process.host
    return f"{host}:{process.profiler_port}"


def _sessions_folder(view: RunView) -> str:
    """Return the path for processes without a folder of their own.

    Raises:
        ProfilingError: The run has no path for profiles.
    """
    from google_cloud_mldiagnostics._profiling.locations import sessions_folder
    from google_cloud_mldiagnostics.exceptions import ProfilingError

    if not view.gcs_path:
        raise ProfilingError(f"the run {view.run_id} has no gcs_path, so a process that it does not know cannot write")
    return sessions_folder(f"{view.gcs_path}/{view.run_id}")


def _folders(view: RunView, targets: Sequence[Target], session_id: str) -> list[str]:
    """Return the folders of the profile, after the job uploaded it: one, or one for each host without a shared path."""
    from google_cloud_mldiagnostics._profiling.locations import session_folder

    if in_bucket(view.gcs_path):
        return [session_folder(f"{view.gcs_path}/{view.run_id}", session_id)]
    return list(dict.fromkeys(f"{target.folder}/{session_id}" for target in targets))


def _session_resource(
    folders: Sequence[str], targets: Sequence[Target], results: Sequence[CaptureResult], start_ns: int
) -> dict[str, Any]:
    """Return the profile as a control plane stores it. The job also reports it, if it runs long enough."""
    from ml_diagnostics_common.entry import format_timestamp

    sessions = {
        target.file_name or target.name: {
            "startTime": format_timestamp(start_ns),
            "endTime": format_timestamp(start_ns + round(result.seconds * 1e9)),
            "sessionPhase": "SUCCEEDED" if result.is_captured else "FAILED",
        }
        for target, result in zip(targets, results, strict=True)
    }
    return {
        "profilerTargets": list(sessions),
        "targetSessions": sessions,
        "storageFolderUri": folders[0],
        "dashboardUri": "",
        "duration": f"{max(result.seconds for result in results):.3f}s",
        "kind": "KIND_SNAPSHOT",
    }


def _format(
    session_id: str,
    folders: Sequence[str],
    targets: Sequence[Target],
    results: Sequence[CaptureResult],
    width: int | None,
) -> str:
    from google_cloud_mldiagnostics._profiling.locations import logdir_of, opening_command

    rows, problems = [], []
    for target, result in zip(targets, results, strict=True):
        outcome = f"captured, after {format_duration(result.seconds)}" if result.is_captured else "not captured"
        rows.append((target.name, target.address, outcome))
        if not result.is_captured:
            problems.append(f"  {target.name}: {shortened(result.problem, 300, width)}")
    captured = sum(result.is_captured for result in results)
    lines = [
        f"profile {session_id}: {captured} of {len(results)} captured",
        "",
        *format_table(("process", "address", "result"), rows, width=width, cut=["result"], indent="  "),
    ]
    if problems:
        lines += ["", *problems]
    if captured:
        lines.append("")
        lines += [f"  in    {folder}{', uploaded by the job' * in_bucket(folder)}" for folder in folders]
        roots = dict.fromkeys(logdir_of(folder) for folder in folders)
        lines += [f"  open  {opening_command(root)}" for root in roots]
    return "\n".join(lines)


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


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("give the names of hosts, with commas between them")
    return names


def _session(text: str) -> str:
    if not _SESSION.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid name of a session: use letters, digits, '_', '.' and '-'"
        )
    return text
