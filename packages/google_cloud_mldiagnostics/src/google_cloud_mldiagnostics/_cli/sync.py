"""`mldiagnostics sync RUN`: send a run of this machine to Google Cloud, with its entries and its profiles."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.errors import DONE, FAILED
from ml_diagnostics_common.files import in_bucket, native_path
from ml_diagnostics_common.texts import format_bytes, format_count

from google_cloud_mldiagnostics._cli import add_run_argument

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from google_cloud_mldiagnostics._cli.run_sync import EntriesSent, ProfilesSent
    from google_cloud_mldiagnostics._reading.run_source import CloudSource, LocalSource

__all__ = ["SyncCommand"]


class SyncCommand:
    """Sends a local run to the cloud."""

    name = "sync"
    summary = "send a run of this machine to Google Cloud, also while it is running"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_run_argument(parser)
        parser.add_argument(
            "--project", metavar="PROJECT", help="the project (default: the job's, else the one that is found)"
        )
        parser.add_argument("--region", metavar="REGION", help="the region (default: the job's, else us-central1)")
        parser.add_argument(
            "--gcs-path", metavar="gs://...", type=_bucket, help="the path for profiles (default: the run's)"
        )

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Send what the cloud does not have yet, and print how much that was."""
        from ml_diagnostics_common.environment import configured_backend

        from google_cloud_mldiagnostics._cli.run_sync import home_of
        from google_cloud_mldiagnostics._reading.run_source import CloudSource, LocalSource
        from google_cloud_mldiagnostics._run_state.unreported_runs import send_run

        configured_backend()
        local = LocalSource(console.warn)
        run = _current(local, options.run)
        run_id = str(run["name"])
        project, region = home_of(run_id, local.root)
        cloud = CloudSource(
            options.project or project or None, options.region or region or None, console.warn, console.notify
        )
        gcs_path = options.gcs_path or str((run.get("artifacts") or {}).get("gcsPath", ""))
        if options.gcs_path:
            run["artifacts"] = {**(run.get("artifacts") or {}), "gcsPath": gcs_path}
        was_created = send_run(run, cloud.control_plane)
        console.data(f"run       {'created' if was_created else 'updated'} in {cloud.name}")
        entries = _send_entries(run_id, local, cloud, console)
        console.data(f"entries   {_entries_text(entries)}")
        console.data(f"profiles  {_send_profiles(run_id, gcs_path, local, cloud, console)}")
        console.data(f"link      {cloud.control_plane.link(run_id)}")
        return FAILED if entries.refused else DONE


def _current(local: LocalSource, name: str) -> dict[str, Any]:
    """Return the run of this machine; if it was killed, with its actual phase."""
    from google_cloud_mldiagnostics._reading.run_history import RunHistory

    run = local.find(name)
    history = RunHistory()
    for batch in local.entries.everything(run):
        history.add(batch)
    view = local.view(run, history)
    if view.state.has_ended:
        return {**run, "runPhase": view.state.value}
    return run


def _send_entries(run_id: str, local: LocalSource, cloud: CloudSource, console: Console) -> EntriesSent:
    from google_cloud_mldiagnostics._cli.run_sync import send_entries

    return send_entries(
        run_id,
        cloud.transport,
        root=local.root,
        location=cloud.region,
        progress=lambda sent: console.notify(f"{sent.sent:,} entries sent"),
    )


def _entries_text(entries: EntriesSent) -> str:
    sent = f"{format_count(entries.sent, 'entry', 'entries')} sent"
    return sent if not entries.refused else f"{sent}, {entries.refused:,} refused: {entries.why_refused}"


def _send_profiles(run_id: str, gcs_path: str, local: LocalSource, cloud: CloudSource, console: Console) -> str:
    """Send the run's profiles and their sessions; return how many that were."""
    from google_cloud_mldiagnostics._cli.run_sync import arrived, profile_files, send_profiles, send_sessions
    from google_cloud_mldiagnostics._profiling.locations import session_folder
    from google_cloud_mldiagnostics._profiling.sessions import hosts_of
    from google_cloud_mldiagnostics.control_plane import resource_id

    folder = local.control_plane.folder(run_id)
    staging = folder / "staged"
    folders = [staging, folder / "profiles"]
    if gcs_path and not in_bucket(gcs_path):
        folders.append(Path(native_path(gcs_path)).expanduser() / run_id)
    files = profile_files(folders)
    if not in_bucket(gcs_path):
        if not files:
            return "none"
        return f"{format_count(len(files), 'file')} not sent: give their path with --gcs-path gs://bucket/folder"
    logdir = f"{gcs_path}/{run_id}"
    sent: ProfilesSent = send_profiles(
        files, logdir, staging=staging, on_start=lambda name: console.notify(f"sending {name}")
    )
    kept = {resource_id(session): session for session in local.control_plane.list_sessions(run_id)}
    there = {name: arrived(kept[name], hosts_of(session_folder(logdir, name))) for name in sent.sessions & kept.keys()}
    sessions = [there.get(session_id, session) for session_id, session in kept.items()]
    updated = send_sessions(run_id, sessions, logdir, sent.sessions, cloud.control_plane)
    for session in sessions:
        session_id = resource_id(session)
        was_here = str(session.get("storageFolderUri", "")).startswith(str(staging))
        if session_id in there and (was_here or session is not kept[session_id]):
            moved = {**session, "storageFolderUri": session_folder(logdir, session_id)}
            local.control_plane.put_session(run_id, session_id, moved)
    if not files and not updated:
        return "none"
    return (
        f"{format_count(len(sent.sent), 'file')} sent ({format_bytes(sent.size_bytes)}), {sent.known:,} sent before; "
        f"{format_count(len(updated), 'session')}"
    )


def _bucket(text: str) -> str:
    if not in_bucket(text) or len(text) < 6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a path in a bucket: give gs://bucket/folder")
    return text.rstrip("/")
