"""The interface of a viewer to create, on Compute and on GKE."""

from __future__ import annotations

from typing import Protocol

from xprofiler.viewers.viewer import Sought

__all__ = ["NewViewer"]


class NewViewer(Protocol):
    """A viewer to create. Its creation can be undone at every stage.

    Attributes:
        noun: Its kind for messages: "VM", "Pod".
        name: Its name.
        zone: Its zone; on GKE, a label.
        others: The search for existing viewers of the same log directory.
        may_exist: True if its creation was requested and not rejected.
        delete_command: The command that deletes it.
    """

    noun: str
    name: str
    zone: str
    others: Sought
    may_exist: bool
    delete_command: str

    def recipe(self) -> str:
        """Return an equivalent command, or its input, without creating anything."""
        ...

    def check(self) -> None:
        """Check the preconditions of its creation.

        Raises:
            CommandError: It cannot be created, or its name is in use.
        """
        ...

    def make(self) -> str:
        """Create it, wait until XProf answers, and return how to connect, for the user.

        Raises:
            DiagnosticsError: It was not created, or does not answer. If `may_exist`, call `remove`.
        """
        ...

    def remove(self) -> Exception | None:
        """Delete what was created, in whatever state, and nothing else.

        Returns:
            The reason why it may still exist; None if it is gone.
        """
        ...
