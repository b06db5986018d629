"""Importing our libraries is light: nothing heavy is loaded before it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = [
    "cloud_tpu_diagnostics",
    "google_cloud_mldiagnostics",
    "ml_diagnostics_common",
    "ml_goodput_measurement",
    "xprofiler",
]
HEAVY = [
    "google",
    "grpc",
    "jax",
    "matplotlib",
    "numpy",
    "orbax",
    "psutil",
    "pynvml",
    "requests",
    "scipy",
    "tensorboard",
    "tensorstore",
    "torch",
    "xprof",
]
# These subclass what another package brings, so they are loaded only by those who use that package.
LOADED_ON_USE = [
    "ml_diagnostics_common._bounded_adapter",
    "ml_diagnostics_common.credentials._access_token",
    "xprofiler.gcloud.login",
    # Programs that are run elsewhere, as text.
    "xprofiler.capture.remote_relay",
    "xprofiler.viewers.startup.gke_viewer",
]
HEAVY_FOR_A_TRAINER = [
    "asyncio",
    "http.client",
    "importlib.metadata",
    "ml_goodput_measurement._query.calculator",
    "ml_goodput_measurement._ledger.ledger",
    "msgspec",
    "multiprocessing",
    "ssl",
    "urllib.request",
]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter that keeps compiled files, as an installed package has them."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=environ)


def loaded_after(statement: str) -> set[str]:
    # A .pth file of some other distribution may have loaded things: only what the statement adds counts.
    program = f"""
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    return set(json.loads(python("-c", program).stdout))


def heavy_ones(loaded: set[str], heavy: list[str]) -> list[str]:
    return [name for name in heavy if name in loaded or any(module.startswith(name + ".") for module in loaded)]


def modules_of(package: str) -> list[str]:
    """Every module of an installed package, as dotted names, without importing it."""
    (source,) = ROOT.glob(f"packages/*/src/{package}")
    names = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(part for part in parts if part != "__init__"))
    return names


def test_no_module_loads_a_heavy_dependency_on_import() -> None:
    for package in RUNTIME:
        loaded = loaded_after("import " + ", ".join(sorted({*modules_of(package)} - {*LOADED_ON_USE})))
        assert heavy_ones(loaded, HEAVY) == []


def test_a_trainer_that_records_loads_neither_the_calculator_nor_a_network_stack() -> None:
    statement = "from ml_goodput_measurement import goodput; goodput.GoodputRecorder"
    assert heavy_ones(loaded_after(statement), HEAVY + HEAVY_FOR_A_TRAINER) == []


def test_a_job_that_may_collect_stack_traces_loads_next_to_nothing() -> None:
    statement = "from cloud_tpu_diagnostics import diagnostic"
    unused = ["cloud_tpu_diagnostics._collect.blocks", "json", "logging", "socket", "subprocess", "threading"]
    assert heavy_ones(loaded_after(statement), HEAVY + HEAVY_FOR_A_TRAINER + unused) == []


def test_a_trainer_that_starts_runs_also_loads_nothing_heavy() -> None:
    statement = "from google_cloud_mldiagnostics import machinelearning_run, metric_types, metrics, xprof"
    heavy = [name for name in HEAVY + HEAVY_FOR_A_TRAINER if name != "msgspec"]  # It stamps what a run is kept as.
    assert heavy_ones(loaded_after(statement), heavy) == []


def cpu_milliseconds(statement: str) -> tuple[float, float]:
    """Return the CPU time of starting Python, and of a statement then: the best of five interpreters.

    CPU time, since other processes of a busy machine take from the time by the clock.
    """
    program = "import time; start = time.process_time(); {}; print(start, time.process_time() - start)"
    times = [tuple(map(float, python("-c", program.format(statement)).stdout.split())) for _ in range(5)]
    return min(start for start, _ in times) * 1e3, min(cost for _, cost in times) * 1e3


@pytest.mark.timing
def test_import_costs_a_few_times_what_starting_python_costs() -> None:
    # Python starts in about 8 ms: so this allows 64, 28 and 96 ms, and as much more as a machine is slower.
    start, cost = cpu_milliseconds("from ml_goodput_measurement import goodput; goodput.GoodputRecorder")
    assert cost < 8 * start
    start, cost = cpu_milliseconds("from cloud_tpu_diagnostics import diagnostic")
    assert cost < 3.5 * start
    runs = "from google_cloud_mldiagnostics import machinelearning_run, metric_types, metrics, xprof"
    start, cost = cpu_milliseconds(runs)
    assert cost < 12 * start
