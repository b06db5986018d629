"""The lines that Python prints in a block, for its companion: where no other process can read them from a file.

`write` of `sys.stdout` and `sys.stderr` is wrapped on the object, which stays the same, as does its descriptor. Lines
of native code, and of other processes, are not seen.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from typing import Any, Final

from ml_diagnostics_common.process_hooks import LiveObjects, at_fork

from cloud_tpu_diagnostics._console import RING_PREFIX, is_console_kept
from cloud_tpu_diagnostics._console.ring import Ring

__all__ = ["PrintedLines"]

_STREAMS: Final = (("out", "stdout"), ("err", "stderr"))
_OF_PYTHON: Final = "_io"
"""The module of the streams of the interpreter; others, such as those of notebooks, may have any descriptor."""
_MISSING: Final = object()


class PrintedLines:
    """Keeps the last lines from its construction to `undo`. Nothing raises.

    Attributes:
        rings: The rings by stream: `out`, `err`, or `out+err` if both are one object. Empty if there is nothing to
            keep, or no memory for it.
    """

    def __init__(self) -> None:
        self.rings: dict[str, Ring] = {}
        self._undoing: list[Callable[[], object]] = []
        wrapped: dict[int, tuple[str, Any]] = {}
        if not is_console_kept():
            return
        for name, attribute in _STREAMS:
            stream = getattr(sys, attribute, None)
            if stream is None or _is_read_from_outside(stream):
                continue
            earlier = wrapped.get(id(stream))
            wrapped[id(stream)] = (f"{earlier[0]}+{name}" if earlier else name, stream)
        for name, stream in wrapped.values():
            try:
                self._wrap(name, stream)
            except Exception:
                pass  # No memory, or a stream of the program's that has no such attribute.
        _of_this_process.add(self)

    def descriptors(self) -> dict[str, int]:
        """Return the descriptors for the companion, by name."""
        return {f"{RING_PREFIX}{name}": ring.descriptor for name, ring in self.rings.items()}

    def close_descriptors(self) -> None:
        """Close them, once the companion has its own."""
        for ring in self.rings.values():
            ring.close_descriptor()

    def undo(self) -> None:
        """Restore `write`, unless another program has changed it since, and keep no more lines."""
        rings, self.rings = self.rings, {}
        undoing, self._undoing = self._undoing, []
        for undo in undoing:
            try:
                undo()
            except Exception:
                pass  # A stream that no longer allows it: the function writes on, and keeps nothing.
        for ring in rings.values():
            ring.release()

    def _wrap(self, name: str, stream: Any) -> None:
        own = vars(stream).get("write", _MISSING)
        write = stream.write
        ring = Ring()
        add = ring.add

        def write_and_keep(*arguments: Any, **keywords: Any) -> Any:
            result = write(*arguments, **keywords)
            try:
                text = arguments[0] if arguments else next(iter(keywords.values()))
                add(text.encode("utf-8", "backslashreplace"))
            except Exception:
                pass  # Not a text, or the block has ended while another program still has this function.
            return result

        try:
            stream.write = write_and_keep
        except BaseException:
            ring.release()
            raise
        self.rings[name] = ring

        def undo() -> None:
            if vars(stream).get("write") is write_and_keep:
                if own is _MISSING:
                    del stream.write
                else:
                    stream.write = own

        self._undoing.append(undo)


def _is_read_from_outside(stream: Any) -> bool:
    """Return True if the companion reads the last lines of a stream from its file."""
    try:
        return type(stream).__module__ == _OF_PYTHON and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except Exception:  # Not a file, closed, or a class of the program's.
        return False


def _undo_in_child() -> None:
    """Leave the ring to the parent, in a forked child."""
    for each in list(_of_this_process):
        each.undo()


# State of the process: for its forked children.
_of_this_process: LiveObjects[PrintedLines] = LiveObjects()
at_fork(_undo_in_child)
