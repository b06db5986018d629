"""Inferred goodput is that of the instrumented ledger, for most programs, and costs next to nothing.

The twenty examples take some minutes: `pytest -m slow tests/ml_diagnostics/test_inferred_goodput.py -s` prints a table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics._inference import STARTUP_FOLDER

from .example_jobs import JOBS
from .observed_programs import JOB, report, run, write

_POINTS = 2.0
_WITHIN = 18


def ledgers_of(folder: Path, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run an example; return its instrumented report and its inferred one."""
    shutil.copyfile(Path(__file__).parent / "instrumented_truth.py", folder / "truth.py")
    done = run(sys.executable, write(folder, text), folder / "checkpoints", environ={"ML_DIAGNOSTICS_RAISE": "0"})
    assert done.returncode == 0, done.stderr
    return report("truth"), report(JOB)


def is_exact(found: dict[str, Any]) -> bool:
    total = sum(bucket["seconds"] for bucket in found["buckets"].values())
    return abs(total - found["wall_seconds"]) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_inferred_goodput_is_within_two_points_of_the_instrumented_for_18_of_20_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("flax", "grain", "optax", "torch"):
        pytest.importorskip(package)
    lines, near = [], 0
    for number, (name, text) in enumerate(JOBS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(folder / "diagnostics"))
        truth, inferred = ledgers_of(folder, text)
        assert is_exact(truth), name
        assert is_exact(inferred), name
        difference = inferred["goodput_percent"] - truth["goodput_percent"]
        near += abs(difference) <= _POINTS
        lines.append(
            f"{name:40} {truth['goodput_percent']:6.2f} {inferred['goodput_percent']:6.2f} {difference:+6.2f} "
            f"{truth['steps_kept']:5} {inferred['steps_kept']:5} {truth['wall_seconds']:6.1f}"
        )
    print(f"\n{'program':40}  truth  infer.  diff. steps infer.  seconds", *lines, sep="\n")
    assert len(JOBS) == 20
    assert near >= _WITHIN, lines


_COST = """
import os, time
import jax, jax.numpy as jnp
from ml_diagnostics._inference import startup

@jax.jit
def train_step(params, x):
    return [w - 0.01 * (w @ x) for w in params], x.mean()

params, x = [jnp.ones((320, 320)) for _ in range(100)], jnp.ones((320, 320)) / 320
for _ in range(10):
    params, loss = train_step(params, x)
dispatches, spent = startup._session._dispatches, 0.0
on_call = dispatches._on_call
def timed(*call):
    global spent
    start = time.thread_time()
    on_call(*call)
    spent += time.thread_time() - start
dispatches._set_hook(timed)
loss.block_until_ready()
start = time.process_time()
for _ in range(150):
    params, loss = train_step(params, x)
    loss.block_until_ready()
shortest_steps = (time.process_time() - start) / len(os.sched_getaffinity(0))
print(spent / shortest_steps, shortest_steps / 150)
"""


@pytest.mark.timing
def test_it_costs_less_than_one_percent_of_the_time_of_a_step(tmp_path: Path) -> None:
    """All in CPU time, which other programs do not prolong: steps take at least that time of all cores together."""
    done = run(sys.executable, write(tmp_path, _COST))
    assert done.returncode == 0, done.stderr
    share, step_seconds = map(float, done.stdout.split())
    print(f"{share:.3%} of steps of {1000 * step_seconds:.1f} ms")
    assert share < 0.01


_STARTS = 15
_PLAIN = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
_HOOKED = {**_PLAIN, "PYTHONPATH": STARTUP_FOLDER, "ML_DIAGNOSTICS_JOB": JOB}


def cpu_seconds_of_a_start(environ: dict[str, str]) -> float:
    process = subprocess.Popen([sys.executable, "-c", ""], env=environ)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.timing
def test_the_start_of_a_program_without_a_framework_costs_little() -> None:
    """The start-up module alone, in turns with a plain start."""
    seconds: list[list[float]] = [[], []]
    for _ in range(_STARTS):
        for turn, environ in enumerate((_PLAIN, _HOOKED)):
            seconds[turn].append(cpu_seconds_of_a_start(environ))
    plain, hooked = map(min, seconds)
    print(f"{1000 * (hooked - plain):.1f} ms more than {1000 * plain:.1f} ms")
    assert hooked < 2 * plain


def test_a_program_without_a_framework_imports_next_to_nothing_of_ours() -> None:
    imported = []
    for environ in (_PLAIN, _HOOKED):
        command = [sys.executable, "-c", "import sys; print(*sys.modules)"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        imported.append(set(done.stdout.split()))
    assert {name for name in imported[1] - imported[0] if name.partition(".")[0] != "importlib"} <= {
        "__future__",
        "warnings",
        "ml_diagnostics",
        "ml_diagnostics._inference",
        "ml_diagnostics._inference.imports",
        "ml_diagnostics._inference.startup",
        "ml_diagnostics._version",
        "sitecustomize",
    }
