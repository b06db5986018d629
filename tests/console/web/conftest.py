"""Jobs that several tests of the page show: each is run once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_console._web.run_goodput import RunGoodput

from ...waiting import LONG_SECONDS
from .made_runs import MadeAttempt, MadeRun, hang
from .recorded import FAILS, Page, close_stores, page_of, record

_SECOND_NS = 10**9


@pytest.fixture(scope="session")
def failed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("failed"), FAILS)


@pytest.fixture
def hung_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 hosts, of which one holds all up in its fifth attempt, and which gave a sign of life just now."""
    folder = tmp_path_factory.mktemp("hung")
    hang(folder, hosts=16)
    return folder


@pytest.fixture(scope="session")
def restarted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: one was preempted and failed before it completed; the other has other configs."""
    folder = tmp_path_factory.mktemp("restarted")
    start_ns = time.time_ns() - 7200 * _SECOND_NS
    attempts = [
        MadeAttempt(0, 399, "FAILED", "received SIGTERM: preempted (maintenance)"),
        MadeAttempt(300, 599, "FAILED", "ValueError: loss is nan at step 599"),
        MadeAttempt(500, 999, "COMPLETED"),
    ]
    configs = {"learning_rate": "0.001", "flags": f"--out=/runs/llama-1/out --width 32 {'--x ' * 20}", "token": "abc"}
    MadeRun("llama-1", start_ns, attempts, hosts=("vm-0", "vm-1"), configs=configs, planned_steps=1000).write(folder)
    other = {"learning_rate": "1e-2", "flags": f"--out=/runs/llama-2/out --width 64 {'--x ' * 20}", "seed": "7"}
    MadeRun("llama-2", start_ns - 600 * _SECOND_NS, [MadeAttempt(0, 99)], configs=other).write(folder)
    return folder


@pytest.fixture(autouse=True)
def _each_refresh_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refresh of a store reads all: on a busy machine it may take so long that it stops, or the next one rests."""
    monkeypatch.setattr("ml_diagnostics_console._web.store._CHEAP_POLL_SECONDS", math.inf)
    monkeypatch.setattr("ml_diagnostics_console._web.row_updates._GOODPUT_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(RunGoodput, "part_seconds", LONG_SECONDS)


@pytest.fixture(autouse=True)
def _closed_stores() -> Iterator[None]:
    """No process of a doctor outlives its test."""
    yield
    close_stores()


@pytest.fixture
def failed(failed_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page of a real job that failed at step 30."""
    return page_of(failed_folder, monkeypatch)


@pytest.fixture
def hung(hung_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page of a run of 16 hosts that is stuck."""
    return page_of(hung_folder, monkeypatch)


@pytest.fixture
def restarted(restarted_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page of a run with three attempts."""
    return page_of(restarted_folder, monkeypatch)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page of a run that has recorded nothing but its start."""
    MadeRun("bare", time.time_ns() - 60 * _SECOND_NS, [MadeAttempt(0, -1, "ACTIVE")], has_goodput=False).write(tmp_path)
    return page_of(tmp_path, monkeypatch)
