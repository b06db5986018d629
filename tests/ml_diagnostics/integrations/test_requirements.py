"""A hook without its framework is one error that names the package to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[3] / "packages/ml_diagnostics/src/ml_diagnostics/integrations"
FRAMEWORKS = {
    "axlearn": ("axlearn", "axlearn"),
    "clu": ("clu", "clu"),
    "huggingface": ("transformers", "transformers"),
    "keras": ("keras", "keras"),
    "levanter": ("levanter", "levanter"),
    "lightning": ("lightning", "lightning"),
    "orbax": ("orbax", "orbax-checkpoint"),
    "ray": ("ray", "ray"),
    "torch_xla": ("torch_xla", "torch-xla"),
    "torchtitan": ("", ""),  # It loads the module itself.
    "tunix": ("tunix", "google-tunix"),
}


def imported(module: str, *hidden: str) -> subprocess.CompletedProcess[str]:
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in hidden)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {hide}import ml_diagnostics.integrations.{module}"],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_hook_is_listed_here_and_is_short() -> None:
    modules = {path.stem: path.read_text(encoding="utf-8") for path in HOOKS.glob("[a-z]*.py")}
    assert set(modules) == set(FRAMEWORKS)
    assert [name for name, text in modules.items() if text.count("\n") >= 80] == []


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_a_framework_that_is_not_installed_is_one_error_that_names_it(module: str) -> None:
    package, distribution = FRAMEWORKS[module]
    if not package:
        assert imported(module).returncode == 0
        return
    done = imported(module, package)
    assert done.returncode == 1
    what = f"this integration needs {distribution}, which is not installed: pip install {distribution}"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {what}"
    assert done.stderr.count("Traceback") == 1


def test_a_framework_that_cannot_be_imported_shows_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text("import a_dependency_of_keras\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ml_diagnostics.integrations.keras"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'a_dependency_of_keras'"
