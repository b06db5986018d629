"""C8: a file system was full, did not answer, or may not be written to."""

from __future__ import annotations

import errno
import shlex
from typing import Any, Final

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_bytes

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import Cause, disk_failure
from ml_diagnostics_console._rules.crashes import command, crash, error_of, logs_around
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console.verdict import Blame, NextCommand, Ref

__all__ = ["RULE"]

_FULL_BYTES: Final = 64 * 2**20
_FULL: Final = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", 122)})
_OF_MACHINE: Final = frozenset({errno.EIO, errno.EROFS})
_WHATS: Final = {
    errno.EIO: "could not read or write its disk",
    errno.EROFS: "could not write: the file system is read-only,",
    errno.EFBIG: "could not write: the file is larger than the limit for files,",
    errno.EACCES: "was refused access",
    errno.EPERM: "was refused access",
}


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a failure of a file system."""
    lead = lead_of(facts)
    if lead is None or lead.cause is not Cause.DISK:
        return None
    process = lead.process
    failure = disk_failure(process)
    if failure is None:
        return None
    path = failure.path
    system = _file_system(process, path)
    is_elsewhere = not path and _free_bytes(system) > _FULL_BYTES and (system or {}).get("free_inodes") != 0
    location = path if path or is_elsewhere else str((system or {}).get("path") or "")
    is_full = failure.number in _FULL
    what = "ran out of disk space" if is_full else _WHATS.get(failure.number, "failed at a file")
    if failure.number == getattr(errno, "EDQUOT", 122):
        what = "used up its disk quota"
    after = f", at {location}" if location else ""
    after += f": {error_of(process)}"
    if is_full and is_elsewhere:
        after += _not_there(process)
    elif is_full:
        after += _free(system)
    refs: tuple[Ref, ...] = process.end_refs[:1]
    folder = shlex.quote(path.rpartition("/")[0] or "/") if path else shlex.quote(location) if location else ""
    host = shlex.quote(process.host)
    commands: list[NextCommand] = []
    if is_full:
        commands.append(command(facts, f"mldiagnostics ssh RUN {host} -- df -h {folder}".rstrip(), "see what is full"))
    elif failure.number in _OF_MACHINE:
        commands.append(command(facts, f"mldiagnostics ssh RUN {host} -- dmesg", "read what the kernel reports"))
    else:
        commands.append(
            command(facts, f"mldiagnostics ssh RUN {host} -- ls -ld {folder or '.'}", "see its owner and mode")
        )
    return crash(
        facts,
        lead,
        "C8",
        what,
        after=after,
        blame=Blame.SYSTEM if failure.number in _OF_MACHINE else Blame.USER,
        confidence=Confidence.PROVEN,
        refs=refs,
        commands=[*commands, logs_around(facts, process)],
    )


def _file_system(process: ProcessFacts, path: str) -> dict[str, Any] | None:
    """Return what is known of the file system of a path: the fullest of all, if no path is known."""
    known = [dict(each) for each in process.file_systems if isinstance(each, dict) or hasattr(each, "keys")]
    if path:
        matching = [each for each in known if path.startswith(str(each.get("path") or "\0"))]
        known = matching or known
    return min(known, key=_free_bytes, default=None)


def _free_bytes(system: dict[str, Any] | None) -> float:
    free = system.get("free_bytes") if system is not None else None
    return float(free) if isinstance(free, (int, float)) else float("inf")


def _not_there(process: ProcessFacts) -> str:
    """Return the file systems that have space, where the error names no file: it is another one."""
    known = [
        f"{system['path']} ({format_bytes(system['free_bytes'])} free)"
        for system in process.file_systems
        if isinstance(system.get("free_bytes"), int) and isinstance(system.get("path"), str)
    ]
    return f"; it names no file, and is not about {' or '.join(known[:2])}" if known else ""


def _free(system: dict[str, Any] | None) -> str:
    """Return how much is free there."""
    if system is None:
        return ""
    free, total, inodes = system.get("free_bytes"), system.get("total_bytes"), system.get("free_inodes")
    if inodes == 0 and _free_bytes(system) > _FULL_BYTES:
        return "; no more files can be created there: all inodes are used"
    if not isinstance(free, int) or not isinstance(total, int):
        return ""
    if free > _FULL_BYTES:
        return f"; {format_bytes(free)} of {format_bytes(total)} were free afterwards: a quota, or files were removed"
    return f"; {format_bytes(free)} of {format_bytes(total)} were free"


RULE = Rule(
    id="C8",
    title="a disk was full, failed, or refused access",
    needs=(
        "the exception with its number and path: `with diagnose(...)` or machinelearning_run",
        "the free space of its file system: the same",
    ),
    judge=_judge,
    thresholds=(
        Threshold(
            "free space of a full disk, at most", format_bytes(_FULL_BYTES), "less than one write of a checkpoint"
        ),
    ),
    example="host host-1 ran out of disk space at step 400 (16:02:11 UTC), at /ckpt/400/state: OSError: [Errno 28] No "
    "space left on device; 0 B of 1.00 TB were free; the 3 others failed because of it",
    replaces=("C1", "U0"),
)
