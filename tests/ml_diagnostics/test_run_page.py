"""The output on the page on `ml-diagnostics run` is that of its commands, but for the numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run.md"

_BY_CHANCE = r" *(unknown|estimated|in parallel|data loading)"
"""Rows that depend on the machine: on a busy one, results are ready when a step is dispatched."""


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def shape(text: str) -> list[str]:
    """Return the lines of a text without numbers and times, their units, and the width of columns."""
    lines = (re.sub(r"[\d.,:+-]+( (ms|us|s|min)\b( \d+ s\b)?)?|\d\S*Z", "#", line) for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line.strip() and not re.match(_BY_CHANCE, line)]


@pytest.mark.timing
def test_the_page_shows_what_its_commands_print(tmp_path: Path) -> None:
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    (tmp_path / "train.py").write_text(block("python"), encoding="utf-8")
    printed = ""
    for line in block("console").splitlines():
        if line.startswith("$ "):
            done = subprocess.run(
                line[2:], shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
            )
            printed += f"{line}\n{done.stdout}{done.stderr}"
    assert shape(printed) == shape(block("console"))
