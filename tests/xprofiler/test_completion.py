"""The completion scripts, in the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from xprofiler.cli import COMMAND_NAMES

from .conftest import Run

_ASK = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_xprofiler
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completed(run: Run, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return the completions of bash for the last word."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    script = tmp_path / "completion"
    script.write_text(run("completion", "bash").output)

    def offered(*words: str) -> list[str]:
        argv = [bash, "--norc", "-c", _ASK, "bash", str(script), "xprofiler", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    return offered


def test_bash_completes_commands(completed) -> None:  # type: ignore[no-untyped-def]
    assert set(COMMAND_NAMES) <= set(completed(""))
    assert completed("de") == ["delete"]
    assert completed("--ver") == ["--version"]


def test_bash_completes_the_flags_of_a_command(completed) -> None:  # type: ignore[no-untyped-def]
    assert completed("list", "--fo") == ["--format"]
    assert completed("-a", "delete", "--qu") == ["--quiet"]
    assert completed("delete", "-z", "a-zone", "--fo") == []
    assert "--hosts" in completed("capture", "-")


def test_bash_completes_the_values_of_a_flag(completed) -> None:  # type: ignore[no-untyped-def]
    assert completed("list", "--format", "") == ["table", "json", "yaml", "csv"]
    assert completed("capture", "-f", "j") == ["jax"]
    assert completed("completion", "z") == ["zsh"]
    assert completed("list", "--format", "json", "--zo") == ["--zones"]


def test_bash_completes_files_without_the_script(completed) -> None:  # type: ignore[no-untyped-def]
    assert completed("serve", "-l", "./lo") == []
    assert completed("summary", "logs/") == []


def test_bash_accepts_the_script_as_in_the_help(run: Run, tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = tmp_path / "completion"
    script.write_text(run("completion", "bash").output)
    asked = 'source <(cat "$1"); complete -p xprofiler'
    ended = subprocess.run(
        ["bash", "--norc", "-c", asked, "bash", str(script)], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "complete -o bashdefault -F _shtab_xprofiler xprofiler\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_is_well_formed_and_knows_every_command(run: Run, tmp_path: Path, shell: str) -> None:
    script = tmp_path / "completion"
    ended = run("completion", shell)
    assert (ended.code, ended.errors) == (0, "")
    script.write_text(ended.output)
    assert "%(" not in ended.output
    assert all(name in ended.output for name in (*COMMAND_NAMES, "dry-run", "orchestrator", "tensorflow"))
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, capture_output=True)


def test_an_unknown_shell_is_refused(run: Run) -> None:
    assert run("completion", "tcsh").code == 2
