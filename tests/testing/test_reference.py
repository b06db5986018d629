"""The reference lists what users can use: the modules without an underscore, and no others."""

import pkgutil
import re
from pathlib import Path

import ml_diagnostics_testing

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "testing.md"


def test_the_reference_lists_exactly_the_public_modules() -> None:
    found = pkgutil.walk_packages(ml_diagnostics_testing.__path__, "ml_diagnostics_testing.")
    public = {module.name for module in found if "._" not in module.name}
    assert set(re.findall(r"^::: (\S+)", _PAGE.read_text(encoding="utf-8"), re.M)) == public
