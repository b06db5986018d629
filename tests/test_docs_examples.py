"""Every example of the READMEs and of the docs runs, page by page, as a reader would run it.

A page is one program: its `python` blocks in order, and in between the commands of its `console` blocks: the
lines that start with `$ `; their output is not compared. A block that cannot run here has a comment with the reason
right above it: `<!-- not run: needs a bucket -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("README.md", "examples/*.md", "packages/*/README.md", "docs/**/*.md")
    for page in ROOT.glob(pattern)
)
FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)")
NOT_RUN = re.compile(r"<!-- not run: .{5,} -->")


def program_of(page: Path) -> str:
    """The page as Python, each line where it stands in the page, so that a traceback points into the page."""
    program = []
    language, indent, above = None, "", ""
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line)
        code = ""
        if fence and language is None:
            skipped = NOT_RUN.fullmatch(above.strip())
            language, indent = ("" if skipped else fence["language"]), fence["indent"]
        elif fence:
            language = None
        elif language == "python":
            code = line.removeprefix(indent)
        elif language == "console" and line.lstrip().startswith("$ "):
            code = f"__import__('subprocess').run({line.lstrip()[2:]!r}, shell=True, check=True)"
        program.append(code)
        above = line or above
    return "\n".join(program)


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "page.py"
    script.write_text(program_of(page), encoding="utf-8")
    environ = {
        **os.environ,
        "HOME": str(folder),
        "JAX_PLATFORMS": "cpu",
        "ML_DIAGNOSTICS_BACKEND": "local",
        "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"),
        "ML_DIAGNOSTICS_RAISE": "1",
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
    }
    # What is shown as a test is run as one.
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "\ndef test_" in program_of(page) else []
    return subprocess.run(
        [sys.executable, *runner, str(script)], cwd=folder, env=environ, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("page", [page for page in PAGES if program_of(ROOT / page).strip()])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    done = run_page(ROOT / page, tmp_path)
    assert done.returncode == 0, textwrap.indent(done.stdout[-2000:] + done.stderr[-4000:], "    ")


def test_a_broken_example_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```python\nx = 1\n```\n\n```console\n$ test 1 = 2\nshown\n```\n")
    assert program_of(page).splitlines()[3] == "x = 1"
    assert run_page(page, tmp_path).returncode != 0


def test_a_block_is_left_out_only_with_a_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a cluster -->\n```python\n1 / 0\n```\n```python\nx = 1\n```\n")
    assert program_of(page).split() == ["x", "=", "1"]
    page.write_text("<!-- not run: -->\n```python\n1 / 0\n```\n")
    assert program_of(page).split() == ["1", "/", "0"]
