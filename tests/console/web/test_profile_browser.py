"""A real profile in a browser: drawn in the page, in the case file and in the page of xprofiler by the same modules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .browser import Browser, needs_browser, opened_browser
from .served import COMMAND, Served, served

pytest.importorskip("jax")
pytest.importorskip("xprof")
pytestmark = needs_browser

_SECONDS = 90
_STEPS = 20
_JOB = f"""
import time
from google_cloud_mldiagnostics import machinelearning_run, xprof
import jax, jax.numpy as jnp

machinelearning_run(name="profiled", gcs_path="profiles")
step = jax.jit(lambda x: jnp.tanh(x @ x) / 8)
x = step(jnp.ones((256, 256)))
with xprof():
    for number in range({_STEPS}):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            with jax.profiler.TraceAnnotation("load_batch"):
                time.sleep(0.004)
            x = step(x).block_until_ready()
"""
_CARDS = """[...document.querySelectorAll('.tile, .card:has(h2)')].filter((each) => ![...each.querySelectorAll('h2')]
  .some((title) => /^(Profiles|Sessions|XProf|This session)/.test(title.textContent))).map((each) => each.innerText)"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnostics folder with a run that was profiled."""
    folder = tmp_path_factory.mktemp("profiled")
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"), "ML_DIAGNOSTICS_BACKEND": "local"}
    done = subprocess.run(
        [sys.executable, "-c", _JOB],
        cwd=folder,
        env={**environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, Served, str]]:
    """A browser, the server of the page, and the path of the profile's page."""
    with served(folder / "diagnostics") as server, opened_browser(tmp_path_factory.mktemp("browser")) as browser:
        run = server.get("/api/runs").json()["rows"][0]["id"]
        yield browser, server, f"/runs/{run}/profiles"


@contextmanager
def xprofiler_page(folder: Path) -> Iterator[str]:
    """Serve a folder of profiles by `xprofiler serve`, and yield the URL."""
    (sessions,) = (folder / "profiles").glob("*/plugins")
    command = [sys.executable, "-m", "xprofiler", "serve", "-l", str(sessions.parent), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.communicate(timeout=_SECONDS)


def shown(browser: Browser, url: str, mark: str) -> list[str]:
    """Return the texts of the cards of a summary."""
    browser.forget()
    browser.open(url)
    browser.wait_ready(mark, _SECONDS)
    # The steps are drawn in the next frame, when their width is known.
    browser.wait_for(f"document.querySelectorAll('.step-chart g').length === {_STEPS}")
    texts: list[str] = browser.value(_CARDS)
    assert browser.complaints() == []
    return texts


def test_the_page_the_case_file_and_xprofiler_show_the_same(
    page: tuple[Browser, Served, str], folder: Path, tmp_path: Path
) -> None:
    browser, server, path = page
    in_page = shown(browser, f"http://{server.host}{path}", "profiles")
    assert any(f"{_STEPS} steps" in text for text in in_page)
    assert any("load_batch" in text for text in in_page)
    with xprofiler_page(folder) as url:
        assert shown(browser, f"{url}/", "profile") == in_page
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"), "ML_DIAGNOSTICS_BACKEND": "local"}
    case = tmp_path / "case.html"
    done = subprocess.run(
        [*COMMAND, "export", "last", str(case)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    assert "summaries of 1 of 1 profiles" in done.stderr
    assert shown(browser, f"{case.as_uri()}#{path}", "profiles") == in_page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_the_steps_are_drawn_and_nothing_is_wider_than_the_window(
    page: tuple[Browser, Served, str], width: int, theme: str
) -> None:
    browser, server, path = page
    browser.resize(width, 900)
    browser.use_theme(theme)
    shown(browser, f"http://{server.host}{path}", "profiles")
    assert browser.value("document.documentElement.scrollWidth") <= width
    bars: list[Any] = browser.value(
        "[...document.querySelectorAll('.step-chart g')].map((bar) => bar.getBoundingClientRect().height)"
    )
    assert len(bars) == _STEPS
    assert min(bars) > 0
    right = browser.value("document.querySelector('.step-chart g:last-of-type').getBoundingClientRect().right")
    assert right <= width


def test_the_chart_is_reached_by_the_keyboard_and_has_a_table(page: tuple[Browser, Served, str]) -> None:
    browser, server, path = page
    browser.resize(1400, 900)
    shown(browser, f"http://{server.host}{path}", "profiles")
    browser.value("document.querySelector('.step-chart').focus()")
    browser.press("End")
    said = browser.value("document.querySelector('.step-chart').getAttribute('aria-valuetext')")
    assert said.startswith(f"step {_STEPS - 1}: ")
    browser.value("[...document.querySelectorAll('button')].find((each) => each.textContent === 'As table').click()")
    assert browser.value("document.querySelectorAll('.table-twin tbody tr').length") == _STEPS
