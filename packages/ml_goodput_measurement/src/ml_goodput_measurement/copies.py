"""Copies and pickles of objects that hold threads, locks and open files: rebuilt from the constructor's arguments.

A spawned process gets its arguments as a pickle, and programs copy configs and callbacks that hold a recorder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RebuiltFromArguments"]


class RebuiltFromArguments:
    """Base of classes whose copies and pickles start as a new object does, as a recorder in a forked child."""

    __constructor: tuple[type, dict[str, Any]]
    __own_names: frozenset[str]

    def _remember(self, constructor: type, arguments: Mapping[str, Any], names_before: frozenset[str]) -> None:
        """Remember how to rebuild the object; called at the end of its constructor.

        Args:
            constructor: The class of the constructor; a subclass may have another one.
            arguments: By name; others than the parameters of the constructor are ignored.
            names_before: The attributes that the object had before: those are a subclass's, and are copied.
        """
        parameters = constructor.__init__.__code__  # type: ignore[misc]
        names = parameters.co_varnames[1 : parameters.co_argcount + parameters.co_kwonlyargcount]
        self.__constructor = constructor, {name: arguments[name] for name in names}
        self.__own_names = frozenset(vars(self)) - names_before | {"_RebuiltFromArguments__own_names"}

    def __getstate__(self) -> tuple[type, dict[str, Any], dict[str, Any]]:
        import inspect  # Only here: most recorders are never copied.

        constructor, arguments = self.__constructor
        # A default may be an object that cannot be pickled, such as os.environ.
        defaults = {name: parameter.default for name, parameter in inspect.signature(constructor).parameters.items()}
        given = {name: value for name, value in arguments.items() if value is not defaults[name]}
        others = {name: value for name, value in vars(self).items() if name not in self.__own_names}
        return constructor, given, others

    def __setstate__(self, state: tuple[type, dict[str, Any], dict[str, Any]]) -> None:
        constructor, arguments, others = state
        vars(self).update(others)
        constructor.__init__(self, **arguments)  # type: ignore[misc]
