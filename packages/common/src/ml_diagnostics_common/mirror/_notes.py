"""Notes on how far each writer's journal is in the mirror: small files beside the journal.

    $ML_DIAGNOSTICS_DIR/state/mirror/<log>/<writer>.json    private
    $ML_DIAGNOSTICS_DIR/state/mirror/<log>/<writer>.lock    held by the process that mirrors the writer

It is written after the object that it describes. If a process is killed between the two, the list of the writer's
objects has the truth; also if a power cut leaves an earlier note or none, so that a trainer's disk is not made to write
each of them at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ml_diagnostics_common.files import read_state, write_state
from ml_diagnostics_common.journal import JournalPosition

__all__ = ["MirrorNote", "journal_folders", "lock_path", "notes_folder", "read_note", "write_note"]


class MirrorNote(NamedTuple):
    """How far a writer's journal is in a mirror.

    Attributes:
        mirror: The mirror's path: in another mirror, nothing is known of the writer.
        position: The position in its journal behind what is in the mirror.
        last: The greatest sequence number in the mirror; 0 for none.
        day: The day of its last object; empty for none.
        written_ns: When the last object was written, in ns since 1970.
        has_ended: True once the mirror has the object that it has ended.
        is_rolled_up: True once its objects are those of hours, after its end.
    """

    mirror: str
    position: JournalPosition = JournalPosition(0, 0)
    last: int = 0
    day: str = ""
    written_ns: int = 0
    has_ended: bool = False
    is_rolled_up: bool = False


def journal_folders(root: Path) -> list[Path]:
    """Return the folders of all logs in the journal of a diagnostics folder, by name; none without a journal."""
    try:
        return sorted(path for path in (root / "journal").iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def notes_folder(root: Path, folder_name: str) -> Path:
    """Return the folder of the notes on a log's writers.

    Args:
        root: The diagnostics folder.
        folder_name: The name of the log's folder.
    """
    return root / "state" / "mirror" / folder_name


def lock_path(root: Path, folder_name: str, writer: str) -> Path:
    """Return the path of the lock on a writer."""
    return notes_folder(root, folder_name) / f"{writer}.lock"


def read_note(root: Path, folder_name: str, writer: str, mirror: str) -> MirrorNote | None:
    """Return the note on a writer; None if there is none, or it is on another mirror."""
    state = read_state(notes_folder(root, folder_name) / f"{writer}.json")
    if state is None or state.get("mirror") != mirror:
        return None
    return MirrorNote(
        mirror,
        JournalPosition(_natural(state.get("segment")), _natural(state.get("offset"))),
        _natural(state.get("last")),
        str(state.get("day") or ""),
        _natural(state.get("written_ns")),
        state.get("has_ended") is True,
        state.get("is_rolled_up") is True,
    )


def write_note(root: Path, folder_name: str, writer: str, note: MirrorNote) -> None:
    """Replace the note on a writer; raises OSError."""
    state: dict[str, Any] = {
        "mirror": note.mirror,
        "segment": note.position.segment,
        "offset": note.position.offset,
        "last": note.last,
        "day": note.day,
        "written_ns": note.written_ns,
        "has_ended": note.has_ended,
        "is_rolled_up": note.is_rolled_up,
    }
    write_state(notes_folder(root, folder_name) / f"{writer}.json", state, survives_power_cut=False)


def _natural(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
