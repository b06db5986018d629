"""gcloud's settings, from its environment variables and the active configuration file. No subprocess is started.

Files: https://cloud.google.com/sdk/docs/configurations; a variable CLOUDSDK_SECTION_PROPERTY overrides the file.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ml_diagnostics_common.command.errors import UsageError
from ml_diagnostics_common.credentials import active_configuration
from ml_diagnostics_common.endpoints import endpoint

__all__ = ["GcloudSettings"]


@dataclass(frozen=True)
class GcloudSettings:
    """gcloud's settings.

    Attributes:
        environ: The environment variables, completed from the configuration file, for functions that read variables,
            such as `find_cloud` and `GoogleCloudStorage`.
        configuration: The path of the active configuration, which may not exist.
    """

    environ: Mapping[str, str]
    configuration: Path

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> GcloudSettings:
        """Read the settings.

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
        """Return a property, such as `value("compute", "zone")`; empty if it is not set."""
        return self.environ.get(f"CLOUDSDK_{section}_{name}".upper(), "").strip()

    @property
    def project(self) -> str:
        """The project's id, or empty."""
        return self.environ.get("GOOGLE_CLOUD_PROJECT", "").strip() or self.value("core", "project")

    @property
    def zone(self) -> str:
        """The default zone, or empty."""
        return self.value("compute", "zone")

    def zone_or_default(self, zone: str | None) -> str:
        """Return the given zone, or gcloud's default.

        Raises:
            UsageError: Neither is set.
        """
        if not (zone or self.zone):
            raise UsageError("the zone is missing: give -z ZONE_NAME, or 'gcloud config set compute/zone ZONE_NAME'")
        return zone or self.zone

    @property
    def account(self) -> str:
        """The account that is logged in, or empty."""
        return self.value("core", "account")

    def endpoint(self, service: str) -> str | None:
        """Return the endpoint of a service, with a trailing slash; None for the default.

        Args:
            service: "compute", "tpu", "storage", ...

        Raises:
            ConfigurationError: The setting is not a URL, or is one with http of another machine.
        """
        url = endpoint(service, self.environ)
        return f"{url}/" if url else None
