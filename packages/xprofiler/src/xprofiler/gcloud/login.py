"""Credentials of requests: application default credentials, otherwise gcloud's login, otherwise the machine's.

This module imports google.auth, which takes 160 ms.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
from typing import Any

import google.auth.credentials
import google.auth.exceptions
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotPermittedError, UsageError
from ml_diagnostics_common.credentials import CloudEnvironment, find_cloud, gcloud_directory
from ml_diagnostics_common.exceptions import CredentialsError

from xprofiler.gcloud.processes import Programs
from xprofiler.gcloud.settings import GcloudSettings

__all__ = ["GcloudCredentials", "find_login"]

_ARGV = ("gcloud", "config", "config-helper", "--format=json", "--min-expiry=5m")
_TIMEOUT_SECONDS = 60.0
_UNKNOWN_PROJECT = "unknown-project"


class GcloudCredentials(google.auth.credentials.Credentials):
    """gcloud's login. gcloud is run for a token when there is none, or when it has expired.

    Attributes:
        account: The account that is logged in; known after the first token.
    """

    def __init__(self, settings: GcloudSettings, console: Console) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.account = settings.account
        self._environ = dict(settings.environ)
        self._console = console

    def refresh(self, request: Any) -> None:
        """Run gcloud to get a token.

        Args:
            request: Not used.

        Raises:
            google.auth.exceptions.RefreshError: gcloud returned no token; the message is gcloud's.
        """
        try:
            with Programs(self._console, self._environ) as programs:
                ended = programs.run(_ARGV, timeout_seconds=_TIMEOUT_SECONDS)
        except CommandError as error:
            raise google.auth.exceptions.RefreshError(f"gcloud could not be run for a token: {error}") from error
        if ended.exit_code:
            raise google.auth.exceptions.RefreshError(f"gcloud has no token: {ended.complaint.splitlines()[0]}")
        self._take(ended.output)

    def _take(self, answer: bytes) -> None:
        try:
            helper = json.loads(answer)
            self.token = str(helper["credential"]["access_token"])
            expiry = datetime.datetime.strptime(helper["credential"]["token_expiry"], "%Y-%m-%dT%H:%M:%SZ")
            self.expiry = expiry
            self.account = str(helper["configuration"]["properties"]["core"].get("account", self.account))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise google.auth.exceptions.RefreshError(f"gcloud's answer holds no token ({error!r})") from error


def find_login(settings: GcloudSettings, console: Console) -> CloudEnvironment:
    """Find credentials and a project.

    Args:
        settings: gcloud's settings.
        console: Receives the command line if gcloud is run.

    Returns:
        The credentials, their account, and the project.

    Raises:
        NotPermittedError: There are no credentials, or a credentials file is not valid.
        UsageError: No project is set.
    """
    environ = dict(settings.environ)
    project = settings.project or _UNKNOWN_PROJECT
    try:
        found = find_cloud(project, environ={**environ, "NO_GCE_CHECK": "true"})
    except CredentialsError as error:
        if _names_a_file(settings):
            raise NotPermittedError(str(error)) from error
        found = _gcloud_or_machine(settings, console, project)
    if found.project == _UNKNOWN_PROJECT:
        return _with_project(found, settings)
    return found


def _names_a_file(settings: GcloudSettings) -> bool:
    named = ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
    default = gcloud_directory(settings.environ) / "application_default_credentials.json"
    # Path.is_file raises if the folder is not readable.
    return any(settings.environ.get(name) for name in named) or os.path.isfile(default)  # noqa: PTH113


def _gcloud_or_machine(settings: GcloudSettings, console: Console, project: str) -> CloudEnvironment:
    reason = "gcloud is not installed"
    if shutil.which("gcloud", path=settings.environ.get("PATH")):
        login = GcloudCredentials(settings, console)
        try:
            login.refresh(None)
        except google.auth.exceptions.RefreshError as error:
            reason = str(error)
        else:
            return CloudEnvironment(project, login, login.account or None, str(settings.configuration))
    try:
        return find_cloud(project, environ=dict(settings.environ))
    except CredentialsError as error:
        raise NotPermittedError(
            "no Google Cloud credentials: there are no application default credentials, no metadata server, and "
            f"{reason}; run 'gcloud auth login', or 'gcloud auth application-default login'"
        ) from error


def _with_project(found: CloudEnvironment, settings: GcloudSettings) -> CloudEnvironment:
    """Return the login with the project of the key file or the machine; gcloud's login has none."""
    try:
        if not isinstance(found.credentials, GcloudCredentials):
            return find_cloud(environ=dict(settings.environ))
    except CredentialsError:
        pass
    raise UsageError(
        f"no Google Cloud project is set ({settings.configuration} names none): "
        "run 'gcloud config set project PROJECT', or set CLOUDSDK_CORE_PROJECT"
    )
