"""The options on what is read beside the journal, and the exit code of `--strict`.

Parsers import it, so imports are lazy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE, FAILED

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement._query.sources import Sources

__all__ = ["add_mirror_option", "add_source_options", "strict_code", "with_sources"]


def add_source_options(parser: argparse.ArgumentParser, *, with_strict: bool = True, with_cloud: bool = True) -> None:
    """Add the options on the mirror and Cloud Logging.

    Args:
        parser: The parser of a command that reads jobs.
        with_strict: True for `--strict`.
        with_cloud: True for `--also`.
    """
    add_mirror_option(parser, "also read this mirror")
    if with_cloud:
        parser.add_argument(
            "--also",
            choices=("cloud",),
            help="ask Cloud Logging also if the mirror is complete, for entries of programs without a mirror",
        )
    if with_strict:
        parser.add_argument(
            "--strict", action="store_true", help="exit with 1 if entries are missing, as far as the mirror shows that"
        )


def add_mirror_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option for the mirror, with a description of what is done with it."""
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"{what}: gs://bucket/prefix, or a folder (default: ML_DIAGNOSTICS_MIRROR)",
    )


def with_sources(options: argparse.Namespace, *, asks_cloud: bool = True) -> Sources:
    """Return what is to be read beside the journal.

    Args:
        options: The options of the command.
        asks_cloud: False to ask Cloud Logging for nothing.
    """
    from ml_goodput_measurement._query.sources import Sources

    also = getattr(options, "also", None) == "cloud"
    if options.mirror is None:
        return Sources(asks_cloud=asks_cloud, always_asks_cloud=also)
    return Sources(options.mirror.strip(), asks_cloud, also)


def strict_code(options: argparse.Namespace, console: Console, notes: Iterable[str]) -> int:
    """Return the exit code of a command that is done: 1 for `--strict` if entries are missing.

    Args:
        options: The options of the command.
        console: Prints why.
        notes: The notes on what was read.
    """
    from ml_diagnostics_common.log_source import INCOMPLETE

    missing = [note.removeprefix(INCOMPLETE) for note in notes if note.startswith(INCOMPLETE)]
    if not options.strict or not missing:
        return DONE
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    console.warn(f"entries are missing: {missing[0]}{more}")
    return FAILED
