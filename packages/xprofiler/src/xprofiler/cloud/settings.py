"""What gcloud is set to: its variables, and the file of its active configuration. No subprocess is started.

Files: https://cloud.google.com/sdk/docs/configurations; a variable CLOUDSDK_SECTION_PROPERTY wins over the file.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ml_diagnostics_common.credentials import active_configuration
from ml_diagnostics_common.environment import endpoint

from xprofiler.exceptions import UsageError

__all__ = ["GcloudSettings"]


@dataclass(frozen=True)
class GcloudSettings:
    """gcloud's settings.

    Attributes:
        environ: The variables, completed by what the configuration says: a whole view for whoever reads variables,
            such as `find_cloud` and `GoogleCloudStorage`.
        configuration: The active configuration's file, which may not exist.
    """

    environ: Mapping[str, str]
    configuration: Path

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> GcloudSettings:
        """Read them.

        Args:
            environ: The environment variables.
        """
        configuration = active_configuration(environ)
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read_string(configuration.read_text(encoding="utf-8"))
        except (OSError, ValueError, configparser.Error):
            parser = configparser.ConfigParser()
        configured = {
            f"CLOUDSDK_{section}_{name}".upper(): value.strip()
            for section in parser.sections()
            for name, value in parser.items(section)
        }
        return cls({**configured, **environ}, configuration)

    def value(self, section: str, name: str) -> str:
        """A property, such as `value("compute", "zone")`; empty where it is not set."""
        return self.environ.get(f"CLOUDSDK_{section}_{name}".upper(), "").strip()

    @property
    def project(self) -> str:
        """The project's id, or empty."""
        return self.environ.get("GOOGLE_CLOUD_PROJECT", "").strip() or self.value("core", "project")

    @property
    def zone(self) -> str:
        """The zone where none is named, or empty."""
        return self.value("compute", "zone")

    def zone_or_default(self, zone: str | None) -> str:
        """Return the zone that was named, or else gcloud's.

        Raises:
            UsageError: There is neither.
        """
        if not (zone or self.zone):
            raise UsageError("the zone is missing: give -z ZONE_NAME, or 'gcloud config set compute/zone ZONE_NAME'")
        return zone or self.zone

    @property
    def account(self) -> str:
        """Who is logged in, or empty."""
        return self.value("core", "account")

    def endpoint(self, service: str) -> str | None:
        """Where a service is, if elsewhere than usual, with a slash at the end.

        Args:
            service: "compute", "tpu", "storage", ...

        Raises:
            ConfigurationError: The setting is not a URL.
        """
        url = endpoint(service, self.environ)
        return f"{url}/" if url else None
