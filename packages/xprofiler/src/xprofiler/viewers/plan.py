"""The configuration of a viewer VM to create, for Compute's API and for gcloud. No I/O but reading the script."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from xprofiler._version import __version__
from xprofiler.gcloud.command_lines import checked_name, create_instance
from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.startup import STARTUP_SCRIPT, XPROF_VERSION
from xprofiler.viewers.viewer import CREATION_LABEL, LOG_DIRECTORY_KEY, PLUGIN_LABEL, VERSION_LABEL, label_value

__all__ = ["ViewerPlan"]

_TTL_LABEL: Final = "xprofiler_ttl"
_TAG: Final = "default-allow-ssh"
_IMAGE_PROJECT, _IMAGE_FAMILY = "debian-cloud", "debian-12"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True)
class ViewerPlan:
    """The configuration of a viewer VM to create.

    Attributes:
        name: The VM's name.
        zone: The VM's zone.
        machine_type: The machine type, such as c4-highmem-8.
        log_directory: The log directory to show.
        ttl_seconds: The time after which Compute deletes it; None means never.
        creation_id: Distinguishes the VM from others with the same name.
    """

    name: str
    zone: str
    machine_type: str
    log_directory: LogDirectory
    ttl_seconds: int | None = None
    creation_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        """Raise UsageError if a name is not valid."""
        checked_name(self.name, "VM")
        checked_name(self.zone, "zone")
        checked_name(self.machine_type, "machine type")

    @property
    def labels(self) -> dict[str, str]:
        """The labels to find it by."""
        labels = {
            VERSION_LABEL: label_value(__version__),
            PLUGIN_LABEL: label_value(XPROF_VERSION),
            CREATION_LABEL: self.creation_id,
        }
        return labels if self.ttl_seconds is None else {**labels, _TTL_LABEL: f"{self.ttl_seconds}s"}

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata for the startup script, without the script itself."""
        return {
            VERSION_LABEL: __version__,
            LOG_DIRECTORY_KEY: self.log_directory.path,
            "tensorboard-plugin-profile": XPROF_VERSION,
        }

    def body(self) -> dict[str, Any]:
        """Return the VM as a resource of Compute."""
        metadata = {**self.metadata, "startup-script": STARTUP_SCRIPT.read_text(encoding="utf-8")}
        scheduling: dict[str, Any] = {"automaticRestart": True}
        if self.ttl_seconds is not None:
            scheduling |= {"maxRunDuration": {"seconds": str(self.ttl_seconds)}, "instanceTerminationAction": "DELETE"}
        image = f"projects/{_IMAGE_PROJECT}/global/images/family/{_IMAGE_FAMILY}"
        return {
            "name": self.name,
            "machineType": f"zones/{self.zone}/machineTypes/{self.machine_type}",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
            "networkInterfaces": [
                {
                    "network": "global/networks/default",
                    "accessConfigs": [{"name": "external-nat", "type": "ONE_TO_ONE_NAT"}],
                }
            ],
            "serviceAccounts": [{"email": "default", "scopes": [_SCOPE]}],
            "tags": {"items": [_TAG]},
            "labels": self.labels,
            "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
            "scheduling": scheduling,
        }

    def gcloud_argv(self, project: str, extra: Sequence[str] = ()) -> list[str]:
        """Return the argv of gcloud that creates the same VM.

        Args:
            project: The VM's project.
            extra: The user's own flags; their labels and metadata are merged with ours.

        Raises:
            UsageError: A flag is not valid, or would change the zone, project or account.
        """
        flags = [
            f"--machine-type={self.machine_type}",
            f"--tags={_TAG}",
            f"--image-family={_IMAGE_FAMILY}",
            f"--image-project={_IMAGE_PROJECT}",
            "--scopes=cloud-platform",
        ]
        if self.ttl_seconds is not None:
            flags += [f"--max-run-duration={self.ttl_seconds}s", "--instance-termination-action=DELETE"]
        pairs = {
            "--labels": self.labels,
            "--metadata": self.metadata,
            "--metadata-from-file": {"startup-script": str(STARTUP_SCRIPT)},
        }
        return create_instance(self.name, self.zone, project, flags, pairs, extra)
