"""Runs of the benchmarks are compared measurement by measurement, and only what exceeds the noise is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare, measurements
from benchmarks.measurements import Measurement, measurements_of
from benchmarks.results import Row, Table


def run_of(*rows: Row, title: str = "Import", quick: bool = False, machine: str | None = None) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(json.dumps(measurements.document([Table(title, "", rows)], quick=quick)))
    if machine is not None:
        run["tables"][0]["machine"] = machine
    return run


def worse(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    return [change.key[1] for change in compare.compare(before, after).worse]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("11.5 ms", [("", pytest.approx(0.0115), "s", "lower")]),
        ("655,771/s", [("", 655771.0, "/s", "higher")]),
        ("2.34 s, 69 MiB", [("", 2.34, "s", "lower"), ("MiB", 69.0, "MiB", "lower")]),
        ("1 µs p50, 2 µs p99", [("p50", 1e-6, "s", "lower"), ("p99", 2e-6, "s", "lower")]),
        ("715 ns, at most 2 s", [("", pytest.approx(715e-9), "s", "lower"), ("at most", 2.0, "s", "lower")]),
        ("725 µs against 513 µs; 451 µs without any", [("", pytest.approx(725e-6), "s", "lower")]),
        ("155 ms (ended in 375 ms)", [("", pytest.approx(0.155), "s", "lower")]),
        ("2 ms on, 2.5 ms off: -93 µs (-397 to +2)", [("on", 0.002, "s", "lower")]),
        ("6 in 6.5 s", [("in 6.5 s", 6.0, "", "")]),
        ("ValueError: a benchmark raised", []),
    ],
)
def test_the_numbers_of_a_cell_are_found(cell: str, expected: list[tuple[str, float, str, str]]) -> None:
    found = measurements_of(Row("work", cell))
    assert [(each.label, each.value, each.unit, each.better) for each in found] == expected


def test_a_number_is_compared_with_one_of_the_same_unit_in_the_same_run() -> None:
    row = Row("list", "204 ms, 42 MiB", "1.0.10 1.04 s, 87 MiB; off again: -86 µs")
    assert [each.compared_with for each in measurements_of(row)] == [1.04, 87.0]
    assert [each.compared_with for each in measurements_of(Row("p50", "2 ms on, 2.5 ms off", "off: +86 µs"))] == [
        0.0025
    ]


def test_the_target_decides_which_direction_is_better_where_the_unit_does_not() -> None:
    def better(target: str) -> str:
        return measurements_of(Row("verdicts", "26", target=target))[0].better

    assert [better("<= 2 a day"), better(">= 20"), better("all")] == ["lower", "higher", ""]


def test_what_became_worse_by_more_than_the_assumed_noise_is_named() -> None:
    before = run_of(Row("a", "100 ms"), Row("b", "100 ms"), Row("c", "1,000/s"), Row("d", "10 ms p50, 40 ms p99"))
    after = run_of(Row("a", "120 ms"), Row("b", "140 ms"), Row("c", "700/s"), Row("d", "10 ms p50, 58 ms p99"))
    assert worse([before], [after]) == ["b", "c"]
    assert worse([after], [before]) == []


def test_several_runs_of_a_side_measure_the_noise() -> None:
    quiet = [run_of(Row("a", f"{value} ms")) for value in (100, 101, 102)]
    noisy = [run_of(Row("a", f"{value} ms")) for value in (80, 100, 130)]
    assert worse(quiet, [run_of(Row("a", "115 ms"))]) == ["a"]
    assert worse(noisy, [run_of(Row("a", "115 ms"))]) == []
    assert worse([run_of(Row("a", "101 ms"))], noisy) == []


def test_a_busy_machine_that_slows_the_reference_too_is_not_a_regression() -> None:
    before = run_of(Row("import", "10 ms", "1 s"))
    assert worse([before], [run_of(Row("import", "20 ms", "2 s"))]) == []
    assert worse([before], [run_of(Row("import", "10 ms", "500 ms"))]) == []
    assert worse([before], [run_of(Row("import", "20 ms", "1 s"))]) == ["import"]


def test_another_machine_is_compared_by_ratios_alone() -> None:
    before = run_of(Row("import", "10 ms", "1 s"), Row("alone", "10 ms"), machine="another machine")
    found = compare.compare([before], [run_of(Row("import", "4 ms", "100 ms"), Row("alone", "40 ms"))])
    assert [change.key[1] for change in found.worse] == ["import"]
    assert found.other_machine == ["Import: alone"]


def test_rounding_is_not_a_regression() -> None:
    assert worse([run_of(Row("memory", "1 MiB"))], [run_of(Row("memory", "2 MiB"))]) == []
    assert worse([run_of(Row("memory", "1 MiB"))], [run_of(Row("memory", "3 MiB"))]) == ["memory"]


def test_a_target_that_is_missed_now_and_a_failed_benchmark_are_named() -> None:
    before = run_of(Row("a", "100 ms", target="< 110 ms", met=True))
    found = compare.compare([before], [run_of(Row("a", "111 ms", target="< 110 ms", met=False))])
    assert (found.worse, found.missed) == ([], ["Import: a"])
    failed = compare.compare([before], [run_of(Row("error", "OSError: no space"), title="importing: failed")])
    assert failed.failed == ["importing: failed"]
    assert "failed: importing" in compare.report(failed)


def test_only_what_a_partial_run_measured_is_compared() -> None:
    before = [run_of(Row("a", "1 ms")), run_of(Row("b", "1 ms"), Row("c", "1 ms"), title="Trainer")]
    found = compare.compare(before, [run_of(Row("b", "1 ms"), title="Trainer")])
    assert [change.key[1] for change in found.changes] == ["b"]
    assert found.gone == ["Trainer: c"]


def test_rows_with_the_same_name_are_matched_by_their_order() -> None:
    before = run_of(Row("import", "1 ms"), Row("memory", "1 MiB"), Row("query", "1 ms"), Row("memory", "100 MiB"))
    after = run_of(Row("import", "1 ms"), Row("memory", "1 MiB"), Row("query", "1 ms"), Row("memory", "200 MiB"))
    assert worse([before], [after]) == ["memory (2)"]


def test_the_command_exits_with_1_if_a_measurement_became_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, quick = (str(tmp_path / name) for name in ("old.json", "new.json", "quick.json"))
    measurements.write(Path(old), [Table("Import", "", [Row("a", "1 ms")])], quick=False)
    measurements.write(Path(new), [Table("Import", "", [Row("a", "3 ms")])], quick=False)
    measurements.write(Path(quick), [Table("Import", "", [Row("a", "1 ms")])], quick=True)
    assert compare.main(["--before", old, "--after", new]) == 1
    assert "worse: Import: a: 1 ms -> 3 ms (+200% worse; noise 25%)" in capsys.readouterr().out
    assert compare.main(["--before", new, "--after", old]) == 0
    assert "1 measurements compared: 0 worse, 1 better" in capsys.readouterr().out
    assert compare.main(["--before", quick, "--after", new]) == 2
    assert "a quick run cannot be compared with a full one" in capsys.readouterr().err


def test_a_file_that_is_not_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.json").write_text("# Results")
    (tmp_path / "list.json").write_text("[]")
    for name in ("page.json", "list.json", "missing.json"):
        assert compare.main(["--before", str(tmp_path / name), "--after", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err


def test_results_of_a_commit_can_be_named_by_the_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--before", "HEAD", "--after", str(measurements.ROOT / compare.RESULTS)]) in (0, 1)
    assert "measurements compared" in capsys.readouterr().out


def test_the_committed_results_can_be_compared() -> None:
    path = measurements.ROOT / compare.RESULTS
    run = measurements.read(path.read_text(encoding="utf-8"), str(path))
    found = compare.compare([run], [run])
    assert len(found.changes) > 100
    assert (found.worse, found.missed, found.gone, found.failed) == ([], [], [], [])


def test_a_measurement_is_plain_data() -> None:
    (measurement,) = measurements_of(Row("tight loop", "655,771/s", "bare append 2,208,675/s"))
    assert measurement == Measurement("", 655771.0, "/s", 1.0, "higher", 2208675.0)
