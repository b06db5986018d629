"""OS Login: the users of VMs and their ssh keys.

Format: https://cloud.google.com/compute/docs/oslogin/rest/v1/users
"""

from __future__ import annotations

import hashlib
import re
import threading
from typing import Any

from ml_diagnostics_testing.http_server import ApiError, Request

from .routes import Parts, Route, route

Resource = dict[str, Any]

_USER = "/{version}/users/{user}"
_KEY = re.compile(r"(ssh-(rsa|ed25519|dss)|ecdsa-sha2-nistp\d+) [A-Za-z0-9+/]+={0,3}( [^\n]*)?\n?")


class OsLogin:
    """Serve the login profiles of all users.

    Args:
        project: The project of the VMs.

    Attributes:
        keys: The imported keys, by the email of their user.
    """

    def __init__(self, project: str) -> None:
        self.keys: dict[str, list[str]] = {}
        self._project = project
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        """Return the routes of its requests."""
        return [
            route("os_login", "GET", f"{_USER}/loginProfile", self._profile),
            route("import_key", "POST", f"{_USER}:importSshPublicKey", self._import),
        ]

    def _profile(self, request: Request, parts: Parts) -> Resource:
        return self._shown(parts["user"])

    def _import(self, request: Request, parts: Parts) -> Resource:
        key = str(request.json().get("key", ""))
        if not _KEY.fullmatch(key):
            raise ApiError(400, "Invalid SSH public key.", reason="badRequest")
        with self._lock:
            kept = self.keys.setdefault(parts["user"], [])
            if key not in kept:
                kept.append(key)
        return {"loginProfile": self._shown(parts["user"])}

    def _shown(self, user: str) -> Resource:
        name = re.sub(r"\W", "_", user)
        with self._lock:
            keys = list(self.keys.get(user, ()))
        account = {
            "primary": True,
            "username": name,
            "uid": "1001",
            "gid": "1001",
            "homeDirectory": f"/home/{name}",
            "operatingSystemType": "LINUX",
            "accountId": self._project,
            "name": f"users/{user}/projects/{self._project}",
        }
        shown = {}
        for key in keys:
            fingerprint = hashlib.sha256(key.encode()).hexdigest()
            path = f"users/{user}/sshPublicKeys/{fingerprint}"
            shown[fingerprint] = {"key": key, "fingerprint": fingerprint, "name": path}
        return {"name": user, "posixAccounts": [account], **({"sshPublicKeys": shown} if shown else {})}
