"""Frameworks that hooks are for: those that are installed, or modules with the recorded signatures of their classes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


def installed(module: str) -> Any:
    """Import a module of a framework; skip the tests of the caller if the framework is not installed."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: `nox -s integrations` has it", allow_module_level=True)
    return importlib.import_module(module)


@contextmanager
def hook(name: str, framework: str, **members: Any) -> Iterator[Any]:
    """Import a hook with the framework that is installed, or else with a fake; forget both afterwards.

    Args:
        name: The module of `ml_diagnostics.integrations`.
        framework: The module of the framework that it imports.
        members: The contents of the fake module.
    """
    path = f"ml_diagnostics.integrations.{name}"
    parts = framework.split(".")
    fakes: list[str] = []
    if find_spec(parts[0]) is None:
        for length in range(1, len(parts) + 1):
            fakes.append(".".join(parts[:length]))
            sys.modules[fakes[-1]] = ModuleType(fakes[-1])
            if length > 1:
                setattr(sys.modules[fakes[-2]], parts[length - 1], sys.modules[fakes[-1]])
        vars(sys.modules[framework]).update(members)
    try:
        yield importlib.import_module(path)
    finally:
        for each in [*fakes, path] if fakes else []:
            sys.modules.pop(each, None)
