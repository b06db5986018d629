"""The IPython extension, in a real kernel that executes a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

# Sockets and event loops of the kernel's client, when they are collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).parents[2]
OFF = "%env ML_DIAGNOSTICS_DISABLE=run,monitor\n%load_ext ml_diagnostics"


def executed(folder: Path, *cells: str, allow_errors: bool = False) -> list[dict[str, Any]]:
    """Execute the cells in a new kernel; return the outputs of the last one."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (OFF, *cells)])
    execute(notebook, folder, allow_errors=allow_errors)
    outputs: list[dict[str, Any]] = notebook.cells[-1].outputs
    return outputs


def execute(notebook: Any, folder: Path, *, allow_errors: bool = False) -> None:
    client = nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", allow_errors=allow_errors, resources={"metadata": {"path": folder}}
    )
    client.execute()


TRAIN = """%%instrument digits
for step, batch in job.steps(range(3)):
    with job.phase("evaluation"):
        pass
"""


def test_a_cell_is_a_job_and_its_report_has_the_timeline(tmp_path: Path) -> None:
    (shown,) = executed(tmp_path, TRAIN, "%goodput digits")
    assert "<svg" in shown["data"]["text/html"]
    assert "digits" in shown["data"]["text/plain"]


def test_without_a_name_the_report_is_that_of_the_last_job(tmp_path: Path) -> None:
    (shown,) = executed(tmp_path, TRAIN, "%goodput")
    assert "digits: " in shown["data"]["text/html"]


def test_a_cell_that_raises_shows_its_error_once_and_the_job_has_failed(tmp_path: Path) -> None:
    cell = "%%instrument digits\nraise ZeroDivisionError('no rows')"
    errors = executed(tmp_path, cell, allow_errors=True)
    assert [output["ename"] for output in errors if output["output_type"] == "error"] == ["ZeroDivisionError"]
    attempt = "from ml_goodput_measurement.report import report\nreport('digits').data.attempts[-1].exception"
    (shown,) = executed(tmp_path, attempt)
    assert shown["data"]["text/plain"] == "'ZeroDivisionError'"


@pytest.mark.parametrize(
    "cell", ["raise ZeroDivisionError('no rows')", "raise KeyboardInterrupt", "1 +", "%load_ext absent"]
)
def test_a_cell_that_raises_stops_the_notebook_and_the_next_error_is_shown(tmp_path: Path, cell: str) -> None:
    cells = [nbformat.v4.new_code_cell(each) for each in (OFF, f"%%instrument digits\n{cell}", "print('after')")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        execute(notebook, tmp_path)
    assert len([each for each in notebook.cells[1].outputs if each.output_type == "error"]) == 1
    assert not notebook.cells[2].outputs

    outputs = executed(tmp_path, f"%%instrument digits\n{cell}", "raise OSError('next')", allow_errors=True)
    assert [output["ename"] for output in outputs] == ["OSError"]


def test_a_cell_that_awaits_is_refused_with_the_alternative_which_works(tmp_path: Path) -> None:
    wait = "import asyncio\nawait asyncio.sleep(0)\nprint('waited')"
    refused = executed(tmp_path, f"%%instrument digits\n{wait}", allow_errors=True)
    assert "with ml_diagnostics.instrument(" in str(refused)
    assert "event loop" not in str(refused)
    block = (
        "import asyncio, ml_diagnostics\nwith ml_diagnostics.instrument('digits') as job:\n    await asyncio.sleep(0)"
    )
    assert not executed(tmp_path, block)


def test_the_stacks_of_the_kernel_are_shown_or_written_to_a_file_that_is_named(tmp_path: Path) -> None:
    (shown,) = executed(tmp_path, "%stacks")
    assert "Thread 0x" in shown["text"]
    (named,) = executed(tmp_path, "%stacks stacks.txt")
    assert str(tmp_path / "stacks.txt") in named["text"]
    assert "Thread 0x" in (tmp_path / "stacks.txt").read_text()


def test_a_job_is_shown_as_its_report(tmp_path: Path) -> None:
    start = "import ml_diagnostics\njob = ml_diagnostics.instrument('digits').__enter__()\nlist(job.steps('ab'))"
    (shown,) = executed(tmp_path, start, "job")
    assert "<svg" in shown["data"]["text/html"]


def test_a_run_is_shown_with_its_metrics(tmp_path: Path) -> None:
    log = "job.log({'loss': 0.25}, step=3)\nrun = job.run"
    (shown,) = executed(tmp_path, "%env ML_DIAGNOSTICS_DISABLE=monitor", f"%%instrument digits\n{log}", "%mlrun")
    assert "<td" in shown["data"]["text/html"]
    assert ">0.25<" in shown["data"]["text/html"]
    assert "digits" in shown["data"]["text/plain"]


def test_stacks_of_diagnose_are_in_a_file_that_the_cell_names(tmp_path: Path) -> None:
    cell = """
from cloud_tpu_diagnostics import diagnose

def load_batch():
    raise ZeroDivisionError("no rows")

with diagnose(stack_traces=True):
    load_batch()
"""
    named, _ = executed(tmp_path, cell, allow_errors=True)
    found = re.search(r"written in: (\S+)", named["text"])
    assert found is not None
    file = Path(found[1])
    assert "in load_batch" in file.read_text()
    file.unlink()


def test_the_example_runs_and_shows_what_its_page_shows(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    page = (ROOT / "docs" / "tutorial" / "notebook.md").read_text()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == re.findall(r"```py\n(.*?)\n```", page, re.DOTALL)

    execute(notebook, tmp_path)
    shown = [output.data["text/html"] for cell in code for output in cell.outputs if "data" in output]
    report, run = shown
    assert "<svg" in report
    (stacks,) = code[-1].outputs
    assert (tmp_path / "stacks.txt").read_text().startswith("Thread 0x")
    assert str(tmp_path / "stacks.txt") in stacks["text"]
    for html in (report, run):
        assert html_of(page, starts=re.split(r"[\d.]+ %|</b>", html)[0])
    for row in ("productive", "training preparation", "program startup", "custom: evaluation", "loss"):
        assert f">{row}</td>" in page
        assert f">{row}</td>" in report + run


def html_of(page: str, starts: str) -> bool:
    """Return True if a page of the documentation has a fragment of HTML that starts so."""
    return any(line.startswith(starts) for line in page.splitlines())
