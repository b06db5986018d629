"""The compilations of JAX, recorded with a real JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._collect.compilations import Compilations
from cloud_tpu_diagnostics.entries import COMPILES, JOB_ENDED

from ..waiting import LONG_SECONDS, wait_until
from .accompanied_jobs import of_kind
from .diagnosed_jobs import Job

pytest.importorskip("jax")

_COMPILES_EACH_STEP = """
import jax, jax.numpy as jnp
from jax._src.monitoring import get_event_duration_listeners as listeners
@jax.jit
def train_step(batch): return batch.sum()
with diagnostic.diagnose(config(cloud=True)):
    while not any("Compilations" in repr(each) for each in listeners()):
        time.sleep(0.01)
    for step in range(7):
        train_step(jnp.ones(step + 1))
"""


def test_a_function_that_is_compiled_in_each_step_is_named_with_its_number(tmp_path: Path) -> None:
    code, _, err = Job(_COMPILES_EACH_STEP, tmp_path / "debugging").end()
    assert code == 0, err
    wait_until(lambda: bool(of_kind(JOB_ENDED)))
    found = of_kind(COMPILES)
    counts = {
        each["name"]: sum(
            other["count"] for entry in found for other in entry["functions"] if other["name"] == each["name"]
        )
        for entry in found
        for each in entry["functions"]
    }
    assert counts["train_step"] == 7
    assert all(entry["count"] >= sum(each["count"] for each in entry["functions"]) for entry in found)
    assert all(entry["seconds"] > 0 for entry in found)


def test_a_program_that_removes_all_listeners_is_listened_to_again() -> None:
    program = """
import jax, jax.monitoring, sys
from cloud_tpu_diagnostics._collect.compilations import Compilations
compilations = Compilations()
compilations.check()
jax.jit(lambda x: x + 1)(1.0)
assert compilations.message(0.0)["count"] == 1
jax.monitoring.clear_event_listeners()
compilations.check()
compilations.check()
jax.jit(lambda x: x + 2)(1.0)
assert compilations.message(5.0) is None, "it is too early"
assert compilations.message(10.0)["count"] == 1, "it listens once"
compilations.close()
jax.jit(lambda x: x + 3)(1.0)
assert compilations.message(30.0) is None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=LONG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_jax_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jax.monitoring", raising=False)
    compilations = Compilations()
    compilations.check()
    assert "jax.monitoring" not in sys.modules
    compilations.close()
