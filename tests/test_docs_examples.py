"""Every example of the READMEs and of the docs runs, page by page, as a reader would run it.

A page is one program: its `python` blocks in order, and in between the commands of its `console` blocks: the
lines that start with `$ `. Each word of the output that a page shows must be in the real one; numbers differ. Right
above a block, a comment has the exit code of a command that fails (`<!-- exits 1 -->`), the name of a file that the
block is to be saved as (`<!-- saved as train.py -->`), or why it cannot run here (`<!-- not run: needs a bucket -->`).
A page is left out where a package is missing that it names: `<!-- needs: keras -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("README.md", "examples/*.md", "packages/*/README.md", "docs/**/*.md")
    for page in ROOT.glob(pattern)
)
MOST_WORDS = 4_000
VARYING = {"program", "startup", "unknown"}
"""Buckets that a report omits if no time was in them."""
if (
    find_spec("jaxlib") and version("jaxlib") < "0.7"
):  # On Python 3.10: its profiles have only some of a CPU's operations.
    VARYING |= {"compute", "bound"}
FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)")
NEEDS = re.compile(r"<!-- needs: (.+) -->")
EXITS = re.compile(r"<!-- exits (\d+) -->")
SAVED = re.compile(r"<!-- saved as ([\w.-]+) -->")
NOT_RUN = re.compile(r"<!-- not run: .{5,} -->")


def program_of(page: Path) -> str:
    """The page as Python, each line where it stands in the page, so that a traceback points into the page."""
    program = []
    language, indent, above, exit_code = None, "", "", "0"
    saved, file = list[str](), None
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line)
        code = ""
        if fence and language is None:
            skipped = NOT_RUN.fullmatch(above.strip())
            language, indent = ("" if skipped else fence["language"]), fence["indent"]
            failing = EXITS.fullmatch(above.strip())
            exit_code = failing[1] if failing else "0"
            saved, file = [], SAVED.fullmatch(above.strip())
        elif fence:
            if file:
                code = f"__import__('pathlib').Path({file[1]!r}).write_text({chr(10).join(saved)!r})"
            language = file = None
        elif file:
            saved.append(line.removeprefix(indent))
        elif language == "python":
            code = line.removeprefix(indent)
        elif language == "console" and line.lstrip().startswith("$ "):
            command = f"({line.lstrip()[2:]})\ntest $? = {exit_code}"
            code = f"__import__('subprocess').run({command!r}, shell=True, check=True)"
        program.append(code)
        above = line or above
    return "\n".join(program)


def words_shown(page: Path) -> set[str]:
    """Return the words in the output of the console blocks of a page; paths and what is cut with `...` are left out."""
    shown = set[str]()
    language, above = None, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line)
        if fence and language is None:
            language = "" if NOT_RUN.fullmatch(above.strip()) else fence["language"]
        elif fence:
            language = None
        elif language == "console" and not line.lstrip().startswith("$ "):
            shown |= set(re.findall(r"(?<![\w/])[A-Za-z]{4,}(?![\w/])", line))
        above = line or above
    return shown


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "page.py"
    script.write_text(program_of(page), encoding="utf-8")
    if not (folder / "examples").exists():  # A page may start from the root of a checkout.
        (folder / "examples").symlink_to(ROOT / "examples")
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
    needs = NEEDS.search((ROOT / page).read_text(encoding="utf-8"))
    for package in needs[1].split(", ") if needs else ():
        if find_spec(package.split(".")[0]) is None:
            session = "beam" if package == "apache_beam" else "integrations"
            pytest.skip(f"{package} is not installed: `nox -s {session}` has it")
    done = run_page(ROOT / page, tmp_path)
    assert done.returncode == 0, textwrap.indent(done.stdout[-2000:] + done.stderr[-4000:], "    ")
    missing = {word for word in words_shown(ROOT / page) - VARYING if word not in done.stdout + done.stderr}
    assert not missing, textwrap.indent(done.stdout + done.stderr, "    ")


def test_a_broken_example_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```python\nx = 1\n```\n\n```console\n$ test 1 = 2\nshown\n```\n")
    assert program_of(page).splitlines()[3] == "x = 1"
    assert run_page(page, tmp_path).returncode != 0


def test_a_command_may_fail_only_with_the_exit_code_that_is_shown(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- exits 3 -->\n```console\n$ exit 3\n```\n")
    assert run_page(page, tmp_path).returncode == 0
    page.write_text("<!-- exits 3 -->\n```console\n$ exit 4\n```\n")
    assert run_page(page, tmp_path).returncode != 0


def test_a_block_is_saved_as_the_file_that_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- saved as a.py -->\n```python\nprint(1)\n```\n```console\n$ python a.py\n1\n```\n")
    assert run_page(page, tmp_path).stdout == "1\n"


def test_the_words_of_an_output_are_known(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n```console\n$ goodput report last\nlast: 45.9 % goodput, in /tmp/folder/train.py\n```\n")
    assert words_shown(page) == {"last", "goodput"}


def test_a_block_is_left_out_only_with_a_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a cluster -->\n```python\n1 / 0\n```\n```python\nx = 1\n```\n")
    assert program_of(page).split() == ["x", "=", "1"]
    page.write_text("<!-- not run: -->\n```python\n1 / 0\n```\n")
    assert program_of(page).split() == ["1", "/", "0"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_enough_to_read(page: str) -> None:
    """The session `docs` counts the pages of the API once more, as they are built from docstrings."""
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= MOST_WORDS
