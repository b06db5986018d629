"""Endpoints of Google's services: addresses, TLS, universe and transport, read from the environment.

Nothing here uses the network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.exceptions import ConfigurationError

__all__ = ["endpoint", "logging_over_grpc", "require_secure", "universe_domain"]


def endpoint(service: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of a Google Cloud service, if one of gcloud's settings redirects it.

    Args:
        service: The service as gcloud names it: "logging", "storage", "monitoring", "compute", ...
        environ: The environment variables. `CLOUDSDK_API_ENDPOINT_OVERRIDES_<SERVICE>` is read, and before it
            `STORAGE_EMULATOR_HOST` for storage, which may leave out `http://`, and may be any machine: requests to an
            emulator have no token.

    Returns:
        The URL without a slash at its end; None if no setting redirects the service.

    Raises:
        ConfigurationError: The value is not an http or https URL with a host, or see `require_secure`.
    """
    emulator = environ.get("STORAGE_EMULATOR_HOST", "").strip() if service.lower() == "storage" else ""
    if emulator:
        url = emulator if "://" in emulator else f"http://{emulator}"
        _require_url(url, "STORAGE_EMULATOR_HOST")
        return url.rstrip("/")
    variable = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"
    url = environ.get(variable, "").strip().rstrip("/")
    if not url:
        return None
    require_secure(url, variable)
    return url


def require_secure(url: str, setting: str) -> None:
    """Refuse the URL of a service that gets a token if requests would cross a network in clear text.

    Args:
        url: The URL.
        setting: The name of the variable or argument, for the message.

    Raises:
        ConfigurationError: It is not an https URL, and not an http URL of this machine.
    """
    _require_url(url, setting)
    if not url.lower().startswith("https:") and not _is_loopback(url):
        raise ConfigurationError(
            f"{setting} is {url!r}: http is only for addresses of this machine; set it to an https URL"
        )


def _require_url(url: str, setting: str) -> None:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigurationError(
            f"{setting} is {url!r}; set it to a URL such as 'http://127.0.0.1:8080/', or leave it out"
        )


def _is_loopback(url: str) -> bool:
    import ipaddress
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def universe_domain(credentials: Any) -> str:
    """Return the domain of Google's services: `GOOGLE_CLOUD_UNIVERSE_DOMAIN`, or the credentials' own."""
    found = os.environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN") or getattr(credentials, "universe_domain", None)
    return found or "googleapis.com"


def logging_over_grpc(environ: Mapping[str, str] = os.environ) -> bool:
    """Read `ML_DIAGNOSTICS_LOGGING_TRANSPORT`: True for `grpc`, False for `rest` and by default.

    Raises:
        ConfigurationError: It has another value.
    """
    value = environ.get("ML_DIAGNOSTICS_LOGGING_TRANSPORT", "").strip().lower()
    if value not in ("", "rest", "grpc"):
        raise ConfigurationError(
            f"ML_DIAGNOSTICS_LOGGING_TRANSPORT is {value!r}; set it to 'rest' or 'grpc', or unset it"
        )
    return value == "grpc"
