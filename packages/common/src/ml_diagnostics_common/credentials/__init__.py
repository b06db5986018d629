"""The Google Cloud project and its credentials, found in a fixed order, in bounded time.

The order is that of google.auth. `google.auth.default()` is not called: it waits nine seconds and more for a metadata
server that does not exist, and starts gcloud to get the project.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_diagnostics_common.credentials.instance_metadata import InstanceMetadata, metadata_host
from ml_diagnostics_common.credentials.instance_metadata import (
    instance_metadata as _instance_metadata,  # The package's attribute of this name is the module.
)
from ml_diagnostics_common.environment import on_google_hardware
from ml_diagnostics_common.exceptions import CredentialsError, MissingExtraError, NoCloudError
from ml_diagnostics_common.files import read_regular

__all__ = [
    "CloudEnvironment",
    "active_configuration",
    "find_cloud",
    "gcloud_directory",
    "known_project",
    "principal_of",
]

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_CREDENTIAL_VARIABLES = ("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
_TOKEN_SERVICE_TIMEOUT_SECONDS = 5.0
_MOST_KEY_BYTES = 1 << 20
_TRUE = ("true", "1", "yes", "on", "y")  # As gcloud reads a boolean.


@dataclass(frozen=True)
class CloudEnvironment:
    """A Google Cloud project and the credentials to reach it.

    Attributes:
        project: The project's id.
        credentials: A `google.auth.credentials.Credentials`.
        principal: The account of the credentials, for messages; None if it is not known.
        project_source: The source of the project's id, for messages.
    """

    project: str
    credentials: Any
    principal: str | None
    project_source: str


def find_cloud(
    project: str | None = None, credentials: Any = None, *, environ: Mapping[str, str] = os.environ
) -> CloudEnvironment:
    """Find a project and credentials. Block for at most a second if there is no metadata server.

    The project: the argument, GOOGLE_CLOUD_PROJECT, CLOUDSDK_CORE_PROJECT, the project that a key file
    names, the active configuration of gcloud, the metadata server. The credentials: the argument,
    CLOUDSDK_AUTH_DISABLE_CREDENTIALS (anonymous), CLOUDSDK_AUTH_ACCESS_TOKEN_FILE, and then as google.auth
    does: GOOGLE_APPLICATION_CREDENTIALS, application default credentials, the metadata server. gcloud's own
    login is never used.

    Args:
        project: The project's id, if the caller knows it.
        credentials: A `google.auth.credentials.Credentials`, if the caller has one.
        environ: The environment variables.

    Returns:
        The project and credentials.

    Raises:
        NoCloudError: Nothing on this machine points to Google Cloud.
        CredentialsError: One of them was not found, or a file that should hold them is broken; the message
            states what is missing, where it was searched for, and what to do.
        MissingExtraError: google-auth is not installed.
    """
    found, searched_for_credentials = _find_credentials(credentials, environ)
    named, searched_for_project = _find_project(project, found, environ)
    if found is None or named is None:
        is_expected = found is None and named is None and not on_google_hardware()
        raise (NoCloudError if is_expected else CredentialsError)(
            _what_is_missing(searched_for_credentials, searched_for_project)
        )
    return CloudEnvironment(named.id, found.credentials, found.principal, named.source)


def _what_is_missing(searched_for_credentials: list[str], searched_for_project: list[str]) -> str:
    missing, todo = [], []
    if searched_for_credentials:
        missing.append(f"no Google Cloud credentials were found ({'; '.join(searched_for_credentials)})")
        todo.append("run 'gcloud auth application-default login' or point GOOGLE_APPLICATION_CREDENTIALS at a key")
    if searched_for_project:
        missing.append(f"no Google Cloud project was found ({'; '.join(searched_for_project)})")
        todo.append("set GOOGLE_CLOUD_PROJECT")
    return (
        f"{', and '.join(missing)}: {' and '.join(todo)}, "
        "or set ML_DIAGNOSTICS_BACKEND=local to keep everything on this machine"
    )


@dataclass(frozen=True)
class _Found:
    """Credentials, their account, and the project that they name."""

    credentials: Any
    principal: str | None
    project: str | None = None
    source: str = ""


@dataclass(frozen=True)
class _Project:
    id: str
    source: str


# --- The project --------------------------------------------------------------------------------------


def _find_project(
    argument: str | None, found: _Found | None, environ: Mapping[str, str]
) -> tuple[_Project | None, list[str]]:
    if argument:
        return _Project(argument, "the caller"), []
    searched: list[str] = []
    for variable in _PROJECT_VARIABLES:
        if environ.get(variable, "").strip():
            return _Project(environ[variable].strip(), variable), []
        searched.append(f"{variable} is not set")
    if found and found.project:
        return _Project(found.project, found.source), []
    configuration = active_configuration(environ)
    configured = _configured_project(configuration)
    if configured:
        return _Project(configured, str(configuration)), []
    searched.append(f"{configuration} names none")
    metadata = _instance_metadata(environ)
    if metadata:
        return _Project(metadata.project, _metadata_source(environ)), []
    return None, [*searched, f"{_metadata_source(environ)} did not answer"]


def known_project(environ: Mapping[str, str] = os.environ, *, wait_seconds: float = 1.0) -> str:
    """Return the project that `find_cloud` finds, from files and a metadata server, without google.auth.

    Args:
        environ: The environment variables.
        wait_seconds: How long to wait for the metadata server, where there is one.

    Returns:
        The project's id; empty if there are no credentials, or only google.auth can find the project. Never raises.
    """
    for variable in _PROJECT_VARIABLES:
        if environ.get(variable, "").strip():
            return environ[variable].strip()
    key = _content_of_key(environ)
    if key.get("project_id"):
        return str(key["project_id"])
    is_google = on_google_hardware() or any(
        environ.get(name) for name in ("KUBERNETES_SERVICE_HOST", "GCE_METADATA_HOST")
    )
    if not is_google and not key and not any(environ.get(name) for name in _CREDENTIAL_VARIABLES):
        return ""
    configured = _configured_project(active_configuration(environ))
    if configured or not is_google:
        return configured
    metadata = _instance_metadata(environ, wait_seconds=wait_seconds)
    return metadata.project if metadata else ""


def _content_of_key(environ: Mapping[str, str]) -> dict[str, Any]:
    import json

    default_file = gcloud_directory(environ) / "application_default_credentials.json"
    try:
        # A pipe, as a shell's <(...) is, can be read only once: google.auth has to read it.
        content = json.loads(
            read_regular(environ.get("GOOGLE_APPLICATION_CREDENTIALS") or default_file, _MOST_KEY_BYTES)
        )
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def gcloud_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of gcloud's settings: `CLOUDSDK_CONFIG`, or the default."""
    if environ.get("CLOUDSDK_CONFIG"):
        return Path(environ["CLOUDSDK_CONFIG"])
    if os.name == "nt":
        return Path(environ.get("APPDATA", "C:\\")) / "gcloud"
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".config" / "gcloud"  # noqa: PTH111


def active_configuration(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the INI file of the configuration that gcloud uses; it may not exist."""
    folder = gcloud_directory(environ)
    name = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME", "").strip()
    if not name:
        try:
            name = (folder / "active_config").read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            name = ""
    return folder / "configurations" / f"config_{name or 'default'}"


def _configured_project(configuration: Path) -> str:
    import configparser

    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(configuration.read_text(encoding="utf-8"))
        return parser.get("core", "project", fallback="").strip()
    except (OSError, ValueError, configparser.Error):
        return ""


def _metadata_source(environ: Mapping[str, str]) -> str:
    return f"the metadata server at {metadata_host(environ)}"


# --- The credentials ----------------------------------------------------------------------------------


def _find_credentials(argument: Any, environ: Mapping[str, str]) -> tuple[_Found | None, list[str]]:
    if argument is not None:
        return _Found(argument, principal_of(argument)), []
    try:
        import google.auth.credentials
    except ImportError as error:
        raise MissingExtraError("Google Cloud", "ml-diagnostics-common", "logging") from error

    if environ.get("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "").strip().lower() in _TRUE:
        return _Found(google.auth.credentials.AnonymousCredentials(), "anonymous"), []
    if environ.get("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"):
        return _from_token_file(Path(environ["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"])), []
    if environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        path = Path(environ["GOOGLE_APPLICATION_CREDENTIALS"])
        return _from_key_file(path, "GOOGLE_APPLICATION_CREDENTIALS names"), []
    default_file = gcloud_directory(environ) / "application_default_credentials.json"
    if os.path.isfile(default_file):  # noqa: PTH113  Path.is_file raises where the folder is not ours to see.
        return _from_key_file(default_file, "application default credentials are in"), []
    metadata = _instance_metadata(environ)
    if metadata:
        return _of_instance(metadata), []
    return None, [
        "GOOGLE_APPLICATION_CREDENTIALS is not set",
        f"{default_file} does not exist",
        f"{_metadata_source(environ)} did not answer",
    ]


def _from_token_file(path: Path) -> _Found:
    from google.auth.exceptions import GoogleAuthError

    from ml_diagnostics_common.credentials._access_token import AccessTokenFileCredentials

    try:
        return _Found(AccessTokenFileCredentials(path), f"the bearer of the token in {path}")
    except GoogleAuthError as error:
        raise CredentialsError(f"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE: {error}; write a token there, or unset it") from error


def _of_instance(metadata: InstanceMetadata) -> _Found:
    """Return the machine's service account. The metadata server has answered before, so that nothing waits here."""
    import google.auth.compute_engine

    credentials = google.auth.compute_engine.Credentials(scopes=_SCOPES)
    return _Found(credentials.with_quota_project_from_environment(), metadata.principal or None)


def _from_key_file(path: Path, source: str) -> _Found:
    """Load a service account's key, a user's refresh token, or a description of an external account.

    Raises:
        CredentialsError: The file cannot be read, is not JSON, or is not a key that google.auth knows.
    """
    import json

    todo = "point GOOGLE_APPLICATION_CREDENTIALS at a key, or unset it (see 'gcloud auth application-default')"
    try:
        content = json.loads(path.read_bytes())
        kind = content.get("type") if isinstance(content, dict) else None
    except FileNotFoundError:
        raise CredentialsError(f"{source} {path}, which does not exist: {todo}") from None
    except OSError as error:
        raise CredentialsError(f"{source} {path}, which cannot be read ({error.strerror}): {todo}") from error
    except (ValueError, RecursionError):
        raise CredentialsError(f"{source} {path}, which is not JSON: {todo}") from None
    if not isinstance(kind, str):
        raise CredentialsError(f"{source} {path}, which is JSON but no key (it has no 'type'): {todo}")
    try:
        credentials, project = _load(path)
    except Exception as error:
        raise CredentialsError(f"{source} {path}, which google.auth does not accept ({error}): {todo}") from error
    return _Found(credentials, principal_of(credentials), project or content.get("project_id"), str(path))


def _load(path: Path) -> tuple[Any, str | None]:
    import warnings

    import google.auth
    import google.auth.credentials
    import google.auth.transport.requests

    # An external account may ask its token service for the project.
    request = functools.partial(google.auth.transport.requests.Request(), timeout=_TOKEN_SERVICE_TIMEOUT_SECONDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "This method is deprecated": it is how google.auth itself loads the file.
        credentials, project = google.auth.load_credentials_from_file(str(path), request=request)
    return google.auth.credentials.with_scopes_if_required(credentials, _SCOPES), project


def principal_of(credentials: Any) -> str | None:
    """Return the account of credentials; None if it is not known, as before the first request of a machine's."""
    for attribute in ("service_account_email", "signer_email", "account"):
        value = getattr(credentials, attribute, None)
        if isinstance(value, str) and "@" in value:
            return value
    return None
