"""Docstrings start with a verb or a noun, and name arguments and attributes that exist."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from .test_vocabulary import PARTS, ROOT, files_of

# A docstring, and each item of its sections, starts with a verb or a noun: not as half a sentence ("Of the file.",
# "What it raised."). For a duration, a distance or a number, "How long to wait" is as plain as a noun.
FRAGMENT = re.compile(
    r"(?:What(?:ever)?|Whether|Where|Those|Who(?:se|ever)?|How(?! (?:far|long|many|much|often))"
    r"|As|Between|By|From|Of|Since)\b"
)

DOCUMENTED = ["benchmarks", "examples", "tests", *(part for part in PARTS if part.startswith("packages/"))]
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_NAMES = re.compile(r"([*\w]+(?:, [*\w]+)*): ")


class Item(NamedTuple):
    """The first line of a docstring, or an item of one of its sections."""

    line: int
    owner: ast.AST
    section: str
    text: str


def _statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and all statements in it, without their expressions: there are ten times as many of these."""
    yield tree
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for part in getattr(tree, name, []):
            yield from _statements_of(part)


def items_in(tree: ast.AST) -> Iterator[Item]:
    """Yield the items of the docstrings of a module, its classes, functions and attributes."""
    for owner in _statements_of(tree):
        for statement in getattr(owner, "body", []):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    section = ""
                    for number, line in enumerate(inspect.cleandoc(docstring).split("\n")):
                        if _SECTION.fullmatch(line):
                            section = line[:-1]
                        elif line and not line.startswith(" "):
                            section = ""
                        if number == 0 or (section and re.match(r" {4}\S", line)):
                            yield Item(statement.lineno + number, owner, section, line.strip())


@functools.cache
def items_of(folder: str) -> list[tuple[str, Item]]:
    files = [file for file in files_of(folder) if file.endswith(".py")]
    return [(file, item) for file in files for item in items_in(ast.parse((ROOT / file).read_text(encoding="utf-8")))]


def names_of(owner: ast.AST, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Return the parameters of a function; of a class, those of its constructor, its attributes and its bases'."""
    if not isinstance(owner, ast.ClassDef):
        return {node.arg for node in ast.walk(getattr(owner, "args", owner)) if isinstance(node, ast.arg)}
    names = set()
    for node in ast.walk(owner):
        match node:
            case ast.FunctionDef(name="__init__" | "__new__"):
                names |= names_of(node, classes)
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    bases = [classes[base.id] for base in owner.bases if isinstance(base, ast.Name) and base.id in classes]
    return names.union(*(names_of(base, classes) for base in bases))


@pytest.mark.parametrize("folder", DOCUMENTED)
def test_docstrings_and_their_items_start_with_a_verb_or_a_noun(folder: str) -> None:
    found = [
        f"{file}:{item.line}: {item.text}"
        for file, item in items_of(folder)
        if FRAGMENT.match(_NAMES.sub("", item.text, count=1))
    ]
    assert not found, "\n".join(found)


def test_args_and_attributes_in_docstrings_exist() -> None:
    found = [found for folder in DOCUMENTED for found in items_of(folder)]
    classes = {item.owner.name: item.owner for _, item in found if isinstance(item.owner, ast.ClassDef)}
    unknown = [
        f"{file}:{item.line}: {name}"
        for file, item in found
        if item.section in ("Args", "Attributes") and (match := _NAMES.match(item.text))
        for name in match[1].replace("*", "").split(", ")
        if name not in names_of(item.owner, classes)
    ]
    assert not unknown, "\n".join(unknown)
