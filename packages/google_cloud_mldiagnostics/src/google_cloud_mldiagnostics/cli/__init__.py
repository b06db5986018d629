"""The command `mldiagnostics`."""

from __future__ import annotations

from google_cloud_mldiagnostics.cli.main import main

__all__ = ["main"]
