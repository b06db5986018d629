"""Functions that run when the program imports a module, or has imported it; what it never imports costs nothing."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # Not imported from typing, which takes longer than the rest: any Python program imports this.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, TypeAlias

    Imported: TypeAlias = Callable[[ModuleType], None]

__all__ = ["after_import", "before_import", "forget_import", "forget_imports"]


class _Finder:
    """Find a module as the other finders do, and have functions called after its code has run.

    The loader stays the module's own, with another `exec_module` for one call: programs read `__loader__` and
    `__spec__`. Functions wait until that call, since programs also search for modules that they do not import.
    """

    def __init__(self) -> None:
        self.functions: dict[str, list[Imported]] = {}
        self.starters: dict[str, Callable[[], None]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        starter = self.starters.pop(name, None)
        if starter is not None:
            self.starters.clear()
            _guarded(starter, name)
        if name not in self.functions:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._observe(spec)
                    return spec
        return None

    def _observe(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None or hasattr(execute, "_ml_diagnostics"):
            return  # The loader of an archive is that of all its modules, and of each search for them.

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)  # The instance's: the class's own is left.
            execute(module)
            name = getattr(getattr(module, "__spec__", None), "name", module.__name__)
            for function in self.functions.pop(name, ()):
                _call(function, module)

        exec_module._ml_diagnostics = True  # type: ignore[attr-defined]
        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # A built-in loader is a class for all modules.


def _call(function: Imported, module: ModuleType) -> None:
    _guarded(lambda: function(module), module.__name__)


def _guarded(function: Callable[[], None], name: str) -> None:
    try:
        function()
    except Exception as error:
        try:
            from ml_diagnostics_common.guard import report_loss
        except ImportError:
            return  # A copy of this package without those that it needs.
        report_loss("ml_diagnostics", error, f"observe {name}")


# State of the process: the functions that wait for an import.
_finder: _Finder | None = None


def after_import(name: str, function: Imported) -> None:
    """Call a function with a module, after the program has imported it; now if it has been imported already.

    Args:
        name: The full name of the module.
        function: Called once. Its errors are counted, and do not reach the program.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _call(function, module)
        return
    _installed().functions.setdefault(name, []).append(function)


def before_import(names: Iterable[str], function: Callable[[], None]) -> None:
    """Call a function once, before the program imports any of these modules.

    Args:
        names: The full names of the modules.
        function: Its errors are counted, and do not reach the program.
    """
    _installed().starters.update(dict.fromkeys(names, function))


def _installed() -> _Finder:
    global _finder
    if _finder is None:
        _finder = _Finder()
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return _finder


def forget_import(name: str, function: Imported) -> None:
    """Do not call a function that waits for the import of a module.

    Args:
        name: The full name of the module.
        function: One that was given to `after_import`; nothing happens if it waits no longer.
    """
    if _finder is None or function not in _finder.functions.get(name, ()):
        return
    _finder.functions[name].remove(function)
    if not _finder.functions[name]:
        del _finder.functions[name]
    if not _finder.functions and not _finder.starters:
        forget_imports()


def forget_imports() -> None:
    """Call no function from here on, as in a process that is not observed."""
    if _finder is not None:
        _finder.functions.clear()
        _finder.starters.clear()
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
