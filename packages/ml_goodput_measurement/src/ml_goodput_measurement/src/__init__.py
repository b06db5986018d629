"""Second names, such as `ml_goodput_measurement.src.goodput`, of the modules one level up, for programs that use them.

Each module is loaded when it is first imported, by any kind of import, and never twice.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_goodput_measurement import (
        checkpoint_badput_calculator,
        exclusion_utils,
        gcp_metrics,
        goodput,
        goodput_cache,
        goodput_elastic,
        goodput_exclusion,
        goodput_utils,
        monitoring,
        monitoring_elastic,
    )

__all__ = [
    "checkpoint_badput_calculator",
    "exclusion_utils",
    "gcp_metrics",
    "goodput",
    "goodput_cache",
    "goodput_elastic",
    "goodput_exclusion",
    "goodput_utils",
    "monitoring",
    "monitoring_elastic",
]


class _SecondNames:
    """Finder and loader of modules by their second names.

    It needs no base class: importlib.abc takes 12 ms to load.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in __all__ else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, for an empty module, which the real one replaces."""

    def exec_module(self, module: ModuleType) -> None:
        # An import returns the module that is in sys.modules afterwards.
        sys.modules[module.__name__] = import_module(_first_name(module.__name__))

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code that `python -m` runs."""
        from importlib.util import find_spec

        spec = find_spec(_first_name(fullname))
        return spec.loader.get_code(spec.name) if spec and spec.loader else None  # type: ignore[attr-defined]


def _first_name(second_name: str) -> str:
    return second_name.replace(__name__, __name__.rpartition(".")[0], 1)


sys.meta_path.append(_SecondNames())


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
