"""`mldiagnostics sync RUN`: brings a run of this machine to Google Cloud, with its entries and its profiles."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.locations import native_path

from google_cloud_mldiagnostics.cli.command import NOT_DONE, OK, run_argument

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.reading.run_source import CloudSource, LocalSource
    from google_cloud_mldiagnostics.run_sync import EntriesSent, ProfilesSent

__all__ = ["SyncCommand"]


class SyncCommand:
    """Brings a local run to the cloud."""

    name = "sync"
    summary = "bring a run of this machine to Google Cloud, also while it goes on"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        run_argument(parser)
        parser.add_argument("--project", metavar="PROJECT", help="where to (default: the job's, else what is found)")
        parser.add_argument("--region", metavar="REGION", help="where it is kept (default: the job's, us-central1)")
        parser.add_argument(
            "--gcs-path", metavar="gs://...", type=_bucket, help="where to, for profiles (default: the run's)"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Sends what is not there yet, and says what that was."""
        from google_cloud_mldiagnostics.cli.text import note, print_data
        from google_cloud_mldiagnostics.reading.run_source import CloudSource, LocalSource
        from google_cloud_mldiagnostics.run_sync import home_of
        from google_cloud_mldiagnostics.unreported_runs import send_run

        local = LocalSource(note)
        run = _as_it_is(local, options.run)
        run_id = str(run["name"])
        project, region = home_of(run_id, local.root)
        cloud = CloudSource(options.project or project or None, options.region or region or None, note)
        gcs_path = options.gcs_path or str((run.get("artifacts") or {}).get("gcsPath", ""))
        if options.gcs_path:
            run["artifacts"] = {**(run.get("artifacts") or {}), "gcsPath": gcs_path}
        was_created = send_run(run, cloud.control_plane)
        print_data(f"run       {'created' if was_created else 'brought up to date'} in {cloud.place}\n")
        entries = _send_entries(run_id, local, cloud)
        print_data(f"entries   {_told_of_entries(entries)}\n")
        print_data(f"profiles  {_send_profiles(run_id, gcs_path, local, cloud)}\n")
        print_data(f"link      {cloud.control_plane.link(run_id)}\n")
        return NOT_DONE if entries.refused else OK


def _as_it_is(local: LocalSource, name: str) -> dict[str, Any]:
    """The run as this machine keeps it; of one that was killed, with the phase that it really has."""
    from google_cloud_mldiagnostics.reading.run_history import RunHistory

    run = local.find(name)
    history = RunHistory()
    for batch in local.entries.everything(run):
        history.add(batch)
    view = local.view(run, history)
    if view.state.has_ended:
        return {**run, "runPhase": view.state.value}
    return run


def _send_entries(run_id: str, local: LocalSource, cloud: CloudSource) -> EntriesSent:
    from google_cloud_mldiagnostics.cli.text import note
    from google_cloud_mldiagnostics.run_sync import send_entries

    return send_entries(
        run_id,
        cloud.transport,
        root=local.root,
        location=cloud.region,
        progress=lambda sent: note(f"{sent.sent:,} entries sent"),
    )


def _told_of_entries(entries: EntriesSent) -> str:
    from google_cloud_mldiagnostics.cli.text import format_count

    sent = f"{format_count(entries.sent, 'entry', 'entries')} sent"
    return sent if not entries.refused else f"{sent}, {entries.refused:,} refused: {entries.why_refused}"


def _send_profiles(run_id: str, gcs_path: str, local: LocalSource, cloud: CloudSource) -> str:
    """Sends the run's profiles and what is told of them; says what that was."""
    from google_cloud_mldiagnostics.cli.text import format_bytes, format_count, note
    from google_cloud_mldiagnostics.profiling.hosts_check import hosts_of
    from google_cloud_mldiagnostics.profiling.layout import session_folder
    from google_cloud_mldiagnostics.reading.run_source import run_id_of
    from google_cloud_mldiagnostics.run_sync import arrived, profile_files, send_profiles, send_sessions

    folder = local.control_plane.folder(run_id)
    staging = folder / "staged"
    folders = [staging, folder / "profiles"]
    if gcs_path and not gcs_path.startswith("gs://"):
        folders.append(Path(native_path(gcs_path)).expanduser() / run_id)
    files = profile_files(folders)
    if not gcs_path.startswith("gs://"):
        if not files:
            return "none"
        return f"{format_count(len(files), 'file')} not sent: say where to with --gcs-path gs://bucket/folder"
    logdir = f"{gcs_path}/{run_id}"
    sent: ProfilesSent = send_profiles(files, logdir, staging=staging, told=lambda name: note(f"sending {name}"))
    kept = {run_id_of(session): session for session in local.control_plane.list_sessions(run_id)}
    there = {name: arrived(kept[name], hosts_of(session_folder(logdir, name))) for name in sent.sessions & kept.keys()}
    sessions = [there.get(session_id, session) for session_id, session in kept.items()]
    told = send_sessions(run_id, sessions, logdir, sent.sessions, cloud.control_plane)
    for session in sessions:
        session_id = run_id_of(session)
        was_here = str(session.get("storageFolderUri", "")).startswith(str(staging))
        if session_id in there and (was_here or session is not kept[session_id]):
            moved = {**session, "storageFolderUri": session_folder(logdir, session_id)}
            local.control_plane.put_session(run_id, session_id, moved)
    if not files and not told:
        return "none"
    return (
        f"{format_count(len(sent.sent), 'file')} sent ({format_bytes(sent.size_bytes)}), {sent.known:,} there before; "
        f"{format_count(len(told), 'session')}"
    )


def _bucket(text: str) -> str:
    if not text.startswith("gs://") or len(text) < 6:
        raise argparse.ArgumentTypeError(f"{text!r} is no bucket: give gs://bucket/folder")
    return text.rstrip("/")
