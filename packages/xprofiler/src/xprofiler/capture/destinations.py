"""The destination of a target's file: the session itself, or a folder from which we fetch it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from xprofiler.capture.session import Session
from xprofiler.capture.targets import Target, is_this_machine

__all__ = ["Destination", "destinations_of"]


@dataclass(frozen=True)
class Destination:
    """A folder that a target writes to.

    Attributes:
        root: The folder of sessions in the target's request.
        is_final: True if the file stays there; otherwise it is fetched from there.
    """

    root: str
    is_final: bool


def destinations_of(target: Target, session: Session, staging: str) -> tuple[Destination, Destination]:
    """Return the destination of a target, and the one to use if that fails.

    A job writes to a bucket itself, with its own service account, if it can. If we can run programs on its machine, it
    writes into a folder there instead. A folder of this machine can only be written from this machine.

    Args:
        target: The target.
        session: The session of the capture.
        staging: A folder for this capture alone: on this machine for a local target, otherwise on the target's machine.
    """
    final, staged = Destination(session.root, True), Destination(posixpath.join(staging, "profile"), False)
    is_in_cloud = session.root.startswith("gs://")
    if target.access is not None:
        return (final, staged) if is_in_cloud else (staged, staged)
    if is_in_cloud and is_this_machine(target.address):
        return (staged, staged)
    return (final, final)
