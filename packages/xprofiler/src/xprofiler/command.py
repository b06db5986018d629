"""The interface of subcommands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["Command"]


class Command(Protocol):
    """One subcommand. Its module imports only what `--help` needs, which keeps start-up fast.

    Attributes:
        name: The name on the command line.
        summary: A description of one line.
        passes_on: True if unknown options are passed to gcloud.
    """

    name: str
    summary: str
    passes_on: bool

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the subcommand."""
        ...

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run the subcommand, and return the exit code.

        Args:
            options: The arguments; `options.extra` has those for gcloud, in the same order.
            console: For output and prompts.

        Raises:
            XprofilerError: The command failed; the class of the error sets the exit code.
        """
        ...
