"""Blocks in jobs with JAX or PyTorch, with threads and handlers that exist before the block and after it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .diagnosed_jobs import HEADER, Job

_JAX = """
import jax, jax.numpy as jnp

def compute():
    return float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((64, 64))))
"""
_TORCH = """
import torch

def compute():
    x = torch.ones((64, 64), requires_grad=True)
    total = (x @ x).sum()
    total.backward()
    return float(total)
"""
_JOB = """
before = compute()
handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV)}
was_enabled = faulthandler.is_enabled()
with diagnostic.diagnose(config(interval=0.5, cloud=sys.argv[2] == "cloud")):
    assert compute() == before
    os.kill(os.getpid(), signal.SIGUSR1)
    deadline = time.monotonic() + 1.8
    while time.monotonic() < deadline:
        assert compute() == before
    output("left")
assert compute() == before
assert faulthandler.is_enabled() == was_enabled
assert {number: signal.getsignal(number) for number in handlers} == handlers
output(before)
"""


@pytest.mark.parametrize("where", ["console", "cloud"])
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_block_and_a_framework_do_not_disturb_each_other(tmp_path: Path, framework: str, where: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    job = Job({"jax": _JAX, "torch": _TORCH}[framework] + _JOB, tmp_path, where)
    code, out, err = job.end()
    assert (code, out.split()) == (0, ["left", str(float(64**3))]), err
    written = err if where == "console" else "".join(path.read_text() for path in tmp_path.iterdir())
    assert written.count(HEADER) >= 2
    assert "compute" in written
