"""Google's token endpoint on loopback: it exchanges the signed claims of a service account for an access token.

    with OAuthServer() as server:
        server.write_key("key.json")  # GOOGLE_APPLICATION_CREDENTIALS

The real google.auth uses it. Like Google's, it rejects claims without a scope, for another audience, or out of date.

Format: https://developers.google.com/identity/protocols/oauth2/service-account#authorizingrequests
"""

import base64
import functools
import json
import os
import secrets
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response, json_response

_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AUDIENCE = "https://oauth2.googleapis.com/token"  # google.auth names this audience, whatever the token_uri is.
_LONGEST_SECONDS = 3600
_SKEW_SECONDS = 300


class OAuthServer(LoopbackServer):
    """Serve `POST /token`, from construction until `close`; a context manager.

    The operation of its `faults` and `requests` is "token". The claims' signature is not checked.

    Args:
        email: The service account's email.
        project: The project in its key.
        expires_in_seconds: The lifetime of a token.
        clock: Returns the time in seconds since the epoch.

    Attributes:
        tokens: Every access token issued. Remove one to revoke it: a server that compares tokens with this set then
            rejects it.
        scopes: The scopes of each issued token, oldest first.
    """

    def __init__(
        self,
        *,
        email: str = "tester@test-project.iam.gserviceaccount.com",
        project: str = "test-project",
        expires_in_seconds: int = 3600,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.email = email
        self.project = project
        self.expires_in_seconds = expires_in_seconds
        self.tokens: set[str] = set()
        self.scopes: list[list[str]] = []
        super().__init__(clock=clock)

    @property
    def token_url(self) -> str:
        """The URL of the token endpoint: the key's `token_uri`."""
        return f"{self.url}/token"

    def key(self) -> dict[str, str]:
        """Return a key of the service account that names this server as its token endpoint.

        Raises:
            ImportError: cryptography is not installed.
        """
        return {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": "1",
            "private_key": _private_key(),
            "client_email": self.email,
            "client_id": "1",
            "token_uri": self.token_url,
        }

    def write_key(self, path: str | os.PathLike[str]) -> Path:
        """Write the key to a file for `GOOGLE_APPLICATION_CREDENTIALS`; return its path."""
        file = Path(path)
        file.write_text(json.dumps(self.key()), encoding="utf-8")
        file.chmod(0o600)
        return file

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request."""
        return "token" if (method, path) == ("POST", "/token") else "other"

    def handle(self, request: Request) -> Response:
        """Issue a token, or reject the claims with a reason."""
        if self.operation(request.method, request.path) == "other":
            return _refusal(404, "not_found", f"there is no {request.method} {request.path}")
        form = dict(urllib.parse.parse_qsl(request.body.decode("utf-8", "replace")))
        if form.get("grant_type") != _GRANT:
            return _refusal(400, "unsupported_grant_type", f"Invalid grant_type: {form.get('grant_type')}")
        try:
            claims = _claims(form.get("assertion", ""))
        except (ValueError, KeyError, TypeError) as error:
            return _refusal(400, "invalid_grant", f"Invalid JWT: {error}")
        if claims.get("iss") != self.email:
            return _refusal(400, "invalid_grant", "Invalid grant: account not found")
        if claims.get("aud") not in (_AUDIENCE, self.token_url):
            return _refusal(400, "invalid_grant", "Invalid JWT: Failed audience check")
        if not _is_current(claims, request.time):
            return _refusal(
                400,
                "invalid_grant",
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.",
            )
        scopes = str(claims.get("scope") or "").split()
        if not scopes:
            return _refusal(400, "invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        token = f"token-{secrets.token_urlsafe(16)}"
        self.tokens.add(token)
        self.scopes.append(scopes)
        return json_response(
            {"access_token": token, "expires_in": self.expires_in_seconds, "token_type": "Bearer"},
        )


def _claims(assertion: str) -> dict[str, Any]:
    _, payload, _ = assertion.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if not isinstance(claims, dict):
        raise ValueError(f"expected claims as a JSON object, got {type(claims).__name__}")
    return claims


def _is_current(claims: dict[str, Any], now: float) -> bool:
    issued, expires = claims.get("iat"), claims.get("exp")
    if not isinstance(issued, int | float) or not isinstance(expires, int | float):
        return False
    return issued - _SKEW_SECONDS <= now <= expires + _SKEW_SECONDS and expires - issued <= _LONGEST_SECONDS


def _refusal(status: int, error: str, description: str) -> Response:
    return json_response({"error": error, "error_description": description}, status)


@functools.cache
def _private_key() -> str:
    """Generate a private key, once per process. It gives access to nothing."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
