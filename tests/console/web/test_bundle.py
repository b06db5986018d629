"""The page's code reaches a browser as one script and one style sheet, kept by their hash, made of the modules."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from ml_diagnostics_console._web.app import make_app
from ml_diagnostics_console._web.assets import STATIC, Assets, page_folders
from ml_diagnostics_console._web.bundle import Bundle, page_script
from ml_diagnostics_console._web.case_page import case_page
from ml_diagnostics_console._web.guard import Guard
from ml_diagnostics_console._web.modules import ModuleError
from ml_diagnostics_console._web.stripping import stripped_script, stripped_style

from tests.console.web.node import NODE, needs_node

_ADDRESS = re.compile(r"/static/(v/\w+/[\w./-]+)")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the page's own files, which may be changed."""
    return Path(shutil.copytree(STATIC, tmp_path / "static"))


def bundle_of(folder: Path) -> Bundle:
    return Bundle(Assets({**page_folders(), "": folder}))


def addresses(bundle: Bundle) -> dict[str, str]:
    """Return the addresses that the shell has, by the name at their end."""
    found = _ADDRESS.findall(bundle.shell(has_charts=False).data.decode())
    return {address.split("/", 2)[2]: address for address in found}


@needs_node
def test_texts_templates_and_regular_expressions_stay_as_they_are() -> None:
    assert NODE is not None
    script = r"""
    // A comment with a ` and a { and a ".
    const name = "a  // b", other = 'c  /* d */';
    const inner = (one) => `x  ${one ? `  of  ${[1, 2].map((each) => `<${each}>  // no`).join("  ")}` : ""}  end`;
    /** `Another` one. */
    const hostile = `a \` b \${c}  ${"`  }"}  ${{ a: "  }" }.a}`;
    const found = "a/b`c".replace(/[/`]  ?/g, (each) => `[${each}]`), half = 10 / 2 / 5;
    function later() {
      return /`{2}/.test("``")
    }
    let counter = 1
    ++counter
    console.log(JSON.stringify([name, other, inner(true), inner(false), hostile, found, half, later(), counter]))
    """
    outputs = [
        subprocess.run([NODE, "-e", text], capture_output=True, text=True, timeout=30, check=True).stdout
        for text in (script, stripped_script(script))
    ]
    assert outputs[0] == outputs[1]
    assert "comment with" not in stripped_script(script)
    assert "Another" not in stripped_script(script)


@pytest.mark.parametrize("text", ["const a = `b", "const a = `${b", "const a = '\ue000';"])
def test_a_script_that_cannot_be_stripped_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"does not end|private use"):
        stripped_script(text)
    with pytest.raises(ModuleError):
        page_script(_Texts({"js/main.js": text}), "js/main.js")


class _Texts(Assets):
    """Files in memory."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__({})
        self._texts = texts

    def text(self, name: str) -> str:
        return self._texts[name]


def test_a_style_keeps_what_its_spaces_mean() -> None:
    style = 'a > b , c d { width: calc(1px + 2px); /* x */ content: "a  b"; }\n@media (max-width: 9px) { a { top: 0 } }'
    assert stripped_style(style) == ('a>b,c d{width:calc(1px + 2px);content:"a  b"}@media (max-width:9px){a{top:0}}')


def test_the_shell_names_one_script_and_one_style_and_has_nothing_inside() -> None:
    bundle = Bundle(Assets())
    plain, charts = (bundle.shell(has_charts=has_charts).data.decode() for has_charts in (False, True))
    assert len(re.findall(r"<script", plain)) == 2
    assert len(re.findall(r"<script", charts)) == 3
    assert len(re.findall(r'rel="stylesheet"', plain)) == 1
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son\w+=", charts) == []
    for target in re.findall(r'(?:src|href)="([^"#]+)"', charts):
        found = _ADDRESS.fullmatch(target)
        assert found is not None, target
        _, version, name = found[1].split("/", 2)
        asset = bundle.find(name)
        assert asset is not None
        assert asset.version == version


def test_each_file_that_the_code_names_is_there() -> None:
    bundle = Bundle(Assets())
    for name in ("page.js", "page.css"):
        asset = bundle.find(name)
        assert asset is not None
        targets = re.findall(r'[("]/static/(?:v/(\w+)/)?([^")]+)', asset.data.decode())
        assert targets
        for version, target in targets:
            found = bundle.find(target)
            assert found is not None, target
            assert version in ("", found.version)


@needs_node
def test_the_script_is_valid_and_names_its_modules(tmp_path: Path) -> None:
    assert NODE is not None
    asset = Bundle(Assets()).find("page.js")
    assert asset is not None
    (tmp_path / "page.js").write_bytes(asset.data)
    subprocess.run([NODE, "--check", str(tmp_path / "page.js")], check=True, timeout=30)
    lines = asset.data.decode().split("\n")
    for name in ("js/main.js", "js/pages/runs.js", "js/draw/chart.js", "common/dom.js"):
        assert sum(f'"{name}":(__exported)=>' in line[: len(name) + 40] for line in lines) == 1, name
    assert "async function show(" in asset.data.decode()


def test_it_is_made_once_and_again_after_an_edit(copied: Path) -> None:
    bundle = bundle_of(copied)
    first = bundle.shell(has_charts=False)
    script = bundle.find("page.js")
    assert bundle.shell(has_charts=False) is first
    assert bundle.find("page.js") is script
    before = addresses(bundle)
    main = copied / "js" / "main.js"
    main.write_text(main.read_text("utf-8") + 'console.log("edited");\n', "utf-8")
    os.utime(main, ns=(1, 1))
    after = addresses(bundle)
    assert {name for name in before if before[name] != after[name]} == {"page.js"}
    changed = bundle.find("page.js")
    assert changed is not None
    assert b'console.log("edited")' in changed.data


def test_an_edit_of_a_font_changes_the_style_that_names_it(copied: Path) -> None:
    bundle = bundle_of(copied)
    before = addresses(bundle)
    font = copied / "vendor" / "inter" / "inter-latin-wght-normal.woff2"
    font.write_bytes(font.read_bytes() + b"\0")
    after = addresses(bundle)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"page.css", "vendor/inter/inter-latin-wght-normal.woff2"}


def test_a_file_that_is_missing_is_a_sentence(copied: Path) -> None:
    (copied / "css" / "base.css").unlink()
    with pytest.raises(ModuleError, match=r"this installation lacks the file static/css/base\.css"):
        bundle_of(copied).shell(has_charts=False)


def test_the_server_says_what_an_installation_lacks(copied: Path) -> None:
    (copied / "js" / "main.js").unlink()
    nothing = cast("Any", None)
    app = make_app(nothing, nothing, nothing, Assets({**page_folders(), "": copied}), Guard(), None)
    for path in ("/", "/static/v/0/page.js"):
        assert asyncio.run(answer_of(app, path)) == (500, "there is no module js/main.js")
    assert asyncio.run(answer_of(app, "/static/js/router.js"))[0] == 200


async def answer_of(app: Any, path: str) -> tuple[int, str]:
    """Return the status and the body of an answer of an application, without a socket."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    await app({**scope, "headers": [(b"host", b"127.0.0.1:1")], "scheme": "http"}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()


def test_a_style_of_another_distribution_may_be_missing() -> None:
    folders = {prefix: folder for prefix, folder in page_folders().items() if prefix != "xprofiler/"}
    style = Bundle(Assets(folders)).find("page.css")
    assert style is not None
    assert len(style.data) > 10_000


def test_a_case_file_has_the_same_code_inside() -> None:
    assets = Assets()
    page = case_page(assets, "a", "")
    assert page.count("<style>") == 1
    assert page_script(assets, "js/main.js") in page
    assert "/* " not in page[page.index("<style>") : page.index("</style>")]


def test_the_page_s_own_files_stay_light(copied: Path) -> None:
    """Keep the weight of all pages together in view: compressed as they are sent, without fonts and uPlot."""
    bundle = bundle_of(copied)
    assert {"page.js", "page.css", "js/early.js"} <= set(addresses(bundle))
    files = [bundle.shell(has_charts=True), *map(bundle.find, ("page.js", "page.css", "js/early.js"))]
    sizes = [len(each.zipped or each.data) for each in files if each is not None]
    assert len(sizes) == len(files)
    assert sum(sizes) <= 90_000
