"""The command `tpu-stacks` in this process: `run("show", path)` returns its exit code, output and errors."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from cloud_tpu_diagnostics._stacks.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _not_elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unload what other tests import: a job with it is elastic, and has no fast-fail."""
    monkeypatch.delitem(sys.modules, "ml_goodput_measurement.goodput_elastic", raising=False)


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
