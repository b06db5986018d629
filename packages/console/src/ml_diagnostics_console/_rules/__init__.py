"""The rules of the doctor: a module each, pure."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ml_diagnostics_console._rules.rule import Rule

__all__ = ["all_rules"]


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return all rules, by the name of their modules: one module of this package that defines `RULE` is one rule."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(module.RULE for module in modules if hasattr(module, "RULE"))
