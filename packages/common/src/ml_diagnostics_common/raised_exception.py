"""An exception as plain values that outlive it: its chain of causes, and where each was raised.

Values of variables are never read. A message is redacted, on one line, and at most 500 bytes long. Everything is
bounded: at most eight exceptions of a chain or a group, 100 frames of the first and 20 of each further one, cut in the
middle, where a recursion repeats itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import CodeType, TracebackType
from typing import Any, Final, NamedTuple

__all__ = ["CodeLocation", "RaisedException", "describe_exception", "message_of", "raised_from_json"]

_MOST_EXCEPTIONS: Final = 8
_MOST_FRAMES: Final = 100  # As faulthandler.
_MOST_FRAMES_OF_OTHERS: Final = 20
_MOST_MESSAGE_BYTES: Final = 500
_LONGEST_FILE: Final = 200
_LONGEST_NAME: Final = 100
_CAUSED_BY, _WHILE_HANDLING, _IN_GROUP = "caused by", "while handling", "in the group"
_PLAIN_TYPES: Final = (str, bytes, int, float, complex, bool, type(None))


class CodeLocation(NamedTuple):
    """One call."""

    function: str
    file: str
    line: int
    """0 where it is not known."""

    def __str__(self) -> str:
        """Return `train_step (/job/train.py:88)`; the name alone for the mark of frames that were left out."""
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function


class RaisedException(NamedTuple):
    """One exception of a chain."""

    kind: str
    """The name of its type."""
    message: str
    """Redacted; may be empty."""
    relation: str
    """Its relation to the first one: empty for that one, else "caused by", "while handling" or "in the group"."""
    frames: tuple[CodeLocation, ...]
    """Innermost first. One without a file is a mark: that many frames were left out there."""

    @property
    def title(self) -> str:
        """`ValueError: batch 12 is empty`."""
        return f"{self.kind}: {self.message}" if self.message else self.kind

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON, for an entry."""
        return {
            "exception": self.title,
            **({"relation": self.relation} if self.relation else {}),
            "frames": [str(frame) for frame in self.frames],
        }


def describe_exception(error: BaseException) -> tuple[RaisedException, ...]:
    """Return an exception, and what it is linked to as Python would print it: causes, contexts, members of a group.

    Never raises. To be called where the exception is handled: the callers of that frame belong to its stack.

    Args:
        error: The exception; it is not kept.
    """
    described: list[RaisedException] = []
    waiting: list[tuple[str, BaseException]] = [("", error)]
    seen = {id(error)}
    try:
        while waiting and len(described) < _MOST_EXCEPTIONS:
            relation, linked = waiting.pop(0)
            most = _MOST_FRAMES_OF_OTHERS if described else _MOST_FRAMES
            frames = _frames(linked.__traceback__, most, with_callers=not described)
            described.append(RaisedException(_line(type(linked).__name__), message_of(linked), relation, frames))
            for link in _links(linked):
                if id(link[1]) not in seen:
                    seen.add(id(link[1]))
                    waiting.append(link)
    except Exception:
        pass  # No memory, no stack left, or attributes of the user's own: what is known so far is all.
    return tuple(described)


def message_of(error: BaseException) -> str:
    """Return an exception's message on one line, without secrets. Never raises.

    `str` of an exception that holds an array would wait for the device, perhaps for ever: an array becomes its shape.
    """
    if not error.args and type(error).__str__ is BaseException.__str__:
        return ""  # The redactor takes some milliseconds to load.
    try:
        from ml_diagnostics_common.redaction import redact

        is_group = isinstance(getattr(error, "exceptions", None), tuple)
        if is_group or all(_is_plain(argument) for argument in error.args):
            text = str(error)
        else:
            text = ", ".join(str(argument) for argument in redact(list(error.args), max_bytes=_MOST_MESSAGE_BYTES))
        return _line(str(redact(text, max_bytes=_MOST_MESSAGE_BYTES)))
    except Exception:
        return ""


def raised_from_json(encoded: object) -> RaisedException | None:
    """Return what `to_json` made, from an entry that is not trusted; None for something else."""
    if not isinstance(encoded, Mapping) or not isinstance(encoded.get("frames"), list):
        return None
    kind, _, message = _line(str(encoded.get("exception", ""))).partition(": ")
    frames = tuple(_location(str(text)) for text in encoded["frames"][: _MOST_FRAMES + 1])
    return RaisedException(kind, message, _line(str(encoded.get("relation", ""))), frames)


def _is_plain(argument: object, depth: int = 2) -> bool:
    if type(argument) in (list, tuple) and depth:
        return all(_is_plain(item, depth - 1) for item in argument)  # type: ignore[attr-defined]
    return type(argument) in _PLAIN_TYPES


def _links(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    if error.__cause__ is not None:
        yield _CAUSED_BY, error.__cause__
    elif error.__context__ is not None and not error.__suppress_context__:
        yield _WHILE_HANDLING, error.__context__
    members = getattr(error, "exceptions", None)  # ExceptionGroup, and its backport to Python 3.10.
    if isinstance(members, tuple):
        yield from ((_IN_GROUP, member) for member in members if isinstance(member, BaseException))


def _frames(traceback: TracebackType | None, most: int, *, with_callers: bool) -> tuple[CodeLocation, ...]:
    """Return where the exception came from, and, if wanted, the callers of the frame that it was handled in."""
    codes: list[tuple[CodeType, int | None]] = []
    outer = traceback.tb_frame.f_back if traceback is not None and with_callers else None
    while outer is not None:
        codes.append((outer.f_code, outer.f_lineno))
        outer = outer.f_back
    codes.reverse()
    while traceback is not None:
        codes.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    codes.reverse()
    left_out = len(codes) - most
    if left_out <= 0:
        return tuple(itertools.starmap(_code_location, codes))
    inner, outermost = codes[: most // 2], codes[-(most - most // 2) :]
    mark = CodeLocation(f"... {left_out} frames left out ...", "", 0)
    return (
        *itertools.starmap(_code_location, inner),
        mark,
        *itertools.starmap(_code_location, outermost),
    )


def _code_location(code: CodeType, line: int | None) -> CodeLocation:
    function, file = _line(code.co_name)[:_LONGEST_NAME], _line(code.co_filename)[-_LONGEST_FILE:]
    return CodeLocation(function.strip(), file.strip(), line or 0)


def _location(text: str) -> CodeLocation:
    function, _, rest = _line(text).partition(" (")
    file, _, line = rest.rpartition(":")
    digits = line.removesuffix(")")
    if not (file and digits.isascii() and digits.isdigit() and len(digits) < 10):
        return CodeLocation(_line(text)[: _LONGEST_FILE + _LONGEST_NAME], "", 0)
    return CodeLocation(function, file, int(digits))


def _line(text: str) -> str:
    """Return a text on one line, without characters that control a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
