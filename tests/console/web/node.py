"""Modules of the page in Node.js, which has no document: pure ones give the same results there as in a browser."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_console._web.assets import page_folders


def _copied() -> Path:
    """Return one folder with the page's files as they are served, so that modules find each other by their names."""
    root = Path(tempfile.mkdtemp(prefix="ml-diagnostics-page-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for prefix, folder in page_folders().items():
        shutil.copytree(folder, root / prefix, ignore=shutil.ignore_patterns("*.py", "__pycache__"), dirs_exist_ok=True)
    return root


STATIC = _copied()
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
_SECONDS = 60


def run_script(script: str, given: Any = None) -> Any:
    """Run the body of a module, and return what it passes to `answer`.

    Args:
        script: Statements; `given` has the values, `load(name)` imports a module by its path from `static/js`.
        given: A value of JSON; NaN and infinity are passed as texts.
    """
    assert NODE is not None
    text = f"""
import {{ readFileSync }} from "node:fs";
const given = JSON.parse(readFileSync(0, "utf-8"));
const load = (name) => import({json.dumps((STATIC / "js").as_uri())} + "/" + name);
const answer = (value) => process.stdout.write(JSON.stringify(value));
{script}
"""
    done = subprocess.run(
        [NODE, "--input-type=module", "--eval", text],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
