"""Modules become one script that runs as they did."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ml_diagnostics_console._web.assets import Assets
from ml_diagnostics_console._web.case_page import case_page
from ml_diagnostics_console._web.modules import ModuleError, inlined_modules, safe_script

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


def _run(modules: dict[str, str]) -> str:
    assert NODE is not None
    script = inlined_modules("main.js", modules.__getitem__)
    done = subprocess.run([NODE, "-e", script], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


@needs_node
def test_imports_and_exports_of_each_form_work() -> None:
    modules = {
        "main.js": (
            'import { one, two as zwei, Three } from "./lib/a.js";\n'
            'import * as all from "./lib/a.js";\n'
            'import "./lib/effect.js";\n'
            "import {\n  four,\n  five,\n} from './lib/b.js';\n".replace("'", '"')
            + 'const later = await0();\nfunction await0() { return import("./lib/c.js"); }\n'
            "console.log(one, zwei(), new Three().x, Object.keys(all).sort().join(), four, five());\n"
            "later.then((c) => console.log(c.six, c.counter.n));\n"
        ),
        "lib/a.js": (
            "export const one = 1;\nexport function two() { return one + 1; }\n"
            "export class Three { x = 3; }\nlet n = 5;\nexport { n as count };\n"
        ),
        "lib/b.js": 'export let four = 4;\nexport async function later() {}\nexport { two as five } from "./a.js";\n',
        "lib/c.js": 'import { counter } from "./effect.js";\nexport const six = 6;\nexport { counter };\n',
        "lib/effect.js": "export const counter = { n: 0 };\ncounter.n += 1;\n",
    }
    assert _run(modules) == "1 2 3 Three,count,one,two 4 2\n6 1\n"


@needs_node
def test_modules_in_a_circle_work() -> None:
    modules = {
        "main.js": 'import { even } from "./even.js";\nconsole.log(even(10));\n',
        "even.js": 'import { odd } from "./odd.js";\nexport function even(n) { return n === 0 || odd(n - 1); }\n',
        "odd.js": (
            'import * as other from "./even.js";\nexport function odd(n) { return n !== 0 && other.even(n - 1); }\n'
        ),
    }
    assert _run(modules) == "true\n"


@needs_node
def test_a_module_of_another_distribution_that_is_missing_fails_when_it_is_used() -> None:
    modules = {
        "main.js": (
            'const draw = () => import("./xprofiler/a.js");\nconsole.log("starts");\n'
            "draw().catch((error) => console.log(error.message));\n"
            "draw().catch((error) => console.log(error.message));\n"
        )
    }
    sentence = "This installation lacks xprofiler/a.js.\n"
    assert _run(modules) == f"starts\n{sentence}{sentence}"


@pytest.mark.parametrize(
    "text",
    [
        "export default 1;",
        'import thing from "./a.js";',
        "console.log(import.meta.url);",
        "const x = await import(name);",
        'export * from "./a.js";',
        'import { a } from "./missing.js";',
    ],
)
def test_a_form_that_is_not_understood_is_an_error(text: str) -> None:
    modules = {"main.js": text, "a.js": ""}
    with pytest.raises(ModuleError):
        inlined_modules("main.js", modules.__getitem__)


def test_nothing_in_a_script_ends_its_element() -> None:
    script = safe_script('const a = "</script><!-- <script>"; // </SCRIPT >')
    assert "</script" not in script.lower()
    assert "<!--" not in script


@needs_node
def test_the_modules_of_the_page_become_a_valid_script(tmp_path: Path) -> None:
    assert NODE is not None
    script = tmp_path / "page.js"
    script.write_text(inlined_modules("js/main.js", Assets().text))
    subprocess.run([NODE, "--check", str(script)], check=True, timeout=30)


def test_the_page_of_a_case_file_refers_to_nothing_outside() -> None:
    page = case_page(Assets(), "a <b> & c", "")
    assert "<title>a &lt;b> &amp; c</title>" in page
    assert "connect-src 'none'" in page
    for forbidden in ('src="', 'href="/static', "unsafe-inline", "@import", "url(/", 'url("../'):
        assert forbidden not in page
