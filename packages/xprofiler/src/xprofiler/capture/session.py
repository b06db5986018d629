"""A session: the folder that the files of one capture share, `<root>/<session>/<host>.xplane.pb`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["SUFFIX", "Session", "unused_name"]

SUFFIX: Final = ".xplane.pb"
_NAME: Final = "session_%Y_%m_%d_%H_%M_%S"


@dataclass(frozen=True)
class Session:
    """One capture.

    Attributes:
        root: The folder of sessions, in which XProf and TensorBoard look for them.
        name: The session's.
    """

    root: str
    name: str

    @property
    def folder(self) -> str:
        """Where its files are."""
        return f"{self.root}/{self.name}"

    def path_of(self, file_name: str) -> str:
        """Where a host's file is.

        Args:
            file_name: What it is called, without `.xplane.pb`.
        """
        return f"{self.folder}/{file_name}{SUFFIX}"

    def below(self, root: str) -> Session:
        """The same session, written elsewhere first."""
        return Session(root, self.name)


def unused_name(moment: time.struct_time, is_used: Callable[[str], bool]) -> str:
    """Returns the name of a session that nobody has: of two captures in one second, the later one has `_2` after it.

    Args:
        moment: Now, in local time.
        is_used: Whether there is a session of that name; may also take the name.
    """
    plain = time.strftime(_NAME, moment)
    name, number = plain, 1
    while is_used(name):
        number += 1
        name = f"{plain}_{number}"
    return name
