"""An exception as plain values that outlive it: its chain of causes, and where each was raised.

Values of variables are never read. A message is redacted, on one line, and at most 500 bytes long. Everything is
bounded: at most eight exceptions of a chain or a group, 100 frames of the first and 20 of each further one, cut in the
middle, where a recursion repeats itself.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, TracebackType
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.file_systems import temporary_folder

__all__ = [
    "CodeLocation",
    "RaisedException",
    "describe_exception",
    "exception_fields",
    "failed_paths",
    "message_of",
    "raised_from_json",
]

_MOST_EXCEPTIONS: Final = 8
_MOST_FRAMES: Final = 100  # As faulthandler.
_MOST_FRAMES_OF_OTHERS: Final = 20
_MOST_FRAMES_OF_FIELDS: Final = 20
_MOST_MESSAGE_BYTES: Final = 500
_LARGEST_NUMBER: Final = 2**31
_LONGEST_FILE: Final = 200
_LONGEST_NAME: Final = 100
_LONGEST_PATH: Final = 4096
_CAUSED_BY, _WHILE_HANDLING, _IN_GROUP = "caused by", "while handling", "in the group"
_OF_DISKS: Final = frozenset({errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EIO, getattr(errno, "EDQUOT", errno.EIO)})
_FULL: Final = ("No space left on device", "Disk quota exceeded", "requested and")
"""Texts of libraries that write by themselves: TensorStore, and numpy's "600000 requested and 262112 written"."""
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
    number: int | None = None
    """The `errno` of an OSError."""
    file: str = ""
    """The absolute path of the file that an OSError names; a write to a full disk names none."""

    @property
    def title(self) -> str:
        """`ValueError: batch 12 is empty`."""
        return f"{self.kind}: {self.message}" if self.message else self.kind

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON, for an entry."""
        return {
            "exception": self.title,
            **({"relation": self.relation} if self.relation else {}),
            **({} if self.number is None else {"errno": self.number}),
            **({"filename": _shown_path(self.file)} if self.file else {}),
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
            kind = _line(type(linked).__name__)
            described.append(RaisedException(kind, message_of(linked), relation, frames, *_failed_call(linked)))
            for link in _links(linked):
                if id(link[1]) not in seen:
                    seen.add(id(link[1]))
                    waiting.append(link)
    except Exception:
        pass  # No memory, no stack left, or attributes of the user's own: what is known so far is all.
    return tuple(described)


def exception_fields(raised: Sequence[RaisedException]) -> dict[str, Any]:
    """Return the fields of an entry on a failure; one that has no value is left out.

    `exception_text`, `exception_frames`: at most 20, innermost first, `exception_causes`: the types of the linked
    exceptions, and of the first OSError among all of them `errno` and `filename`.

    Args:
        raised: The result of `describe_exception`.
    """
    if not raised:
        return {}
    failed = next((each for each in raised if each.number is not None), raised[0])
    fields: dict[str, Any] = {
        "exception_text": raised[0].message,
        "exception_frames": [str(frame) for frame in raised[0].frames[:_MOST_FRAMES_OF_FIELDS]],
        "exception_causes": [each.kind for each in raised[1:]],
        "errno": failed.number,
        "filename": _shown_path(failed.file),
    }
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


def failed_paths(raised: Sequence[RaisedException]) -> list[str]:
    """Return the paths that show the file system of a failure: the file, else the folders where it is likely.

    Args:
        raised: The result of `describe_exception`, in the same process.

    Returns:
        Absolute paths; none if the failure is not about a disk.
    """
    about_disks = [each for each in raised if each.number in _OF_DISKS or any(text in each.message for text in _FULL)]
    files = [each.file for each in raised if each.file]
    if not about_disks or files:
        return files
    try:
        return [os.getcwd(), temporary_folder()]  # noqa: PTH109
    except OSError:  # The current folder was deleted.
        return [temporary_folder()]


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
    number, file = encoded.get("errno"), _line(str(encoded.get("filename", "")))
    is_number = isinstance(number, (int, float)) and abs(number) < _LARGEST_NUMBER
    relation = _line(str(encoded.get("relation", "")))
    return RaisedException(kind, message, relation, frames, int(number) if is_number else None, file)  # type: ignore[arg-type]


def _failed_call(error: BaseException) -> tuple[int | None, str]:
    """Return the number of an OSError, and the absolute path of its file: empty for a descriptor, and for a URL."""
    if not isinstance(error, OSError):
        return None, ""
    number, name = error.errno, error.filename
    text = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else ""
    path = os.path.abspath(text) if text and "://" not in text else ""  # noqa: PTH100 (it may have any bytes)
    return number if type(number) is int else None, path


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


def _shown_path(path: str) -> str:
    """Return a path for an entry: with escapes for what is not printable, and without secrets."""
    if not path:
        return ""
    from ml_diagnostics_common.redaction import redact_text

    return redact_text("".join(c if c.isprintable() else ascii(c)[1:-1] for c in path[:_LONGEST_PATH]))


def _line(text: str) -> str:
    """Return a text on one line, without characters that control a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
