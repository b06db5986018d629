"""The public names of a package, as JSON: run in the reference's environment, and in ours."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import typing
from typing import Any

MODULES = (
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
)


def surface() -> dict[str, Any]:
    """The public names that are defined in each module: what they are, and what they take."""
    offered: dict[str, Any] = {}
    for module_name in MODULES:
        module = importlib.import_module(f"ml_goodput_measurement.src.{module_name}")
        for name in dir(module):
            offered |= _described(f"{module_name}.{name}", getattr(module, name))
    return offered


def _described(path: str, thing: Any) -> dict[str, Any]:
    name = path.rpartition(".")[2]
    if name.startswith("_"):
        return {}
    if inspect.isclass(thing) and thing.__module__.startswith("ml_goodput"):
        return {path: _kind(thing)} | _methods(path, thing)
    if inspect.isfunction(thing) and thing.__module__.startswith("ml_goodput"):
        return {path: parameters(thing)}
    if isinstance(thing, (str, int, float, list, tuple)) and name.isupper():
        return {path: repr(thing)}
    if isinstance(thing, dict) and name.isupper():
        return {path: dict(thing)}
    return {}


def _kind(thing: Any) -> Any:
    if issubclass(thing, enum.Enum):
        return {member.name: member.value for member in thing}
    if typing.is_typeddict(thing):
        return sorted(thing.__annotations__)
    return "class"


def _methods(path: str, thing: Any) -> dict[str, Any]:
    """Return the methods of a class, without those that the language adds."""
    if issubclass(thing, (enum.Enum, Exception)) or typing.is_typeddict(thing):
        return {}
    names = [name for name in dir(thing) if not name.startswith("_") and callable(getattr(thing, name))]
    own = {f"{path}.{name}": parameters(getattr(thing, name)) for name in names}
    return {f"{path}()": parameters(thing), **own}


def parameters(function: Any) -> list[tuple[str, str, str | None]]:
    """Name, kind and default of each; None where there is no default."""
    return [
        (
            parameter.name,
            parameter.kind.name,
            None if parameter.default is parameter.empty else _text(parameter.default),
        )
        for parameter in inspect.signature(function).parameters.values()
    ]


def _text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    return "..." if callable(value) or hasattr(value, "keys") else repr(value)
