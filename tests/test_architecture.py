"""The architecture's documentation agrees with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path for path in (ROOT / "packages").iterdir() if (path / "src").is_dir())
EXPLANATION = ROOT / "docs" / "explanation"


def test_the_picture_is_drawn_from_its_source(tmp_path: Path) -> None:
    source = tmp_path / "draw_architecture.py"
    source.write_text((EXPLANATION / "draw_architecture.py").read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, source], check=True)
    assert (tmp_path / "architecture.svg").read_text(encoding="utf-8") == (EXPLANATION / "architecture.svg").read_text(
        encoding="utf-8"
    )


def modules_in(page: str) -> Iterator[str]:
    """Yield the names in the column `modules` of a page's tables."""
    column = None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if "modules" in cells:
            column = cells.index("modules")
        elif not line.startswith("|"):
            column = None
        elif column is not None:
            yield from re.findall(r"`([\w/]+)`", cells[column])


@pytest.mark.parametrize("package", [path.name for path in PACKAGES])
def test_the_page_of_a_package_names_its_modules_and_no_others(package: str) -> None:
    (source,) = (path for path in (ROOT / "packages" / package / "src").iterdir() if (path / "__init__.py").exists())
    names = set(modules_in((ROOT / "packages" / package / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    missing = {name for name in names if not (source / name).is_dir() and not (source / f"{name}.py").is_file()}
    assert missing == set()
    modules = {path.stem for path in source.glob("*.py")} | {path.parent.name for path in source.glob("*/__init__.py")}
    assert modules - {name.split("/")[0] for name in names} <= {"__init__", "__main__", "_version"}


def test_the_page_for_newcomers_names_modules_that_exist() -> None:
    page = (EXPLANATION / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Where do I add ...") :]
    sources = [source for package in PACKAGES for source in (package / "src").iterdir() if source.is_dir()]
    code = "\n".join(path.read_text(encoding="utf-8") for source in sources for path in source.rglob("*.py"))
    for name in re.findall(r"`([\w/.]+)`", table):
        module, _, attribute = name.partition(".")
        if name.startswith("tests/"):
            assert (ROOT / name).is_file(), name
        elif attribute or "/" in name:
            found = [source / f"{module}.py" for source in sources] + [
                source / module / "__init__.py" for source in sources
            ]
            texts = [path.read_text(encoding="utf-8") for path in found if path.is_file()]
            assert any(re.search(rf"\b{attribute}\b", text) for text in texts), name
        else:
            is_module = any((source / f"{name}.py").is_file() or (source / name).is_dir() for source in sources)
            assert is_module or re.search(rf"\b(class|def) {name}\b|\b{name}[:=]", code), name
