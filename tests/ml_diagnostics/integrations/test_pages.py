"""Each page on a framework shows a program that runs with the real framework, and the output of its commands.

Numbers, times and the widths of columns may differ. `python tests/ml_diagnostics/integrations/test_pages.py` writes the
present output into the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[3] / "docs/how-to/integrations"
_BLOCK = re.compile(
    r"(?:<!-- (?P<note>not run[^\n]+) -->\n)?```(?P<language>python|console)\n(?P<text>.*?)```\n", re.DOTALL
)
_LONGEST_SECONDS = 280
_NOT_RUN = "not run: needs"
_NEEDS = re.compile(r"<!-- needs: (.+) -->")
_SAVED_AS = re.compile(r"not run: saved as (\S+)")


def missing(page: Path) -> list[str]:
    """Return the packages that a page needs and that are not installed."""
    found = _NEEDS.search(page.read_text(encoding="utf-8"))
    return [name for name in found[1].split(", ") if find_spec(name.split(".")[0]) is None] if found else []


def run(command: str | list[str], folder: Path) -> str:
    ours = {
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": str(folder),
        "JAX_PLATFORMS": "cpu",
        "ML_DIAGNOSTICS_BACKEND": "local",
        "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"),
        "ML_DIAGNOSTICS_RAISE": "1",
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
    }
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=_LONGEST_SECONDS,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def page_with_output(page: Path, folder: Path) -> str:
    """Run a page, and return its text with the output of its commands."""

    def block(found: re.Match[str]) -> str:
        if (found["note"] or "").startswith(_NOT_RUN):
            return found[0]
        if found["language"] == "python":
            saved = _SAVED_AS.match(found["note"] or "")
            program = folder / (saved[1] if saved else "page.py")
            program.write_text(found["text"], encoding="utf-8")
            if not saved:
                run([sys.executable, program.name], folder)
            return found[0]
        shown = []
        for line in found["text"].splitlines():
            if line.startswith("$ "):
                output = run(line[2:], folder).strip("\n").splitlines()
                shown += [line, *(each.rstrip() for each in output)]
        start = found.start("text") - found.start()
        return found[0][:start] + "\n".join(shown) + "\n```\n"

    return _BLOCK.sub(block, page.read_text(encoding="utf-8"))


def comparable(text: str) -> list[str]:
    """Return the lines of a page without what differs between two runs, as whether the last step was ready in time."""
    text = re.sub(r"^ +estimated: .*\n(\n(?= +in parallel))?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\S*\d\S*( (ns|us|ms|s|min|h|k?B)\b)?|[▁▂▃▄▅▆▇█]+", "0", text)
    return [re.sub(r"[\s-]+", " ", line).strip() for line in text.splitlines()]


@pytest.mark.timeout(300)  # Ray alone takes a minute, and more beside other work.
@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_shows_the_real_output_of_its_program(page: Path, tmp_path: Path) -> None:
    if names := missing(page):
        pytest.skip(f"{', '.join(names)} is not installed: `nox -s integrations` has it")
    assert comparable(page_with_output(page, tmp_path)) == comparable(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for page in sys.argv[1:] or sorted(map(str, PAGES.glob("*.md"))):
        if not missing(Path(page)):
            with tempfile.TemporaryDirectory() as folder:
                Path(page).write_text(page_with_output(Path(page), Path(folder)), encoding="utf-8")
