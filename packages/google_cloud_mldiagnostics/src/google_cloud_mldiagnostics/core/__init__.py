"""Profiles and the run of this process, by the names of the public package."""

from __future__ import annotations

from google_cloud_mldiagnostics.core import global_manager, xprof

__all__ = ["global_manager", "xprof"]
