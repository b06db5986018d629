"""Runs and their entries, for programs that build on them: where they are stored, and what is known of each process."""

from __future__ import annotations

from google_cloud_mldiagnostics._entries import CONFIGS, LOG_ID, LOSSES_NAMESPACE, PROCESS, SESSION
from google_cloud_mldiagnostics._reading.process_view import ProcessView, State
from google_cloud_mldiagnostics._reading.run_history import (
    ProcessKey,
    RunHistory,
    mappings,
    natural_number,
    number,
    texts,
)
from google_cloud_mldiagnostics._reading.run_source import CloudSource, LocalSource, RunSource
from google_cloud_mldiagnostics._reading.run_view import SILENT_SECONDS, AttemptView, RunView, view_run
from google_cloud_mldiagnostics._reading.session_view import HostProfile, SessionView

__all__ = [
    "CONFIGS",
    "LOG_ID",
    "LOSSES_NAMESPACE",
    "PROCESS",
    "SESSION",
    "SILENT_SECONDS",
    "AttemptView",
    "CloudSource",
    "HostProfile",
    "LocalSource",
    "ProcessKey",
    "ProcessView",
    "RunHistory",
    "RunSource",
    "RunView",
    "SessionView",
    "State",
    "mappings",
    "natural_number",
    "number",
    "texts",
    "view_run",
]
