"""Credentials of one access token in a file, which another program renews. Imports google.auth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import google.auth.credentials
import google.auth.exceptions

__all__ = ["AccessTokenFileCredentials"]


class AccessTokenFileCredentials(google.auth.credentials.Credentials):
    """Like gcloud's `CLOUDSDK_AUTH_ACCESS_TOKEN_FILE`: the file holds a bearer token, and nothing else.

    The file is read again when it has changed, and when the server answers 401.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the token.

        Args:
            path: The file.

        Raises:
            google.auth.exceptions.RefreshError: It cannot be read, or holds no token.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._path = Path(path)
        self._read_as: tuple[int, int, int] | None = None
        self.refresh(None)

    def refresh(self, request: Any) -> None:
        """Read the file.

        Args:
            request: Not used.

        Raises:
            google.auth.exceptions.RefreshError: It cannot be read, or holds no token.
        """
        try:
            seen = self._state()
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise google.auth.exceptions.RefreshError(
                f"cannot read the access token in {self._path}: {error}"
            ) from error
        if not token or any(character.isspace() for character in token):
            raise google.auth.exceptions.RefreshError(f"{self._path} does not hold one access token")
        self.token, self._read_as = token, seen

    def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
        """Read the file again if it has changed, and add the token to the headers."""
        if self._changed():
            self.refresh(request)
        super().before_request(request, method, url, headers)  # type: ignore[no-untyped-call]

    def _changed(self) -> bool:
        try:
            return self._state() != self._read_as
        except OSError:
            return False  # It is being replaced: the known token may still be valid.

    def _state(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
