"""Each number that decides is a threshold that `doctor explain` shows; others are listed here, with the reason."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
from ml_diagnostics_common.story import TOGETHER_SECONDS
from ml_diagnostics_console import _rules
from ml_diagnostics_console._facts.building import STUCK_BEFORE_END_SECONDS
from ml_diagnostics_console._rules import all_rules

_MODULES = sorted(Path(_rules.__file__).parent.glob("*.py"))
_UNITS = {"_SECOND_NS", "_GIB", "_MICROSECONDS", "_NEVER_NS"}
_SHOWN = {
    "_SHOWN",
    "_LONGEST_VALUE",
    "_LONGEST_MESSAGE",
    "_LONGEST_TEXT",
    "_MOST_NAMED",
    "_MOST_PODS_SHOWN",
    "_MOST_PROOFS",
    "_MOST_REFS",
    "_NAMES_SHOWN",
}
_READ = {
    "_LAST_CHARACTERS",
    "_LONGEST_TAIL",
    "_MOST_TEXT",
    "_INNERMOST",
    "_MOST_ROWS",
    "_MOST_WINDOWS",
    "_MOST_ATTEMPTS",
}
_CODES = {"_NOT_EXECUTABLE", "_NOT_FOUND", "_NO_FILE", "_PERCENT_A_POINT", "_OF_NORMAL"}
_ALLOWED = {
    **dict.fromkeys(_UNITS, "a unit, or an end of time"),
    **dict.fromkeys(_SHOWN, "the length of a text or of a list that is shown"),
    **dict.fromkeys(_READ, "a bound of memory and time: how much of a long record is read"),
    **dict.fromkeys(_CODES, "defined elsewhere: exit codes of shells, errno, libtpu's scale, the normal distribution"),
    "_WITH_FIRST": "the first summary holds the compilation, and is left out if there are others",
    "_LEAST_POINTS": "of host_memory: a line has two points",
}
_NUMERIC = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Load)


def _is_number(value: ast.expr) -> bool:
    """Return True for a number, or a product of numbers and names."""
    nodes = list(ast.walk(value))
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    is_computed = all(isinstance(node, _NUMERIC) for node in nodes) and bool(constants)
    return is_computed and all(type(constant) in (int, float) for constant in constants)


def _numbers(tree: ast.Module) -> list[str]:
    found = []
    for node in tree.body:
        assigned = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else assigned
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(target, ast.Name) and value is not None and _is_number(value):
            found.append(target.id)
    return found


def _in_thresholds(tree: ast.Module) -> set[str]:
    return {
        name.id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Threshold"
        for name in ast.walk(call)
        if isinstance(name, ast.Name)
    }


@functools.cache
def _trees() -> dict[str, ast.Module]:
    return {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in _MODULES}


@functools.cache
def _shared() -> set[str]:
    return set().union(*map(_in_thresholds, _trees().values()))


@pytest.mark.parametrize("module", [path.stem for path in _MODULES])
def test_each_number_of_a_rule_is_a_threshold_or_has_a_reason_not_to_be(module: str) -> None:
    tree = _trees()[module]
    shown = _in_thresholds(tree) | {name for name in _shared() if not name.startswith("_")}
    assert [name for name in _numbers(tree) if name not in shown and name not in _ALLOWED] == []


def test_the_numbers_of_facts_that_decide_are_thresholds() -> None:
    values = [str(threshold.value) for rule in all_rules() for threshold in rule.thresholds]
    for seconds in (TOGETHER_SECONDS, STUCK_BEFORE_END_SECONDS):
        assert f"{seconds:g} s" in values


def test_each_threshold_has_its_source() -> None:
    for rule in all_rules():
        for threshold in rule.thresholds:
            assert threshold.source, (rule.id, threshold.name)


def test_no_allowed_number_is_left_over() -> None:
    known = {name for tree in _trees().values() for name in _numbers(tree)}
    assert set(_ALLOWED) <= known
