"""A real TensorBoard in a real browser shows what was written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_goodput_measurement._export.tensorboard import TensorBoardExporter
from ml_goodput_measurement.goodput_utils import BadputType

from ..waiting import wait_until
from .tensorboard_points import cumulative, deviating, steps_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_START_SECONDS = 30
_TAG = r'class="tag"[^>]* title="([^"]*)"'


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Run TensorBoard on the folder, and yield its address on loopback."""
    log = tmp_path / "tensorboard.log"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path / "run")]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0", "--reload_interval", "1"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONWARNINGS": "ignore", "HOME": str(tmp_path)},
        )
    try:
        yield _address(log, server)
    finally:
        server.terminate()
        server.wait(20)


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    address = re.compile(r"http://127\.0\.0\.1:\d+/")
    return wait_until(lambda: address.findall(log.read_text()), _START_SECONDS, running=server)[0]


def _wait_until_loaded(address: str) -> None:
    def has_points() -> bool:
        try:
            with urllib.request.urlopen(f"{address}data/plugin/scalars/tags") as answer:
                return b"step_deviation" in answer.read()
        except urllib.error.URLError:
            return False

    wait_until(has_points, _START_SECONDS)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_shows_a_card_for_each_tag(tmp_path: Path, address: str) -> None:
    badput: dict[BadputType, float | dict[str, float]] = {
        BadputType.OTHER: 5.0,
        BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL STEP": 2.0},
    }
    life = cumulative(29, 93.0, badput)
    exporter = TensorBoardExporter(tmp_path / "run", "job", include_badput_breakdown=True)
    exporter(deviating(steps_of(range(30)), with_cumulative=life))
    _wait_until_loaded(address)
    page = _page(f"{address}?tagFilter=.#timeseries", tmp_path, until="step_deviation")
    assert re.findall(_TAG, page) == [
        "badput/custom_badput_events/eval_step",
        "badput/other",
        "goodput/goodput",
        "step_deviation",
    ]
    assert {"93", "0.4531"} <= set(re.sub(r"<[^>]*>|\s", " ", page).split())


def _page(address: str, profile: Path, *, until: str) -> str:
    """Return the text of the page; on a busy machine it may take several reads until the page is complete."""
    assert CHROMIUM is not None
    browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1500,3000"]
    browser += ["--virtual-time-budget=10000", f"--user-data-dir={profile}", "--dump-dom"]
    end = time.monotonic() + _START_SECONDS
    while True:
        page = subprocess.run([*browser, address], capture_output=True, text=True, timeout=60, check=True).stdout
        if until in re.findall(_TAG, page) or time.monotonic() > end:
            return page
