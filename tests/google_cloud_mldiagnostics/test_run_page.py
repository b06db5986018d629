"""Pages of runs in programs and notebooks: what `mldiagnostics show` prints, and HTML that is safe for any name."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics.cli import main
from google_cloud_mldiagnostics.exceptions import RunNotFoundError
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics.run_page import run_page


def recorded(name: str = "digits", metric: str = "loss") -> MLRun:
    run = machinelearning_run(name=name, configs={"lr": "1e-3 <small>"})
    for step in range(5):
        metrics.record(metric, 5.0 - step, step=step)
    run.finish()
    return run


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html.replace("<br>", "<br/>"))


def test_a_page_reads_as_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded()
    page = run_page("last")
    assert repr(page) == f"<RunPage of '{run.name}': COMPLETED>"
    capsys.readouterr()
    assert main(["show", run.name, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == page.as_dict()
    assert main(["show", run.name]) == 0
    assert capsys.readouterr().out == f"{page}\n"


def test_a_run_that_still_goes_on_is_shown_with_what_it_has_recorded() -> None:
    run = machinelearning_run(name="digits", configs={"lr": 1e-3})
    metrics.record("loss", 0.25, step=7)
    html = run._repr_html_()
    run.finish()
    rows = [[cell.text for cell in row] for row in parsed(html).iter("tr")]
    assert parsed(html).findtext("p/b") == f"{run.name}: ACTIVE"
    assert ["loss", "1", "1", "0.25", "0.25", "0.25", "0.25", "7"] in [row[:8] for row in rows]
    assert ["lr", "0.001"] in rows
    assert parsed(run._repr_html_()).findtext("p/b") == f"{run.name}: COMPLETED"


def test_each_attempt_has_a_row() -> None:
    start = 'machinelearning_run(name="restarted", run_workload_id="job-7")'
    program = f"import os; from google_cloud_mldiagnostics import machinelearning_run; {start}; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 9
    run = machinelearning_run(name="restarted", run_workload_id="job-7")
    run.finish()
    attempts = next(iter(parsed(run._repr_html_()).iter("table")))
    assert ["".join(row.itertext())[:1] for row in attempts.iter("tr")] == ["a", "1", "2"]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a&b", '"><img src=x onerror=y>'])
def test_a_name_with_markup_is_shown_as_text(name: str) -> None:
    page = parsed(recorded(metric=name)._repr_html_())
    assert {element.tag for element in page.iter()} <= {
        *("div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td", "details", "summary")
    }
    assert name in page.itertext()
    assert "1e-3 <small>" in page.itertext()


def test_a_copy_of_a_run_is_shown_as_text() -> None:
    run = recorded()
    assert copy.deepcopy(MLRun(run.name, configs=run.configs))._repr_html_().startswith("<pre>MLRun(name=")


def test_a_run_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(RunNotFoundError, match="nothing"):
        run_page("nothing")
