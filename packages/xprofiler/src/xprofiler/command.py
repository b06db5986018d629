"""What a subcommand is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["Command"]


class Command(Protocol):
    """One subcommand. Its module imports nothing that `--help` does not need.

    Attributes:
        name: As it is typed.
        summary: What it does, in a line.
        passes_on: Whether unknown options go on to gcloud, which the command then uses.
    """

    name: str
    summary: str
    passes_on: bool

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        ...

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Does it, and returns the exit code.

        Args:
            options: The arguments; `options.extra` are those for gcloud, in their order.
            console: Where to speak and ask.

        Raises:
            XprofilerError: It could not be done; its class is the exit code.
        """
        ...
