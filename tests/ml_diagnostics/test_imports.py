"""Functions that wait for the import of a module."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ml_diagnostics._inference import imports
from ml_diagnostics._inference.imports import after_import, forget_import, forget_imports

from ..waiting import run_program as run_alone
from .observed_programs import TRAINER, run_program, steps


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put modules on the path: one of a file, two of one archive."""
    (tmp_path / "observed_file.py").write_text("value = 1\n")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        for name in ("observed_one", "observed_two"):
            archive.writestr(f"{name}.py", "value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "archive.zip"))
    yield
    forget_imports()
    for name in [name for name in sys.modules if name.startswith("observed_") and name in NAMES]:
        del sys.modules[name]


NAMES = ("observed_file", "observed_one", "observed_two")


def test_a_search_for_a_framework_does_not_end_the_observation(tmp_path: Path) -> None:
    probe = (
        "import importlib.util\nassert importlib.util.find_spec('jax') and importlib.util.find_spec('jax.monitoring')"
    )
    run_program(tmp_path, probe + TRAINER + "train(8)")
    assert steps() == [*range(8)]


def test_functions_are_called_once_after_the_import_however_often_the_module_was_searched() -> None:
    called: list[str] = []

    def note(module: ModuleType) -> None:
        called.append(f"{module.__name__} {module.value}")

    for name in NAMES:
        after_import(name, note)
    for name in NAMES * 2:
        assert importlib.util.find_spec(name) is not None
    assert called == []
    for name in NAMES:
        module = importlib.import_module(name)
        assert "exec_module" not in vars(module.__spec__.loader)
        importlib.reload(module)
    assert called == [f"{name} 1" for name in NAMES]


def test_a_module_that_fails_to_be_imported_is_observed_when_it_is_imported_again(tmp_path: Path) -> None:
    called: list[ModuleType] = []
    after_import("observed_file", called.append)
    (tmp_path / "observed_file.py").write_text("raise OSError('busy')")
    with pytest.raises(OSError, match="busy"):
        importlib.import_module("observed_file")
    (tmp_path / "observed_file.py").write_text("value = 1")
    importlib.invalidate_caches()
    assert called == [importlib.import_module("observed_file")]


def test_a_function_that_is_forgotten_is_not_called_and_the_last_takes_the_finder_with_it() -> None:
    called: list[ModuleType] = []
    after_import("observed_file", called.append)
    forget_import("observed_one", called.append)
    assert imports._finder in sys.meta_path
    forget_import("observed_file", called.append)
    assert imports._finder not in sys.meta_path
    importlib.import_module("observed_file")
    assert called == []


def test_jobs_that_have_ended_leave_nothing_behind() -> None:
    pytest.importorskip("jax")
    program = """
import sys, ml_diagnostics
def jobs():
    for _ in range(3):
        with ml_diagnostics.instrument("digits", run=False, stacks=False, hangs=False, monitor=False):
            pass
jobs()
print([each for each in sys.meta_path if type(each).__module__.startswith("ml_diagnostics")])
import jax.monitoring
jobs()
print(jax.monitoring.clear_event_listeners._ml_diagnostics)
"""
    assert run_alone(program) == "[]\n[]\n"
