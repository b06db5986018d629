"""The benchmark runner keeps its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks.__main__ as runner
from benchmarks.results import Row, Table, seconds


def add_benchmark(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException | None = None) -> None:
    module = ModuleType(f"benchmarks.{name}")

    def measure(*, quick: bool) -> list[Table]:
        assert quick
        if error is not None:
            raise error
        return [Table(f"Title of {name}", "", [Row("work", "1 ms")])]

    module.__dict__["measure"] = measure
    monkeypatch.setitem(sys.modules, module.__name__, module)


def titles_in(run: Path) -> list[str]:
    return [table["title"] for table in json.loads(run.read_text())["tables"]]


def run_all(output: Path, *names: str) -> int:
    return runner.main(["--quick", "--output", str(output), "--runs", str(output.with_name("runs"))], names)


def test_a_failed_benchmark_costs_no_result_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_benchmark(monkeypatch, "one")
    add_benchmark(monkeypatch, "two", RuntimeError("the run is still ACTIVE"))
    add_benchmark(monkeypatch, "three")
    assert run_all(tmp_path / "page.md", "one", "two", "three") == 1
    page = (tmp_path / "page.md").read_text()
    assert "## Title of one" in page
    assert "## Title of three" in page
    assert "## two: failed" in page
    assert "RuntimeError: the run is still ACTIVE" in page
    assert "failed: two" in capsys.readouterr().err


def test_an_interrupted_run_keeps_its_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_benchmark(monkeypatch, "one")
    add_benchmark(monkeypatch, "two", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path / "page.md", "one", "two")
    assert "## Title of one" in (tmp_path / "page.md").read_text()
    assert titles_in(tmp_path / "page.json") == ["Title of one"]


def test_a_run_of_some_benchmarks_leaves_its_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_benchmark(monkeypatch, "one")
    add_benchmark(monkeypatch, "two")
    assert runner.main(["two", "--quick", "--runs", str(tmp_path / "runs")], ["one", "two"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert titles_in(run) == ["Title of two"]
    assert json.loads(run.read_text())["quick"] is True


@pytest.mark.parametrize(
    ("value", "text"), [(0.0009998, "1 ms"), (0.000999, "999 µs"), (0.9996, "1 s"), (2.014, "2.01 s"), (3e-8, "30 ns")]
)
def test_a_duration_has_three_digits_and_the_unit_that_fits(value: float, text: str) -> None:
    assert seconds(value) == text
