"""VMs as `xprofiler create` leaves them behind, in a Compute on loopback."""

from __future__ import annotations

from typing import Any

from ..loopback.compute import ComputeServer

ZONE = "us-central1-a"


def add_viewer(
    server: ComputeServer, name: str, zone: str = ZONE, *, logs: str = "", link: str = "", **fields: Any
) -> None:
    """Add a viewer.

    Args:
        server: The server to add it to.
        name: The VM's name.
        zone: Its zone.
        logs: Its log directory; by default `gs://bucket/NAME`.
        link: Its id in the proxy; empty while it is starting.
        **fields: Other fields of the API.
    """
    labels = {"xprofiler_version": "1-0-0", **({"tb_backend_id": link} if link else {}), **fields.pop("labels", {})}
    metadata = {"xprofiler_log_directory": logs or f"gs://bucket/{name}", "startup-script": "echo started"}
    server.add_instance(name, zone, labels=labels, metadata=metadata, **fields)
