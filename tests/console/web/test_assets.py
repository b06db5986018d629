"""Static files: only those that are listed, and those of others exactly as vendor.json has them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_console._web.assets import STATIC, Assets

VENDOR = STATIC / "vendor"
PACKAGES = json.loads((VENDOR / "vendor.json").read_text())["packages"]
FILES = [(package, entry) for package in PACKAGES for entry in package["files"]]
_SPEEDSCOPE_BYTES = 600_000
_FONT_AND_CURVE_BYTES = 90_000


def test_the_files_of_others_are_those_of_vendor_json() -> None:
    found = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert found == {entry["file"] for _, entry in FILES} | {"vendor.json"}
    for package, entry in FILES:
        data = (VENDOR / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], (package["name"], entry["file"])


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["name"])
def test_each_package_has_a_version_a_source_and_its_licence(package: dict[str, object]) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", str(package["version"]))
    assert str(package["source"]).startswith("npm:")
    assert package["licence"] in ("MIT", "OFL-1.1", "MIT AND OFL-1.1")
    licences = [entry["file"] for _, entry in FILES if _ is package and "LICENSE" in entry["file"]]
    assert licences
    for name in licences:
        assert len((VENDOR / name).read_text()) > 1000


def test_the_files_of_others_are_small() -> None:
    sizes: dict[bool, int] = {True: 0, False: 0}
    for package, entry in FILES:
        if "LICENSE" not in entry["file"]:
            sizes[package["name"] == "speedscope"] += (VENDOR / entry["file"]).stat().st_size
    assert sizes[True] < _SPEEDSCOPE_BYTES
    assert sizes[False] < _FONT_AND_CURVE_BYTES


def test_a_file_is_found_by_its_listed_name_alone(tmp_path: Path) -> None:
    (tmp_path / "js").mkdir()
    (tmp_path / "js" / "a.js").write_text("a")
    (tmp_path / ".hidden.js").write_text("h")
    (tmp_path / "secret.py").write_text("s")
    (tmp_path.parent / "outside.js").write_text("o")
    (tmp_path / "link.js").symlink_to(tmp_path.parent / "outside.js")
    assets = Assets({"": tmp_path})
    assert assets.names() == ["js/a.js"]
    for name in (
        "js/a.js/",
        "/js/a.js",
        "js//a.js",
        "./js/a.js",
        "js/../js/a.js",
        "JS/A.JS",
        "link.js",
        "secret.py",
        "",
    ):
        assert assets.find(name) is None


def test_files_of_more_than_one_folder_have_names_of_their_own(tmp_path: Path) -> None:
    for folder in ("own", "other"):
        (tmp_path / folder / "js").mkdir(parents=True)
        (tmp_path / folder / "js" / "a.js").write_text(folder)
    assets = Assets({"": tmp_path / "own", "other/": tmp_path / "other", "absent/": tmp_path / "absent"})
    assert assets.names() == ["js/a.js", "other/js/a.js"]
    assert (assets.text("js/a.js"), assets.text("other/js/a.js")) == ("own", "other")
    assert assets.find("absent/a.js") is None
    with pytest.raises(KeyError):
        assets.text("other/b.js")


def test_the_page_has_its_own_files_and_those_of_xprofiler_without_importing_it() -> None:
    program = (
        "import sys; from ml_diagnostics_console._web.assets import STATIC, page_folders; "
        "folders = page_folders(); print(folders[''] == STATIC, folders['xprofiler/'], 'xprofiler' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    is_own, folder, is_imported = done.stdout.split()
    assert (is_own, is_imported) == ("True", "False")
    assert Path(folder).parts[-3:] == ("xprofiler", "serve", "static")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.js"
    path.write_text("one")
    assets = Assets({"": tmp_path})
    first = assets.find("a.js")
    assert first is not None
    assert assets.find("a.js") is first
    path.write_text("two")
    os.utime(path, ns=(1, 1))
    second = assets.find("a.js")
    assert second is not None
    assert (second.data, second.etag != first.etag) == (b"two", True)
    path.unlink()
    assert assets.find("a.js") is None


def test_texts_are_compressed_and_fonts_are_not() -> None:
    assets = Assets()
    script = assets.find("vendor/uplot/uPlot.iife.min.js")
    font = assets.find("vendor/inter/inter-latin-wght-normal.woff2")
    assert script is not None
    assert script.zipped is not None
    assert gzip.decompress(script.zipped) == script.data
    assert font is not None
    assert (font.zipped, font.media_type) == (None, "font/woff2")


def test_vendored_files_are_part_of_the_wheel_and_are_remade_by_a_session() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, str(root / ".ci" / "vendored_files.py"), "--help"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PATH": ""},
    )  # fmt: skip
    assert "npm" in done.stderr  # It stops where npm is missing, and has changed nothing.
    assert "def vendor(" in (root / "noxfile.py").read_text()
