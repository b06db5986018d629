"""Each block of a README works when it is pasted alone, in an environment that the README's own install line makes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from .reference_environment import ReferenceUnavailableError, make_environment
from .test_docs_examples import EXITS, FENCE, NOT_RUN, ROOT, SAVED

pytestmark = pytest.mark.slow  # A minute, and an environment for each README: `.ci/run` and `nox -s slow` run it.

READMES = sorted(str(page.relative_to(ROOT)) for page in [ROOT / "README.md", *ROOT.glob("packages/*/README.md")])
INSTALL_PAGE = "docs/how-to/install.md"
LIGHT = """
import time
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import debug_configuration, diagnostic_configuration, stack_trace_configuration
from google_cloud_mldiagnostics import machinelearning_run, metrics
from ml_goodput_measurement import goodput

recorder = goodput.GoodputRecorder("light", "goodput_light", logging_enabled=True)
traces = stack_trace_configuration.StackTraceConfig(collect_stack_trace=True, stack_trace_to_cloud=False)
config = diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(traces))
run = machinelearning_run("light")
recorder.record_job_start_time(1_000_000_000.0)
with diagnostic.diagnose(config):
    for step in range(9):
        recorder.record_step_start_time(step, 1_000_000_010.0 + 10 * step)
        metrics.record("loss", 1.0, step=step)
recorder.record_job_end_time(1_000_000_100.0)
run.finish()
print(round(goodput.GoodputCalculator("light", "goodput_light").get_job_goodput()[0], 6))
"""


class Block(NamedTuple):
    """A block of a page.

    Attributes:
        language: Its language.
        text: Its lines.
        exit_code: The exit code of its commands, which a comment above it has.
        saved_as: The name of the file that it is saved as instead of run; empty for none.
    """

    language: str
    text: str
    exit_code: int
    saved_as: str


def blocks(page: str, *languages: str) -> list[Block]:
    """Return a page's blocks in order, without those with a reason not to run."""
    found = []
    language, above, lines = None, "", list[str]()
    exits = saved = None
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line)
        if fence and language is None:
            language = "" if NOT_RUN.fullmatch(above.strip()) else fence["language"]
            exits, saved = EXITS.fullmatch(above.strip()), SAVED.fullmatch(above.strip())
        elif fence:
            if language in languages:
                code = int(exits[1]) if exits else 0
                found.append(Block(language or "", "\n".join(lines), code, saved[1] if saved else ""))
            language, lines = None, []
        elif language is not None:
            lines.append(line)
        above = line or above
    return found


def install_commands(page: str) -> list[list[str]]:
    """Return the arguments of the `pip install` commands of a page's first block that has one."""
    for block in blocks(page, "sh"):
        commands = [
            shlex.split(command, comments=True)
            for command in re.findall(r"^pip install .*", block.text.replace("\\\n", " "), re.M)
        ]
        if commands:
            return [words[2:] for words in commands]
    raise AssertionError(f"{page} does not show how to install it")


def environment(folder: Path, *installs: list[str]) -> Path:
    try:
        return make_environment(folder, *installs, constraints=ROOT / "requirements" / "tests.txt")
    except ReferenceUnavailableError as error:
        return skip_offline(error)


def skip_offline(error: ReferenceUnavailableError) -> NoReturn:
    """Skip where the package index is out of reach; an install line that is wrong fails."""
    if re.search("sending request|dns|connect|timed out|temporary failure|network", str(error), re.IGNORECASE):
        pytest.skip(f"the package index cannot be reached: {error}")
    raise error


def run(command: list[str] | str, python: Path, folder: Path, exit_code: int = 0) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ML_DIAGNOSTICS_", "PYTHON"))}
    environ |= {
        "HOME": str(folder),
        "JAX_PLATFORMS": "cpu",
        "ML_DIAGNOSTICS_BACKEND": "local",
        "PATH": str(python.parent) + os.pathsep + os.environ["PATH"],
    }
    done = subprocess.run(
        command, shell=isinstance(command, str), cwd=folder, env=environ, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == exit_code, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("page", READMES)
def test_each_block_of_a_readme_works_when_pasted_alone(page: str, tmp_path: Path) -> None:
    to_run = blocks(page, "python", "console")
    if not any(block.language == "python" for block in to_run):
        install_commands(page)
        return
    python = environment(tmp_path / "environment", *install_commands(page))
    home = tmp_path / "home"
    for number, block in enumerate(to_run):
        folder = home / str(number)
        folder.mkdir(parents=True)
        if block.saved_as:
            (home / block.saved_as).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            script = folder / ("test_block.py" if "\ndef test_" in block.text else "block.py")
            script.write_text(block.text, encoding="utf-8")
            runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if script.name.startswith("test_") else []
            run([str(python), *runner, str(script)], python, home)
        for line in block.text.splitlines():
            if block.language == "console" and line.startswith("$ "):
                run(line[2:], python, home, block.exit_code)


def test_the_light_installation_records_and_reports(tmp_path: Path) -> None:
    light = next(block.text for block in blocks(INSTALL_PAGE, "sh") if "--no-deps" in block.text)
    installs = [shlex.split(line)[2:] for line in light.splitlines()]
    python = environment(tmp_path / "environment", *installs)
    installed = run(
        [str(python), "-c", "from importlib.metadata import distributions as d; print(len([*d()]))"], python, tmp_path
    )
    assert 5 <= int(installed) <= 5 + 2  # msgspec and four of ours; pip and setuptools, where the environment has them
    (tmp_path / "light.py").write_text(LIGHT)
    assert run([str(python), str(tmp_path / "light.py")], python, tmp_path).splitlines()[-1] == "90.0"
    assert "90.00 % goodput" in run("goodput report last", python, tmp_path)
    assert "light" in run("mldiagnostics show last", python, tmp_path)
    assert "loss" in run("mldiagnostics metrics last", python, tmp_path)


def test_the_editor_loop_of_the_contributing_page_installs_everything(tmp_path: Path) -> None:
    (line,) = re.findall(r"^\.venv/bin/pip install \$\(.*\)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    arguments = subprocess.run(
        ["sh", "-c", f"echo {line.removeprefix('.venv/bin/pip install ')}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert arguments.count("-e") == len(list(ROOT.glob("packages/*")))
    # Editable builds write beside the sources: a copy, so that the checkout's own environment is left alone.
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "packages", copy / "packages", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    try:
        python = make_environment(
            tmp_path / "environment", arguments, constraints=ROOT / "requirements" / "tests.txt", root=copy
        )
    except ReferenceUnavailableError as error:
        skip_offline(error)
    names = (
        "ml_diagnostics_common, ml_goodput_measurement, cloud_tpu_diagnostics, google_cloud_mldiagnostics, xprofiler"
    )
    imported = run([str(python), "-c", f"import {names}; print(xprofiler.__file__)"], python, tmp_path)
    assert str(copy) in imported
    assert sys.prefix not in imported
