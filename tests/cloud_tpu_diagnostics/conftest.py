"""The command `tpu-stacks` in this process: `run("show", path)` returns its exit code, output and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cloud_tpu_diagnostics._stacks.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def show(run: Run) -> Run:
    return lambda *arguments: run("show", *arguments)
