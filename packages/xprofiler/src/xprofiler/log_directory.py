"""A log directory: where profiles are kept, `gs://bucket/path` or a folder of this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_common.payload import decoded

from xprofiler.exceptions import UsageError

__all__ = ["LogDirectory"]

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")
_UNUSABLE: Final = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029\ud800-\udfff]")
_LONGEST_KEY_BYTES: Final = 1024 - 200  # An object's name has 1024; the session and the host come after the path.
_ADVISED_LENGTH: Final = 64


@dataclass(frozen=True)
class LogDirectory:
    """Where profiles are kept.

    Attributes:
        path: `gs://bucket/path` or a path of this machine, without a slash at its end.
        bucket: The bucket's name; empty for a path of this machine.
        key: The path within the bucket, maybe empty; the whole of a path of this machine.
    """

    path: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str, *, may_be_local: bool = False) -> LogDirectory:
        """Reads what was typed. A slash at the end is optional.

        Args:
            text: The path.
            may_be_local: Whether a path of this machine makes sense, too.

        Raises:
            UsageError: It is not such a path, or one that no storage can have.
        """
        if text.startswith("gs:"):
            text = decoded(text)
        if _UNUSABLE.search(decoded(text)):
            raise UsageError(f"log directory {text!r}: no storage takes line breaks or control characters; rename it")
        path = text.rstrip("/")
        if not path.startswith("gs:"):
            return cls._local(text, path, may_be_local)
        bucket, _, key = path.removeprefix("gs://").partition("/")
        if not path.startswith("gs://") or not _BUCKET.fullmatch(bucket):
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
        """Whether it is in Cloud Storage."""
        return bool(self.bucket)

    @property
    def tensorboard(self) -> str:
        """The folder that a viewer is given, `<L>/tensorboard`; L itself, where it ends so already."""
        return self.path if self.path.rpartition("/")[2] == "tensorboard" else self.child("tensorboard")

    @property
    def capture_root(self) -> str:
        """The folder of sessions, `<L>/tensorboard/plugins/profile`: what a ProfilerService is told to write to."""
        return f"{self.tensorboard}/plugins/profile"

    @property
    def profile_roots(self) -> tuple[str, ...]:
        """The folders in which readers look for sessions: that of captures, and that of programs."""
        return tuple(dict.fromkeys((self.capture_root, self.child("plugins/profile"))))

    @property
    def note(self) -> str | None:
        """What the README advises against and this path does; None where it is as advised."""
        long = len(self.path) > _ADVISED_LENGTH
        if not self.is_in_cloud or not (long or self.path != self.path.lower()):
            return None
        return (
            f"note: {self.path} {'is longer than 64 characters' if long else 'has upper case'}; older releases of "
            "xprofiler take only paths of at most 64 characters in lower case"
        )

    def child(self, name: str) -> str:
        """A path below."""
        return f"{self.path.rstrip('/')}/{name}"

    def __str__(self) -> str:
        return self.path
