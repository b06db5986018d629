"""Inline ES modules into one script, for a file that cannot load others. Pure.

The modules stay as they are but for their imports and exports: each becomes a function that runs once, when the first
module that imports it does. Understood are the forms that the page's modules have: `import {a, b as c} from`, `import *
as ns from`, `import "..."`, `import("./literal.js")`, `export` of functions, classes, constants and lists. Modules of
another distribution may be missing: then one fails when it is first used, with a sentence.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Final

__all__ = ["ModuleError", "inlined_modules", "module_files", "safe_script"]

_NAMED: Final = re.compile(r"^import\s*\{([^}]*)\}\s*from\s*\"([^\"]+)\";?", re.MULTILINE)
_WHOLE: Final = re.compile(r"^import\s*\*\s*as\s+(\w+)\s+from\s*\"([^\"]+)\";?", re.MULTILINE)
_BARE: Final = re.compile(r"^import\s*\"([^\"]+)\";?", re.MULTILINE)
_DYNAMIC: Final = re.compile(r"import\(\s*\"([^\"]+)\"\s*\)")
_DECLARED: Final = re.compile(r"^export\s+((?:async\s+)?function\s*\*?|class|const|let)\s+(\w+)", re.MULTILINE)
_LISTED: Final = re.compile(r"^export\s*\{([^}]*)\}(?:\s*from\s*\"([^\"]+)\")?;?", re.MULTILINE)
_LEFT: Final = (
    re.compile(r"^[ \t]*(?:import\b(?!\()|export\b).*", re.MULTILINE),
    re.compile(r"import(?:\.meta\b|\((?!\"))"),
)
_OPTIONAL: Final = ("xprofiler/",)
_END: Final = re.compile(r"</(script)", re.IGNORECASE)
_START: Final = '(() => {\n"use strict";\nconst __loaded = new Map();\n'
_LOAD: Final = """function __load(name) {
  let exported = __loaded.get(name);
  if (exported === undefined) {
    exported = {};
    __loaded.set(name, exported);
    try {
      __modules[name](exported);
    } catch (error) {
      __loaded.delete(name);
      throw error;
    }
  }
  return exported;
}
function __define(exported, getters) {
  for (const [key, get] of Object.entries(getters)) Object.defineProperty(exported, key, {get, enumerable: true});
}
const __later = (name) => Promise.resolve().then(() => __load(name));
"""


class ModuleError(Exception):
    """A module has a form that cannot be inlined, or imports one that does not exist."""


def module_files(start: str, read: Callable[[str], str]) -> list[str]:
    """Return the names of all modules that one imports, itself first.

    Args:
        start: The name of the first module, with slashes.
        read: Returns the text of a module.

    Raises:
        ModuleError: A module imports one that does not exist.
    """
    found: dict[str, None] = {start: None}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        for other in _imports_of(name, _text_of(name, read)):
            if other not in found:
                found[other] = None
                waiting.append(other)
    return list(found)


def inlined_modules(start: str, read: Callable[[str], str]) -> str:
    """Return one script that runs a module and all that it imports.

    Args:
        start: The name of the first module, with slashes.
        read: Returns the text of a module; KeyError if there is none.

    Raises:
        ModuleError: A module has a form that cannot be inlined, or imports one that does not exist.
    """
    names = module_files(start, read)
    functions = [f'"{name}": (__exported) => {{\n{_body(name, _text_of(name, read))}\n}},' for name in sorted(names)]
    text = "\n".join([_START, "const __modules = {", *functions, "};", _LOAD, f'__load("{start}");', "})();", ""])
    return safe_script(text)


def safe_script(text: str) -> str:
    """Return a script in which nothing ends its element: with a backslash, the text of strings stays the same."""
    return _END.sub(r"<\\/\1", text).replace("<!--", r"<\!--")


def _text_of(name: str, read: Callable[[str], str]) -> str:
    try:
        return read(name)
    except KeyError:
        if name.startswith(_OPTIONAL):
            return f'throw new Error("This installation lacks {name}.");'
        raise ModuleError(f"there is no module {name}") from None


def _imports_of(name: str, text: str) -> list[str]:
    paths = [found[2] for found in _NAMED.finditer(text)] + [found[2] for found in _WHOLE.finditer(text)]
    paths += [found[1] for found in _BARE.finditer(text)] + [found[1] for found in _DYNAMIC.finditer(text)]
    paths += [found[2] for found in _LISTED.finditer(text) if found[2]]
    return [_resolved(name, path) for path in paths]


def _resolved(name: str, path: str) -> str:
    if path.startswith("/static/"):
        return path.removeprefix("/static/")
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def _body(name: str, text: str) -> str:
    """Return the body of a module's function: getters of its exports first, so that they work in circles, too."""
    exports: dict[str, str] = {found[2]: found[2] for found in _DECLARED.finditer(text)}
    from_others: list[str] = []

    def listed(found: re.Match[str]) -> str:
        for local, public in _pairs(found[1]):
            if found[2]:
                from_others.append(f'{public}: () => __load("{_resolved(name, found[2])}").{local}')
            else:
                exports[public] = local
        return ""

    text = _DECLARED.sub(lambda found: f"{found[1]} {found[2]}", text)
    text = _LISTED.sub(listed, text)
    text = _NAMED.sub(lambda found: _destructured(found[1], _resolved(name, found[2])), text)
    text = _WHOLE.sub(lambda found: f'const {found[1]} = __load("{_resolved(name, found[2])}");', text)
    text = _BARE.sub(lambda found: f'__load("{_resolved(name, found[1])}");', text)
    text = _DYNAMIC.sub(lambda found: f'__later("{_resolved(name, found[1])}")', text)
    code = _without_comments(text)
    for left in filter(None, (form.search(code) for form in _LEFT)):
        raise ModuleError(f"{name} cannot be inlined: {left[0].strip()[:80]}")
    getters = [f"{public}: () => {local}" for public, local in exports.items()] + from_others
    define = f"__define(__exported, {{{', '.join(getters)}}});" if getters else ""
    return f"{define}\n{text.strip()}"


def _pairs(names: str) -> list[tuple[str, str]]:
    """Return the name and the other name of each part of `a, b as c`."""
    parts = [re.split(r"\s+as\s+", part.strip()) for part in names.split(",") if part.strip()]
    return [(part[0], part[-1]) for part in parts]


def _destructured(names: str, other: str) -> str:
    shown = ", ".join(name if name == alias else f"{name}: {alias}" for name, alias in _pairs(names))
    return f'const {{{shown}}} = __load("{other}");'


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*(?://|/?\*).*$", "", text, flags=re.MULTILINE)
