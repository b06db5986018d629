"""Where the command speaks and asks: data on standard output; progress, questions and errors on standard error."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TextIO

__all__ = ["Console", "ReaderGoneError"]

_RULING: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What rules a terminal, ends of lines and tabs apart, and what none can show."""


class ReaderGoneError(BrokenPipeError):
    """Nobody reads standard output any more. Of standard error that is a plain BrokenPipeError."""


@dataclass
class Console:
    """The terminal, or what stands for it.

    Attributes:
        is_verbose: Whether every request and every argv is told.
        is_quiet: Whether nothing is asked: every question counts as answered with yes.
        out: For data.
        err: For everything else.
        answers: Where answers come from; None is nobody.
    """

    is_verbose: bool = False
    is_quiet: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    answers: TextIO | None = field(default_factory=lambda: sys.stdin)

    def data(self, text: str) -> None:
        """Writes lines of the answer. Names are others' words: none of them may move the cursor.

        Raises:
            ReaderGoneError: Nobody reads them any more.
        """
        try:
            print(_printable(text, self.out), file=self.out, flush=True)
        except BrokenPipeError as error:
            raise ReaderGoneError(*error.args) from error

    def say(self, text: str = "") -> None:
        """Tells how far things are, or what went wrong."""
        print(_printable(text, self.err), file=self.err, flush=True)

    def detail(self, text: str) -> None:
        """Tells what only `--verbose` wants to know."""
        if self.is_verbose:
            self.say(text)

    def command(self, argv: Sequence[str]) -> None:
        """Tells of a program that is started now, with `--verbose`: as a shell would take it."""
        self.detail(f"$ {shlex.join(argv)}")

    def confirms(self, question: str) -> bool:
        """Asks; only y and Y mean yes. Without anybody to answer, that is a no.

        Args:
            question: Written as it is, with no line break after it.
        """
        if self.is_quiet:
            return True
        print(_printable(question, self.err), end="", file=self.err, flush=True)
        try:
            answer = self.answers.readline() if self.answers else ""
        except UnicodeDecodeError:
            answer = ""
        if not answer.endswith("\n"):
            self.say()
        return answer.strip() in ("y", "Y")


def _printable(text: str, stream: TextIO) -> str:
    """The text with what rules a terminal, or what the stream has no letters for, written as an escape."""
    plain = _RULING.sub(lambda ruling: ascii(ruling[0])[1:-1], text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return plain.encode(encoding, "backslashreplace").decode(encoding)
