"""Where a target writes its file: straight to where it belongs, or first where we can fetch it from."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from xprofiler.capture.session import Session
from xprofiler.capture.targets import Target, is_this_machine

__all__ = ["Place", "places_of"]


@dataclass(frozen=True)
class Place:
    """Where a target writes.

    Attributes:
        root: The folder of sessions that it is told.
        is_final: Whether its file belongs there; else it is brought from there.
    """

    root: str
    is_final: bool


def places_of(target: Target, session: Session, staging: str) -> tuple[Place, Place]:
    """Returns where a target writes, and where it does when that has failed.

    A job writes to a bucket itself, by its own service account, as long as it can. What we have a way to can write
    into a folder of its own machine instead. Nobody but this machine can write to a folder of it.

    Args:
        target: The target.
        session: Where the files belong.
        staging: A folder for this capture alone: of this machine, for a target on it; else of the target's.
    """
    final, staged = Place(session.root, True), Place(posixpath.join(staging, "profile"), False)
    is_in_cloud = session.root.startswith("gs://")
    if target.access is not None:
        return (final, staged) if is_in_cloud else (staged, staged)
    if is_in_cloud and is_this_machine(target.address):
        return (staged, staged)
    return (final, final)
