"""Docstrings name arguments and attributes that exist: a rename must not leave one behind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1] / "packages"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BASES_WITHOUT_ATTRIBUTES = {"NamedTuple", "Protocol"}


def documented(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, section: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    found = re.search(rf"^{section}:\n((?:    .*\n|\n)*)", (ast.get_docstring(node) or "") + "\n", re.MULTILINE)
    lines = re.findall(r"^    (\w+(?:, \w+)*):", found[1], re.MULTILINE) if found else []
    return {name for line in lines for name in line.split(", ")}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def attributes(class_: ast.ClassDef) -> set[str]:
    """Return the names that a class or its methods define."""
    names = {node.name for node in class_.body if isinstance(node, FUNCTIONS)}
    for node in ast.walk(class_):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def unknown_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that docstrings describe and that do not exist, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            unknown = documented(node, "Args") - parameters(node)
        elif isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} <= BASES_WITHOUT_ATTRIBUTES:
            known = attributes(node)
            inits = [each for each in node.body if isinstance(each, FUNCTIONS) and each.name == "__init__"]
            unknown = documented(node, "Attributes") - known
            unknown |= documented(node, "Args") - known.union(*map(parameters, inits))
        else:
            continue
        yield from (f"line {node.lineno}, {node.name}: {name}" for name in sorted(unknown))


@pytest.mark.parametrize("package", sorted(path.name for path in PACKAGES.iterdir() if path.is_dir()))
def test_arguments_and_attributes_in_docstrings_exist(package: str) -> None:
    unknown = {
        str(path.relative_to(PACKAGES)): names
        for path in sorted((PACKAGES / package / "src").rglob("*.py"))
        if (names := list(unknown_names(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert unknown == {}
