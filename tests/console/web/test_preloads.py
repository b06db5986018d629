"""The page's shell names all modules that each page imports, so that none waits for another one to be read."""

from __future__ import annotations

import re
from pathlib import Path

from .node import STATIC

_IMPORT = re.compile(r'^(?:import|export)[^;]*?from "(\.[^"]+)"', re.MULTILINE | re.DOTALL)


def imported_by(module: Path) -> set[Path]:
    """Return a module and all modules that it imports before it runs."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = waiting.pop().resolve()
        if path not in found:
            found.add(path)
            waiting += [path.parent / name for name in _IMPORT.findall(path.read_text(encoding="utf-8"))]
    return found


def test_the_shell_preloads_what_the_first_module_imports() -> None:
    shell = (STATIC / "index.html").read_text(encoding="utf-8")
    preloaded = {STATIC / name for name in re.findall(r'modulepreload" href="/static/([^"]+)"', shell)}
    assert all(path.is_file() for path in preloaded)
    main = STATIC / "js" / "main.js"
    assert {path.relative_to(STATIC) for path in imported_by(main) - {main} - preloaded} == set()
