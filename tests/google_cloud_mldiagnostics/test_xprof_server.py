"""xprof's own server opens what `xprof()` has captured, and a real browser shows it."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..waiting import free_port, wait_until
from . import run_programs

pytest.importorskip("jax")
pytest.importorskip("xprof")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_START_SECONDS = 60
_STEPS = 6
_TRAINER = f"""
import jax, jax.numpy as jnp
from google_cloud_mldiagnostics import xprof

run = start_run()
step = jax.jit(lambda x: jnp.tanh(x @ x) / 8)
x = step(jnp.ones((256, 256)))
with xprof() as profile:
    for number in range({_STEPS}):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            x = step(x).block_until_ready()
run.finish()
"""


@pytest.fixture
def logdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the logdir for xprof, with one session that a training job has captured."""
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / "diagnostics"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    ended = run_programs.end(run_programs.start(_TRAINER), timeout_seconds=90)
    assert ended.code == 0, ended.errors
    (folder,) = (tmp_path / "diagnostics" / "runs").glob("*/profiles")
    return folder


@contextlib.contextmanager
def _served(logdir: Path) -> Iterator[str]:
    port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "xprof.server", "--logdir", str(logdir), f"--port={port}"]
    command += [f"--grpc_port={grpc_port}", "--hide_capture_profile_button"]
    log = logdir / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}/data/plugin/profile"

        def answers() -> bool:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                _asked(f"{address}/runs")
                return True
            return False

        wait_until(answers, _START_SECONDS, running=server)
        yield address
    finally:
        server.terminate()
        server.wait(20)


def _asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        body = answer.read()
    return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)


def test_xprofs_server_opens_the_session(logdir: Path) -> None:
    with _served(logdir) as address:
        (session,) = _asked(f"{address}/runs")
        assert (logdir / "plugins" / "profile" / session).is_dir()
        assert "overview_page" in _asked(f"{address}/run_tools?run={session}")
        overview = _asked(f"{address}/data?run={session}&tag=overview_page")
        (host,) = _asked(f"{address}/hosts?run={session}&tag=trace_viewer@")
        trace = _asked(f"{address}/data?run={session}&tag=trace_viewer@&host={host['hostname']}")
    assert any("device_duty_cycle_percent" in table.get("p", {}) for table in overview)
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert any(name.startswith("train") for name in names), sorted(name for name in names if not name.startswith("$"))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_shows_the_overview_page(logdir: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    with _served(logdir) as address:
        (session,) = _asked(f"{address}/runs")
        browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
        browser += ["--virtual-time-budget=20000", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom"]
        end = time.monotonic() + _START_SECONDS
        while True:  # On a busy machine the page may need several polls until it has drawn everything.
            page = subprocess.run(
                [*browser, f"{address}/#/overview_page/{session}"],
                capture_output=True,
                text=True,
                timeout=90,
                check=True,
            ).stdout
            words = " ".join(re.sub(r"<[^>]*>", " ", page).split())
            if "Performance Summary" in words and session in words:
                break
            assert time.monotonic() < end, words
