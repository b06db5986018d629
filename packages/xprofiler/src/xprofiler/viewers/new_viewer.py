"""A viewer that is to be: what `xprofiler create` asks of it, on Compute and on GKE alike."""

from __future__ import annotations

from typing import Protocol

from xprofiler.viewers.viewer import Sought

__all__ = ["NewViewer"]


class NewViewer(Protocol):
    """One viewer, from its name to its link; or back to nothing, at whatever stage.

    Attributes:
        noun: What it is: "VM", "Pod".
        name: Its name.
        zone: Where it is, or is said to be.
        others: How those that show the same are found.
        may_exist: Whether it was asked for, and was not refused.
        way_to_delete: The command that deletes it.
    """

    noun: str
    name: str
    zone: str
    others: Sought
    may_exist: bool
    way_to_delete: str

    def recipe(self) -> str:
        """Return what would make the same: a command, or what one is given. Nothing is made."""
        ...

    def check(self) -> None:
        """Proves that it can be made, as far as that can be known before.

        Raises:
            XprofilerError: It cannot, or its name is taken.
        """
        ...

    def make(self) -> str:
        """Make it, waits until XProf answers there, and return how it is reached, for people.

        Raises:
            DiagnosticsError: It was not made, or does not answer; `may_exist` says whether to `remove` it.
        """
        ...

    def remove(self) -> Exception | None:
        """Delete what was made, whatever has become of it, and nothing of anybody else.

        Returns:
            Why it may still be there, or None when it is gone.
        """
        ...
