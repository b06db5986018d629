"""The revision of a checkout, read from its files: no program is run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["git_revision"]

_REVISION: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_BYTES: Final = 4 << 20
"""Of a file of packed references."""


def git_revision(places: Iterable[Path]) -> dict[str, str]:
    """Which revision is checked out.

    Args:
        places: Folders; the first that is in a checkout counts.

    Returns:
        git_revision, and git_branch unless the head is detached; empty where no folder is in a checkout, or where it
        keeps its references otherwise than in files (reftable). Never raises.
    """
    for place in places:
        for folder in (place, *place.parents):
            try:
                found = _read(folder / ".git")
            except (OSError, ValueError):
                continue
            if found:
                return found
    return {}


def _read(dot_git: Path) -> dict[str, str]:
    """See gitrepository-layout(5).

    Raises:
        OSError: There is none, or it cannot be read.
        ValueError: It is not what git writes.
    """
    git = dot_git
    if dot_git.is_file():  # A worktree or a submodule: a line tells where the rest is.
        git = (dot_git.parent / _text(dot_git).removeprefix("gitdir: ")).resolve()
    head = _text(git / "HEAD")
    if _REVISION.fullmatch(head):
        return {"git_revision": head}
    reference = head.removeprefix("ref: ")
    if reference == head or ".." in reference or not reference.startswith("refs/"):
        return {}
    common = git
    if (git / "commondir").is_file():
        common = (git / _text(git / "commondir")).resolve()
    revision = _resolve(common, reference)
    if revision is None:
        return {}
    return {"git_revision": revision, "git_branch": reference.removeprefix("refs/heads/")[:256]}


def _resolve(common: Path, reference: str) -> str | None:
    try:
        revision = _text(common / reference)
        return revision if _REVISION.fullmatch(revision) else None
    except OSError:
        pass
    if not (common / "packed-refs").is_file():
        return None
    with (common / "packed-refs").open(encoding="utf-8", errors="replace") as packed:
        for line in packed.read(_MAX_BYTES).splitlines():
            revision, _, name = line.partition(" ")
            if name == reference and _REVISION.fullmatch(revision):
                return revision
    return None


def _text(path: Path) -> str:
    if not path.is_file():  # To open a named pipe would wait for its other end.
        raise FileNotFoundError(path)
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(4096).strip()
