"""The benchmark runner keeps what it has measured."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks.__main__ as runner
from benchmarks.results import Row, Table


def add_benchmark(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException | None = None) -> None:
    module = ModuleType(f"benchmarks.{name}")

    def measure(*, quick: bool) -> list[Table]:
        assert quick
        if error is not None:
            raise error
        return [Table(f"Title of {name}", "", [Row("work", "1 ms")])]

    module.__dict__["measure"] = measure
    monkeypatch.setitem(sys.modules, module.__name__, module)


def run_all(monkeypatch: pytest.MonkeyPatch, output: Path, *names: str) -> int:
    monkeypatch.setattr(runner, "FIGURES", list(names))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--output", str(output)])
    return runner.main()


def test_a_failed_benchmark_costs_no_result_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_benchmark(monkeypatch, "one")
    add_benchmark(monkeypatch, "two", RuntimeError("the run is still ACTIVE"))
    add_benchmark(monkeypatch, "three")
    assert run_all(monkeypatch, tmp_path / "page.md", "one", "two", "three") == 1
    page = (tmp_path / "page.md").read_text()
    assert "## Title of one" in page
    assert "## Title of three" in page
    assert "## two: failed" in page
    assert "RuntimeError: the run is still ACTIVE" in page
    assert "failed: two" in capsys.readouterr().err


def test_an_interrupted_run_keeps_what_it_has_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_benchmark(monkeypatch, "one")
    add_benchmark(monkeypatch, "two", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_all(monkeypatch, tmp_path / "page.md", "one", "two")
    assert "## Title of one" in (tmp_path / "page.md").read_text()
