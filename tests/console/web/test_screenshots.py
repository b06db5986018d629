"""The pictures of the page in the documentation are those that `nox -s screenshots` makes, and small."""

from __future__ import annotations

import re

import pytest

from .screenshots import PICTURES, ROOT, SCENES

_MOST_BYTES = 1_500_000
_PAGES = ("docs/how-to/open-the-page.md", "packages/console/README.md", "README.md")


def test_each_scene_has_its_pictures_and_no_others_are_there() -> None:
    wanted = {f"{scene.name}{'-dark' if theme == 'dark' else ''}.png" for scene in SCENES for theme in scene.themes}
    assert {path.name for path in PICTURES.iterdir()} == wanted
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) < _MOST_BYTES


@pytest.mark.parametrize("page", _PAGES)
def test_a_page_shows_pictures_that_are_there(page: str) -> None:
    names = re.findall(r"pictures/ui/([\w-]+\.png)", (ROOT / page).read_text(encoding="utf-8"))
    assert names
    assert [name for name in names if not (PICTURES / name).is_file()] == []
