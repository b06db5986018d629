"""A session: the folder with the files of one capture, `<root>/<session>/<host>.xplane.pb`."""

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
        root: The folder of sessions, which XProf and TensorBoard search.
        name: The session's name.
    """

    root: str
    name: str

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return f"{self.root}/{self.name}"

    def path_of(self, file_name: str) -> str:
        """Return the path of a host's file.

        Args:
            file_name: The name of the file, without `.xplane.pb`.
        """
        return f"{self.folder}/{file_name}{SUFFIX}"

    def below(self, root: str) -> Session:
        """Return the same session below another root, for staging."""
        return Session(root, self.name)


def unused_name(moment: time.struct_time, is_used: Callable[[str], bool]) -> str:
    """Return an unused session name. The later of two captures in one second gets the suffix `_2`.

    Args:
        moment: Now, in local time.
        is_used: Return True if a session of that name exists; may also reserve the name.
    """
    plain = time.strftime(_NAME, moment)
    name, number = plain, 1
    while is_used(name):
        number += 1
        name = f"{plain}_{number}"
    return name
