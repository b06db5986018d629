"""Output and prompts of the command: data on standard output; progress, prompts and errors on standard error."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TextIO

__all__ = ["Console", "ReaderGoneError"]

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but line breaks and tabs, and lone surrogates, which no terminal can show."""


class ReaderGoneError(BrokenPipeError):
    """The reader of standard output has exited. For standard error, a plain BrokenPipeError is raised."""


@dataclass
class Console:
    """The terminal, or other streams.

    Attributes:
        is_verbose: True to print every request and every command line.
        is_quiet: True to ask nothing: every prompt is answered with yes.
        out: The stream for data.
        err: The stream for everything else.
        answers: The stream of answers to prompts; None if there is no user.
    """

    is_verbose: bool = False
    is_quiet: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    answers: TextIO | None = field(default_factory=lambda: sys.stdin)

    def data(self, text: str) -> None:
        """Print data. Control characters are escaped, since names from outside must not control the terminal.

        Raises:
            ReaderGoneError: The reader of standard output has exited.
        """
        try:
            print(_printable(text, self.out), file=self.out, flush=True)
        except BrokenPipeError as error:
            raise ReaderGoneError(*error.args) from error

    def notify(self, text: str = "") -> None:
        """Print progress or an error."""
        print(_printable(text, self.err), file=self.err, flush=True)

    def detail(self, text: str) -> None:
        """Print a message if `--verbose` is set."""
        if self.is_verbose:
            self.notify(text)

    def command(self, argv: Sequence[str]) -> None:
        """Print the command line of a program that is started, quoted for a shell, if `--verbose` is set."""
        self.detail(f"$ {shlex.join(argv)}")

    def confirms(self, question: str) -> bool:
        """Ask the user, and return whether the answer is y or Y. Without a user, the answer is no.

        Args:
            question: The prompt; printed without a line break at its end.
        """
        if self.is_quiet:
            return True
        print(_printable(question, self.err), end="", file=self.err, flush=True)
        try:
            answer = self.answers.readline() if self.answers else ""
        except UnicodeDecodeError:
            answer = ""
        if not answer.endswith("\n"):
            self.notify()
        return answer.strip() in ("y", "Y")


def _printable(text: str, stream: TextIO) -> str:
    """Escape control characters, and characters that the stream's encoding lacks."""
    plain = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return plain.encode(encoding, "backslashreplace").decode(encoding)
