"""The reference lists what users can use: the modules without an underscore, and no others."""

import pkgutil
import re
from pathlib import Path

import ml_diagnostics_testing

_PAGES = (Path(__file__).parents[2] / "docs" / "reference").glob("testing*.md")


def test_the_reference_lists_exactly_the_public_modules() -> None:
    found = pkgutil.walk_packages(ml_diagnostics_testing.__path__, "ml_diagnostics_testing.")
    public = {module.name for module in found if "._" not in module.name}
    listed = [name for page in _PAGES for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.M)]
    assert sorted(listed) == sorted(public)
