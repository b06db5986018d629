"""Output and prompts of a command: data on standard output; progress, prompts and errors on standard error."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

from ml_diagnostics_common.command.errors import CommandError

__all__ = ["BOLD", "GREEN", "RED", "YELLOW", "Console", "ReaderGoneError", "data_errors"]

BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"
"""Styles, as parameters of the terminal's escape sequence for them."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but line breaks and tabs, and lone surrogates, which no terminal can show."""


class ReaderGoneError(BrokenPipeError):
    """The reader of standard output has exited. For standard error, a plain BrokenPipeError is raised."""


@contextmanager
def data_errors() -> Iterator[None]:
    """Translate the errors of writing to standard output.

    Raises:
        ReaderGoneError: Its reader has exited.
        CommandError: It cannot be written, for instance because its disk is full.
    """
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError(*error.args) from error
    except OSError as error:
        raise CommandError(f"cannot write to standard output: {error.strerror or error}") from error


class Console:
    """The terminal, or other streams.

    Args:
        program: The name of the command, the start of warnings and errors.
        is_verbose: True to print details.
        is_quiet: True to print no progress.
        assumes_yes: True to ask nothing: every prompt is answered with yes.
        may_use_color: False for text without colors. Colors are only ever sent to a terminal, and not with NO_COLOR.
        out: The stream for data.
        err: The stream for everything else.
        answers: The stream of answers to prompts; None if there is no user.
    """

    def __init__(
        self,
        program: str = "",
        *,
        is_verbose: bool = False,
        is_quiet: bool = False,
        assumes_yes: bool = False,
        may_use_color: bool = True,
        out: TextIO | None = None,
        err: TextIO | None = None,
        answers: TextIO | None = None,
    ) -> None:
        self.is_verbose = is_verbose
        self.is_quiet = is_quiet
        self.assumes_yes = assumes_yes
        self.may_use_color = may_use_color
        self.answers = answers or sys.stdin
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._program = program

    @property
    def width(self) -> int | None:
        """The columns of the terminal; None if the output goes to a file or a pipe, where nothing is cut."""
        return os.get_terminal_size(self.out.fileno()).columns if _is_terminal(self.out) else None

    def data(self, text: str, *, styles: Mapping[str, str] | None = None, end: str = "\n") -> None:
        """Print data. Control characters are escaped, since names from outside must not control the terminal.

        Args:
            text: The data.
            styles: On a terminal with colors, the style of each match of a pattern (multi-line).
            end: Text after the data.

        Raises:
            ReaderGoneError: The reader of standard output has exited.
            CommandError: Standard output cannot be written.
        """
        shown = _printable(text, self.out)
        if styles and self._has_color(self.out):
            for pattern, style in styles.items():
                shown = re.sub(pattern, _style_of(style), shown, flags=re.MULTILINE)
        with data_errors():
            print(shown, file=self.out, end=end, flush=True)

    def notify(self, text: str = "", *, is_progress: bool = True) -> None:
        """Print a message. With `--quiet`, progress is not printed."""
        if is_progress and self.is_quiet:
            return
        shown = _printable(text, self.err)
        if self._program and self._has_color(self.err):
            shown = re.sub(rf"^{re.escape(self._program)}: .*", _style_of(RED), shown)
        print(shown, file=self.err, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning or an error, also with `--quiet`: a line that starts with the name of the command."""
        self.notify(f"{self._program}: {text}", is_progress=False)

    def detail(self, text: str) -> None:
        """Print a message if `--verbose` is set."""
        if self.is_verbose:
            self.notify(text, is_progress=False)

    def command(self, argv: Sequence[str]) -> None:
        """Print the command line of a program that is started, quoted for a shell, if `--verbose` is set."""
        if self.is_verbose:
            import shlex

            self.detail(f"$ {shlex.join(argv)}")

    def confirms(self, question: str) -> bool:
        """Ask the user, and return whether the answer is y or Y. Without a user, the answer is no.

        Args:
            question: The prompt; printed without a line break at its end.
        """
        if self.assumes_yes:
            return True
        print(_printable(question, self.err), end="", file=self.err, flush=True)
        try:
            answer = self.answers.readline() if self.answers else ""
        except UnicodeDecodeError:
            answer = ""
        if not answer.endswith("\n"):
            self.notify(is_progress=False)
        return answer.strip() in ("y", "Y")

    def _has_color(self, stream: TextIO) -> bool:
        """Return True to send colors; see https://no-color.org."""
        wanted = self.may_use_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return wanted and _is_terminal(stream)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # ValueError: the stream is closed.
        return False


def _style_of(style: str) -> str:
    return f"\x1b[{style}m\\g<0>\x1b[0m"


def _printable(text: str, stream: TextIO) -> str:
    """Escape control characters, and characters that the stream's encoding lacks."""
    plain = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return plain.encode(encoding, "backslashreplace").decode(encoding)
