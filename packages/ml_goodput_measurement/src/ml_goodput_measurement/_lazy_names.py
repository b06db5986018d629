"""Public names that are imported when they are first used (PEP 562), so that a trainer loads only what it needs."""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # Not imported from typing: that takes 8 ms, in which Ctrl-C in a command prints a traceback.
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

__all__ = ["imported_on_use"]


def imported_on_use(facade: str, modules: Mapping[str, str], submodules: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that re-exports names of other modules.

    Args:
        facade: The module's own name.
        modules: The module of this package that defines each public name.
        submodules: Modules of this package that are attributes of the facade, as in the public package.
    """

    def find(name: str) -> Any:
        if name in submodules:
            value: Any = import_module(f"ml_goodput_measurement.{name}")
        elif name in modules:
            value = getattr(import_module(f"ml_goodput_measurement.{modules[name]}"), name)
        else:
            raise AttributeError(f"module {facade!r} has no attribute {name!r}")
        setattr(sys.modules[facade], name, value)
        return value

    return find
