"""A log directory, which holds profiles: `gs://bucket/path` or a local folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_common.command.errors import UsageError
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.payload import decoded

__all__ = ["XPLANE_SUFFIX", "LogDirectory"]

XPLANE_SUFFIX: Final = ".xplane.pb"
"""The end of the name of a host's file; the host's name precedes it."""

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")
_UNUSABLE: Final = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029\ud800-\udfff]")
_LONGEST_KEY_BYTES: Final = 1024 - 200  # The limit of object names is 1024; the session and the host follow the path.
_ADVISED_LENGTH: Final = 64


@dataclass(frozen=True)
class LogDirectory:
    """A folder that holds profiles.

    Attributes:
        path: `gs://bucket/path` or a local path, without a trailing slash.
        bucket: The bucket's name; empty for a local path.
        key: The path within the bucket, which may be empty; the whole path if it is local.
    """

    path: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str, *, may_be_local: bool = False) -> LogDirectory:
        """Parse a path. A trailing slash is optional.

        Args:
            text: The path.
            may_be_local: True to accept local paths.

        Raises:
            UsageError: The path is not of this form, or not valid in storage.
        """
        if text.startswith("gs:"):
            text = decoded(text)
        if _UNUSABLE.search(decoded(text)):
            raise UsageError(
                f"log directory {text!r}: storage does not accept line breaks or control characters; rename it"
            )
        path = text.rstrip("/")
        if not path.startswith("gs:"):
            return cls._local(text, path, may_be_local)
        bucket, _, key = path.removeprefix("gs://").partition("/")
        if not in_bucket(path) or not _BUCKET.fullmatch(bucket):
            raise UsageError(
                f"log directory {text!r} names no bucket: give gs://bucket/path, the bucket of letters, digits, "
                "dots, dashes and underscores"
            )
        if key and any(part in ("", ".", "..") for part in key.split("/")):
            raise UsageError(f"log directory {text!r} has an empty folder, or one called . or ..: leave that out")
        if len(key.encode()) > _LONGEST_KEY_BYTES:
            raise UsageError(f"log directory {text[:80]!r}...: longer than storage allows; give a shorter one")
        return cls(path, bucket, key)

    @classmethod
    def _local(cls, text: str, path: str, may_be_local: bool) -> LogDirectory:
        if not may_be_local or not text or "://" in text:
            raise UsageError(
                f"log directory {text!r} does not start with gs://: "
                f"give gs://bucket/path{', or a folder of this machine' if may_be_local else ''}"
            )
        return cls(path or "/", "", path or "/")

    @property
    def is_in_cloud(self) -> bool:
        """True if it is in Cloud Storage."""
        return bool(self.bucket)

    @property
    def tensorboard(self) -> str:
        """The folder to open in a viewer, `<L>/tensorboard`; L itself if it already ends with that."""
        return self.path if self.path.rpartition("/")[2] == "tensorboard" else self.child("tensorboard")

    @property
    def capture_root(self) -> str:
        """The folder of sessions, `<L>/tensorboard/plugins/profile`: the target of captures."""
        return f"{self.tensorboard}/plugins/profile"

    @property
    def note(self) -> str | None:
        """A note if the path breaks the README's advice; None otherwise."""
        long = len(self.path) > _ADVISED_LENGTH
        if not self.is_in_cloud or not (long or self.path != self.path.lower()):
            return None
        return (
            f"note: {self.path} {'is longer than 64 characters' if long else 'has upper case'}; older releases of "
            "xprofiler take only paths of at most 64 characters in lower case"
        )

    def child(self, name: str) -> str:
        """Return the path of a child."""
        return f"{self.path.rstrip('/')}/{name}"

    def __str__(self) -> str:
        return self.path
