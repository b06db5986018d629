"""Environment of the programs that an observed process starts, which are not the job, or becomes, which is."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["keep_from_children"]

_PATH: Final = "PYTHONPATH"


def keep_from_children(folder: str, before_replacement: Callable[[], None]) -> None:
    """Take our folder out of PYTHONPATH, and put it there again for a program that this process becomes by `os.exec*`.

    Args:
        folder: The folder of the start-up module.
        before_replacement: Called before this process becomes another program.
    """
    paths = os.environ.get(_PATH, "").split(os.pathsep)
    if folder not in paths:
        return
    _set_path([path for path in paths if path != folder])
    if hasattr(os, "fork"):  # Elsewhere, another process replaces this one.
        _observe_replacement(folder, before_replacement)


def _set_path(paths: list[str]) -> None:
    if paths:
        os.environ[_PATH] = os.pathsep.join(paths)
    else:
        os.environ.pop(_PATH, None)


def _observe_replacement(folder: str, before_replacement: Callable[[], None]) -> None:
    execv: Any = os.execv
    execve: Any = os.execve
    pid = os.getpid()

    def is_replaced() -> bool:
        """Prepare for the end of this program; return False in a forked child, which is not the job."""
        if os.getpid() != pid:
            return False
        before_replacement()
        return True

    @functools.wraps(execv)
    def execv_observed(path: Any, argv: Any, /) -> None:
        before = os.environ.get(_PATH)
        if is_replaced():
            os.environ[_PATH] = _with(folder, before)
        try:
            execv(path, argv)
        finally:  # It failed.
            _set_path([] if before is None else [before])

    @functools.wraps(execve)
    def execve_observed(path: Any, argv: Any, env: Any) -> None:
        if is_replaced() and isinstance(env, Mapping):
            env = {**env, _PATH: _with(folder, env.get(_PATH))}
        execve(path, argv, env)

    # `os.execl`, `os.execvp` and the others call these by their names in the module.
    os.execv, os.execve = execv_observed, execve_observed  # type: ignore[assignment]


def _with(folder: str, paths: Any) -> str:
    return os.pathsep.join([folder, *([paths] if isinstance(paths, str) and paths else [])])
