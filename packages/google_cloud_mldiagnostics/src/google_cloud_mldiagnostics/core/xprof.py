"""Profiles, by the name of the public package."""

from __future__ import annotations

from google_cloud_mldiagnostics._profiling.on_demand import start_on_demand_xprof, stop_on_demand_xprof
from google_cloud_mldiagnostics._profiling.xprof import Xprof

__all__ = ["Xprof", "start_on_demand_xprof", "stop_on_demand_xprof"]
