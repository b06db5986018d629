"""The modules that a program loads, without those that every interpreter here starts with."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache


def loaded_by(program: str, *arguments: str) -> set[str]:
    """Return the modules that a program has loaded at its end, and their packages.

    A .pth file of some other distribution may load things at each start, parts of `google` among them: these do not
    count, but their package does as soon as the program loads any other module of it.
    """
    added = _loaded_at_the_end(program, *arguments) - _loaded_at_each_start()
    packages = {name[: dot.start()] for name in added for dot in re.finditer(r"\.", name)}
    return {*added, *packages}


@cache
def _loaded_at_each_start() -> frozenset[str]:
    return _loaded_at_the_end("")


def _loaded_at_the_end(program: str, *arguments: str) -> frozenset[str]:
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint()\nprint(*sys.modules)", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.splitlines()[-1].split())
