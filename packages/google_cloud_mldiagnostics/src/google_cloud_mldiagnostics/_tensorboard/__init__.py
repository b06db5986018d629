"""Recorded values in TensorBoard, written by a thread that reads them from the journal."""

from __future__ import annotations

from google_cloud_mldiagnostics._tensorboard.exports import (
    Target,
    checked_target,
    end_export,
    export_to,
    is_exported,
    run_started,
    wait_for_export,
)

__all__ = ["Target", "checked_target", "end_export", "export_to", "is_exported", "run_started", "wait_for_export"]
