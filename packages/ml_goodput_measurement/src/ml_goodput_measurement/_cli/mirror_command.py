"""`goodput mirror`: how far the mirror of a folder is, what ended processes left, and rules for the bucket."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.command.console import RED
from ml_diagnostics_common.command.errors import DONE, FAILED, NotFoundError, UsageError
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, StorageError

from ml_goodput_measurement._cli.source_options import add_mirror_option

if TYPE_CHECKING:
    from pathlib import Path

    from ml_diagnostics_common.command.console import Console
    from ml_diagnostics_common.mirror.status import WriterStatus

__all__ = ["MirrorCommand"]

_STATUS_FIELDS = (
    "log", "job", "writer", "state", "entries_to", "behind_bytes", "behind_seconds", "has_end", "missing_entries"
)  # fmt: skip
_PUSH_FIELDS = ("log", "writer", "entries", "has_end")

Gaps = Sequence[tuple[int, int]]


class MirrorCommand:
    """Shows and completes the mirror of a diagnostics folder."""

    name = "mirror"
    summary = "show how far a mirror is, complete it, or print lifecycle rules for its bucket"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "action",
            metavar="ACTION",
            choices=("status", "push", "lifecycle"),
            help="status: how far each process of DIR is in the mirror; push: write what it lacks, such as what killed "
            "processes left; lifecycle: print the rules for `gcloud storage buckets update --lifecycle-file`",
        )
        parser.add_argument(
            "folder",
            metavar="DIR",
            nargs="?",
            help="the diagnostics folder (default: ML_DIAGNOSTICS_DIR); of lifecycle: the mirror",
        )
        add_mirror_option(parser, "the mirror")
        parser.add_argument(
            "--strict", action="store_true", help="of status: exit with 1 if the mirror lacks something, or an end"
        )
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run the action."""
        if options.strict and options.action != "status":
            raise UsageError("--strict is an option of `goodput mirror status`")
        if options.action == "lifecycle":
            return _lifecycle(options, console)
        root, mirror = _root(options.folder), _mirror(options.mirror)
        if options.action == "push":
            return _push(root, mirror, options, console)
        return _status(root, mirror, options, console)


class _Row(NamedTuple):
    """One writer: as the journal knows it, and as the mirror's list shows it."""

    status: WriterStatus
    gaps: Gaps | None
    """None if the mirror cannot be listed."""
    behind_seconds: float
    """The time since the last object was written, if there are entries since then; else 0."""

    @property
    def is_complete(self) -> bool:
        return not self.status.behind_bytes and not self.gaps and (self.status.has_ended or self.status.is_running)

    @property
    def state(self) -> str:
        if self.status.is_running:
            return "running"
        if self.status.has_ended:
            return "ended"
        return "not pushed" if self.status.behind_bytes else "no end"

    def as_dict(self) -> dict[str, Any]:
        return {
            "log": self.status.log,
            "job": self.status.labels.get("job"),
            "writer": self.status.writer,
            "state": self.state,
            "entries_to": self.status.last or None,
            "behind_bytes": self.status.behind_bytes,
            "behind_seconds": self.behind_seconds,
            "has_end": self.status.has_ended,
            "gaps": None if self.gaps is None else [list(gap) for gap in self.gaps],
            "missing_entries": None if self.gaps is None else _entries_in(self.gaps),
        }


def _status(root: Path, mirror: str, options: argparse.Namespace, console: Console) -> int:
    """Print how far each writer is."""
    import time

    from ml_diagnostics_common.command.formats import format_data, format_table
    from ml_diagnostics_common.mirror.status import status
    from ml_diagnostics_common.texts import format_bytes, format_count, format_duration

    found = status(root, mirror)
    gaps = _gaps_of(found, mirror, console)
    now_ns = time.time_ns()
    rows = [
        _Row(
            writer,
            None if gaps is None else gaps.get((writer.log, writer.writer), []),
            (now_ns - writer.written_ns) / 1e9 if writer.behind_bytes and writer.written_ns else 0.0,
        )
        for writer in found
    ]
    lacking = [row for row in rows if not row.is_complete]
    if options.format != "table":
        data = [row.as_dict() for row in rows]
        document = {"mirror": mirror, "is_complete": not lacking, "writers": data}
        console.data(format_data(document, options.format, data, _STATUS_FIELDS))
    elif rows:
        cells = [
            (
                row.status.labels.get("job") or "-",
                row.status.writer,
                row.state,
                format_bytes(row.status.behind_bytes) if row.status.behind_bytes else "-",
                format_duration(row.behind_seconds) if row.behind_seconds else "-",
                "?" if row.gaps is None else f"{_entries_in(row.gaps):,}" if row.gaps else "-",
            )
            for row in rows
        ]
        headers = ("job", "writer", "state", "behind", "since", "missing")
        table = format_table(headers, cells, "<<<>>>", width=console.width, cut=["job"])
        summary = "complete" if not lacking else f"{format_count(len(lacking), 'process', 'processes')} not complete"
        console.data(
            "\n".join([*table, "", f"mirror {mirror}: {summary}"]), styles={r"not (pushed|complete)|no end": RED}
        )
    else:
        console.notify(f"nothing was recorded in {root}")
    return FAILED if options.strict and lacking else DONE


def _gaps_of(found: Sequence[WriterStatus], mirror: str, console: Console) -> Mapping[tuple[str, str], Gaps] | None:
    """Return the sequence numbers that are in no object, by log and writer; None if the mirror cannot be listed."""
    from ml_diagnostics_common.mirror._bucket import Bucket
    from ml_diagnostics_common.mirror.contents import listed_writers

    bucket = Bucket(mirror)
    try:
        bucket.check_layout()
        return {
            (log, writer.writer): writer.gaps
            for log in sorted({status.log for status in found})
            for writer in listed_writers(bucket, bucket.log(log))
        }
    except (StorageError, CredentialsError) as error:
        from ml_diagnostics_common.mirror.segments import NewerFormatError

        if isinstance(error, NewerFormatError):
            raise
        console.warn(f"what is missing in the mirror is not known: {error}")
        return None


def _entries_in(gaps: Gaps) -> int:
    return sum(last - first + 1 for first, last in gaps)


def _push(root: Path, mirror: str, options: argparse.Namespace, console: Console) -> int:
    """Write what the mirror lacks."""
    from ml_diagnostics_common.command.formats import format_data, format_table
    from ml_diagnostics_common.mirror.rest import push

    pushed, left_out, unreadable = [], [], []

    def note_left_out(writer: str, error: OSError | None) -> None:
        left_out.append(writer)
        if error is None:
            console.notify(f"{writer}: left out, because another process writes it to the mirror")
        else:
            unreadable.append(writer)
            console.warn(f"{writer} cannot be read, and is left out: {error}")

    for writer in push(root, mirror, on_left_out=note_left_out):
        console.notify(f"{writer.writer}: {writer.entries:,} entries")
        pushed.append(writer)
    rows = [
        {"log": writer.log, "writer": writer.writer, "entries": writer.entries, "has_end": writer.has_ended}
        for writer in pushed
    ]
    if options.format != "table":
        console.data(format_data({"mirror": mirror, "writers": rows}, options.format, rows, _PUSH_FIELDS))
    elif pushed:
        cells = [
            (writer.log, writer.writer, f"{writer.entries:,}", "ended" if writer.has_ended else "may go on")
            for writer in pushed
        ]
        headers = ("log", "writer", "entries", "state")
        console.data("\n".join(format_table(headers, cells, "<<><", width=console.width, cut=["log"])))
    elif not left_out:
        console.notify(f"the mirror {mirror} lacks nothing of {root}")
    return FAILED if unreadable else DONE


def _lifecycle(options: argparse.Namespace, console: Console) -> int:
    """Print the rules."""
    import json

    from ml_diagnostics_common.mirror.rest import lifecycle

    if options.format not in ("table", "json"):
        raise UsageError("lifecycle prints JSON")
    console.data(json.dumps(lifecycle(options.folder or _mirror(options.mirror)), indent=2))
    return DONE


def _root(folder: str | None) -> Path:
    """Return the diagnostics folder.

    Raises:
        NotFoundError: It has no journal.
    """
    from pathlib import Path

    from ml_diagnostics_common.environment import diagnostics_directory

    root = diagnostics_directory() if folder is None else Path(folder).expanduser()
    if not (root / "journal").is_dir():
        raise NotFoundError(f"{root} has no journal: give the ML_DIAGNOSTICS_DIR of a job")
    return root


def _mirror(given: str | None) -> str:
    """Return the mirror.

    Raises:
        ConfigurationError: There is none.
    """
    from ml_diagnostics_common.environment import configured_mirror

    mirror = configured_mirror() if given is None else given
    if not mirror:
        raise ConfigurationError("no mirror is known: give --mirror URL, or set ML_DIAGNOSTICS_MIRROR")
    return mirror
