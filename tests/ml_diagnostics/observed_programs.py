"""Programs under `ml-diagnostics run`, and what was recorded of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from ml_diagnostics_common.reader import JournalReader

JOB = "digits"
RUN = [sys.executable, "-m", "ml_diagnostics", "run", "--name", JOB, "--"]
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "ML_DIAGNOSTICS_RAISE": "1"}

TRAINER = """
import jax, jax.numpy as jnp, time

@jax.jit
def train_step(state, batch):
    return state - 0.01 * (state @ batch), (state * state).mean()

@jax.jit
def eval_step(state, batch):
    return ((state @ batch) ** 2).mean()

state, batch = jnp.ones((200, 200)), jnp.ones((200, 200)) / 200

evaluated = 0.0  # In seconds: a loaded machine prolongs them.

def train(steps, start=0, every=0):
    global state, evaluated
    for step in range(start, start + steps):
        time.sleep(0.01)
        state, loss = train_step(state, batch)
        float(loss)
        if every and step % every == every - 1:
            started = time.perf_counter()
            for _ in range(10):
                float(eval_step(state, batch))
                time.sleep(0.01)
            evaluated += time.perf_counter() - started
"""


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    program = folder / name
    program.write_text(textwrap.dedent(text), encoding="utf-8")
    return program


def run(
    *command: str | Path, environ: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **ENVIRONMENT, **(environ or {})}
    return subprocess.run(
        [*RUN, *map(str, command)], capture_output=True, text=True, timeout=100, check=False, env=environ, **options
    )


def run_program(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = run(sys.executable, write(folder, text), *arguments)
    assert done.returncode == 0, done.stderr
    return done


def payloads(job: str = JOB) -> list[dict[str, Any]]:
    reader = JournalReader(f"goodput_{job}", root=Path(os.environ["ML_DIAGNOSTICS_DIR"]))
    return [entry.payload for batch in reader.read_new() for entry in batch]


def steps(found: list[dict[str, Any]] | None = None) -> list[int]:
    return [each["step_count"] for each in (payloads() if found is None else found) if "step_count" in each]


def activities() -> dict[str, tuple[str, str]]:
    return {
        each["inferred_activity"]: (each["inferred_from"], each["inferred_certainty"])
        for each in payloads()
        if "inferred_activity" in each
    }


def report(job: str = JOB) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "ml_goodput_measurement", "report", job, "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))
