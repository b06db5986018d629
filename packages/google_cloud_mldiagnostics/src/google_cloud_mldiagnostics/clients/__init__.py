"""Control planes, for programs that call one themselves."""

from __future__ import annotations

from google_cloud_mldiagnostics.control_plane import Change, ControlPlane, Resource
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.control_plane.self_hosted import SelfHostedControlPlane

__all__ = ["Change", "ControlPlane", "GoogleControlPlane", "LocalControlPlane", "Resource", "SelfHostedControlPlane"]
