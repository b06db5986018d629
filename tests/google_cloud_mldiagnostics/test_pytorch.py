"""A job of PyTorch is recorded as one, with torch itself on the CPU; torch_xla is in tests/e2e/test_torch_xla.py."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from google_cloud_mldiagnostics import _runtimes as runtimes
from google_cloud_mldiagnostics._runtimes import computes_with_pytorch

from . import run_programs as programs


def test_a_job_that_imports_torch_and_not_jax_is_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ended = programs.run("import torch\nbegin()")
    assert ended.code == 0, ended.errors
    run = programs.kept_run()
    software = run["configs"]["softwareConfigs"]
    assert (software["framework"], software["framework_version"]) == ("PYTORCH", torch.__version__)
    assert run["labels"]["framework"] == "pytorch"


def test_a_job_of_jax_may_import_torch_for_its_data() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    ended = programs.run("import torch, jax\nbegin()\njax.devices()", JAX_PLATFORMS="cpu")
    assert ended.code == 0, ended.errors
    run = programs.kept_run()
    assert (run["configs"]["softwareConfigs"]["framework"], run["labels"]["framework"]) == ("JAX", "jax")


def test_xprof_in_a_job_with_only_torch_names_the_required_package() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    ended = programs.run("""
        import torch
        from google_cloud_mldiagnostics import xprof
        start_run()
        with xprof():
            pass
    """)
    assert ended.code == 0
    assert "install torch_xla" in ended.errors
    assert "[jax]" not in ended.errors


@pytest.mark.parametrize(
    ("imported", "initialised", "expected"),
    [
        ([], [], False),
        (["jax"], [], False),
        (["torch"], [], True),
        (["torch_xla"], [], True),
        (["torch", "jax"], [], False),
        (["torch", "jax"], ["jax"], False),
        (["torch_xla", "jax"], ["torch_xla"], True),
        (["torch_xla", "jax"], ["torch_xla", "jax"], False),
    ],
)
def test_devices_decide_and_before_them_imports(
    monkeypatch: pytest.MonkeyPatch, imported: list[str], initialised: list[str], expected: bool
) -> None:
    for name in ("jax", "torch", "torch_xla", "torch.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        if name in imported:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(runtimes, "jax_is_initialised", lambda: "jax" in initialised)
    monkeypatch.setattr(runtimes, "torch_xla_is_initialised", lambda: "torch_xla" in initialised)
    assert computes_with_pytorch() is expected
