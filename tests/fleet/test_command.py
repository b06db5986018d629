"""`goodput fleet`: from what jobs mirrored to answers, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
from ml_diagnostics_fleet.synthetic_files import write_segments

from ..terminals import run_in_terminal

pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")

FLEET = SyntheticFleet(seed=1, jobs=60, events=45_000, all_hosts=True)
AS_OF = "2026-11-22"
GOODPUT = Path(sys.executable).with_name("goodput")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet with rows."""
    folder = tmp_path_factory.mktemp("fleet")
    write_segments(folder, FLEET)
    assert run("compact", "--mirror", folder, "--as-of", AS_OF).returncode == 0
    assert run("run", "--mirror", folder, "--as-of", AS_OF, "--processes", "1").returncode == 0
    return folder


def run(*arguments: object, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    argv = [str(GOODPUT), "fleet", *map(str, arguments)]
    environ = {**os.environ, **(environ or {})}
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, env=environ)


def data_of(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_compaction_and_a_run_print_what_they_did(tmp_path: Path) -> None:
    write_segments(tmp_path, SyntheticFleet(seed=2, jobs=2, events=400))
    done = run("compact", "--mirror", tmp_path, "--as-of", AS_OF)
    assert re.fullmatch(r"\d+ events of \d+ objects added in \d files?: version 1\n", done.stdout), done
    again = json.loads(run("compact", "--mirror", tmp_path, "--as-of", AS_OF, "--format", "json").stdout)
    assert (again["events"], again["version"]) == (0, 1)
    made = run("run", "--mirror", tmp_path, "--as-of", AS_OF)
    assert re.fullmatch(r"rows of 2 jobs, \d+ events, as of 2026-11-22 00:00:00Z\n", made.stdout), made


def test_the_planted_host_and_team_are_found(mirror: Path) -> None:
    found = data_of("report", "--mirror", mirror)
    assert [one["host"] for one in found["hosts"]["listed"]] == [FLEET.lemon]
    rare = [one["team"] for one in found["saving"]["rare"]]
    assert max(set(rare), key=rare.count) == FLEET.rarely_saving_team
    shown = run("report", "--mirror", mirror).stdout
    assert f"1 host fails too often: {FLEET.lemon}" in shown
    assert re.search(rf"{FLEET.rarely_saving_team} +\d+ of \d+  ", shown)


def test_parts_of_a_report_sum_to_the_whole(mirror: Path) -> None:
    found = data_of("report", "--mirror", mirror, "--by", "team,zone")
    for measure in ("job_ns", "chip_ns"):
        lost = sum(cause["lost"][measure] for cause in found["causes"])
        assert found["productive"][measure] + lost == found["all"][measure]
        assert sum(group["all"][measure] for group in found["groups"]) == found["all"][measure]
        assert sum(week["all"][measure] for week in found["weeks"]) == found["all"][measure]
    assert found["jobs"] == FLEET.jobs
    assert found["by"] == ["team", "zone"]
    assert found["currency"] == "$"


def test_csv_has_a_row_for_each_group(mirror: Path) -> None:
    done = run("report", "--mirror", mirror, "--by", "zone,week", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    found = data_of("report", "--mirror", mirror, "--by", "zone,week")
    assert [(row["zone"], row["week"]) for row in rows] == [tuple(one["key"].values()) for one in found["groups"]]
    assert sum(int(row["chip_ns"]) for row in rows) == found["all"]["chip_ns"]


def test_a_price_of_the_command_line_is_the_price_of_all_chips(mirror: Path) -> None:
    found = data_of("report", "--mirror", mirror, "--cost", "2.00 EUR/chip-hour")
    hours = found["all"]["chip_ns"] / 3.6e12
    assert found["currency"] == "EUR"
    assert found["all"]["micro"] == pytest.approx(hours * 2_000_000, abs=1)


def test_the_worst_jobs_are_those_of_money_or_of_share(mirror: Path) -> None:
    by_money = data_of("worst", "--mirror", mirror, "-n", 5)["jobs"]
    by_share = data_of("worst", "--mirror", mirror, "-n", 5, "--order", "share")["jobs"]
    lost = [job["lost"]["micro"] for job in by_money]
    assert lost == sorted(lost, reverse=True)
    assert [job["goodput_percent"] for job in by_share] == sorted(job["goodput_percent"] for job in by_share)
    assert len(by_money) == 5
    assert 1 <= len(by_share) <= 5  # Only those that ran for an hour.


def test_hosts_are_listed_with_what_the_data_could_find(mirror: Path) -> None:
    shown = run("hosts", "--mirror", mirror).stdout
    assert "listed with at most 5 % false among them" in shown
    assert "x as often or more" in shown
    assert FLEET.lemon in shown


def test_text_of_a_question_is_printed_for_both_dialects(mirror: Path) -> None:
    assert "BIGNUMERIC" in run("sql", "lost_by_cause", "--dialect", "bigquery", "--by", "zone").stdout
    assert "DECIMAL(38, 0)" in run("sql", "lost_by_cause").stdout
    assert "read_parquet(" in run("sql", "tables", "--mirror", mirror).stdout
    assert "ISOWEEK" in run("sql", "tables", "--dialect", "bigquery").stdout


@pytest.mark.parametrize("part", ["report", "worst", "hosts"])
@pytest.mark.parametrize("columns", [60, 80])
def test_tables_fit_the_terminal(part: str, columns: int, mirror: Path) -> None:
    shown = run_in_terminal([str(GOODPUT), "fleet", part, "--mirror", str(mirror), "--no-color"], columns=columns)
    assert shown.code == 0
    assert "\x1b" not in shown.output
    for block in shown.output.split("\n\n"):
        lines = block.splitlines()
        if len(lines) > 1 and set(lines[1].strip()) == {"-", " "}:
            assert max(map(len, lines)) <= columns, block


def test_the_page_is_one_file_that_needs_no_other(mirror: Path, tmp_path: Path) -> None:
    page = tmp_path / "fleet.html"
    done = run("report", "--mirror", mirror, "--html", page)
    assert f"Page saved to {page}." in done.stderr
    text = page.read_text()
    assert not re.search(r"""(src|href)=|url\(|@import|https?://(?!www\.w3\.org)""", text)
    assert text.count("<table") >= 6
    assert FLEET.lemon in text
    for header in ("blamed", "expected", "p", "q"):
        assert re.search(rf'title="[^"]+"><button[^>]*>{header}<', text)
    assert run("report", "--mirror", mirror, "--html", page, "--quiet").stderr == ""


@pytest.mark.parametrize(("option", "name"), [("--html", "fleet.html"), ("--png", "fleet.png")])
def test_a_disk_that_is_full_is_an_error_and_not_a_traceback(
    option: str, name: str, mirror: Path, tmp_path: Path
) -> None:
    if option == "--png":
        pytest.importorskip("matplotlib")
    (tmp_path / name).symlink_to("/dev/full")
    full = run("report", "--mirror", mirror, option, tmp_path / name)
    assert (full.returncode, full.stdout) == (1, "")
    assert full.stderr.startswith("goodput: ")
    absent = run("report", "--mirror", mirror, option, tmp_path / "absent" / name)
    assert absent.returncode in (2, 3)
    assert "Traceback" not in full.stderr + absent.stderr


def test_files_are_written_also_if_the_reader_of_the_text_leaves(mirror: Path, tmp_path: Path) -> None:
    page = tmp_path / "fleet.html"
    page.write_text("an older page")
    command = f"'{GOODPUT}' fleet report --mirror '{mirror}' --format json --html '{page}' | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "{\n"
    assert FLEET.lemon in page.read_text()


def test_names_of_others_are_text_on_the_page(tmp_path: Path) -> None:
    from ml_diagnostics_fleet.overview import overview_of
    from ml_diagnostics_fleet.page import page_of
    from ml_diagnostics_fleet.reports import FleetReports

    from .test_reports import small_fleet

    small_fleet(tmp_path, team="<script>alert(1)</script>", job='"><b>')
    with FleetReports(tmp_path) as reports:
        text = page_of(overview_of(reports))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert '"><b>' not in text


@pytest.mark.parametrize("name", ["fleet.png", "fleet.svg"])
def test_the_picture_is_drawn_in_both_themes(name: str, mirror: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    light, dark = tmp_path / f"light-{name}", tmp_path / f"dark-{name}"
    assert run("report", "--mirror", mirror, "--png", light).returncode == 0
    assert run("report", "--mirror", mirror, "--png", dark, "--dark", "--by", "team,zone,week").returncode == 0
    assert light.stat().st_size > 10_000
    assert dark.read_bytes() != light.read_bytes()


def test_a_gap_is_a_note_and_with_strict_a_failure(mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    shutil.copytree(mirror / "v1" / "segments", folder / "v1" / "segments")
    segments = sorted((folder / "v1" / "segments").glob("*/*/*.jsonl.gz"), key=lambda path: path.name.split(".")[-4])
    by_writer: dict[str, list[Path]] = {}
    for path in segments:
        by_writer.setdefault(path.name.split(".")[0], []).append(path)
    next(paths for paths in by_writer.values() if len(paths) > 1)[0].unlink()
    compacted = run("compact", "--mirror", folder, "--as-of", AS_OF)
    assert compacted.returncode == 0
    assert "are missing" in compacted.stderr
    assert run("compact", "--mirror", folder, "--as-of", AS_OF, "--strict").returncode == 1
    assert run("run", "--mirror", folder, "--as-of", AS_OF).returncode == 0
    report = run("report", "--mirror", folder)
    assert report.returncode == 0
    assert "1 job with gaps" in report.stdout
    assert "incomplete" in report.stdout
    named = re.search(r"entries [\d,]+ to [\d,]+ of \S+ are missing, in \S+", report.stdout)
    assert named is not None
    assert named[0].replace(",", "") in compacted.stderr.replace(",", "")
    (gap,) = data_of("report", "--mirror", folder)["quality"]["gaps"]
    assert f"of {gap['writer']} are missing, in {gap['log']}" in named[0]
    assert run("report", "--mirror", folder, "--strict").returncode == 1


def test_more_than_one_percent_of_failed_jobs_is_a_failure(tmp_path: Path) -> None:
    from ml_diagnostics_fleet.job_rows import error_rows
    from ml_diagnostics_fleet.schemas import JobKey

    from .test_reports import write_rows

    write_rows(tmp_path, error_rows(JobKey("log", "job"), "broken", AS_OF_NS), AS_OF_NS)
    done = run("report", "--mirror", tmp_path)
    assert done.returncode == 1
    assert "1 of 1 jobs could not be read: more than 1 %" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("report",), 2, "ML_DIAGNOSTICS_MIRROR"),
        (("report", "--mirror", "{folder}"), 3, "goodput fleet run"),
        (("report", "--mirror", "s3://bucket"), 2, "s3://"),
        (("report", "--mirror", "{mirror}", "--by", "nobody"), 2, "expected different groups of team"),
        (("report", "--mirror", "{mirror}", "--cost", "3"), 2, "3.22/chip-hour"),
        (("report", "--mirror", "{mirror}", "--as-of", "2020-01-01"), 3, "not after that moment"),
        (("report", "--mirror", "{mirror}", "--png", "a.txt"), 2, ".png"),
        (("report", "--mirrors", "{mirror}"), 2, "--mirror"),
        (("sql", "nothing"), 2, "lost_by_cause"),
        (("sql", "tables"), 2, "--mirror"),
        (("run", "--mirror", "{folder}", "--from", "segments"), 2, "--engine beam"),
        (("run", "--mirror", "{folder}", "--engine", "beam", "--processes", "2"), 2, "--engine local"),
        ((), 2, "PART"),
    ],
)
def test_bad_input_is_an_error_at_once(
    arguments: tuple[str, ...], code: int, text: str, mirror: Path, tmp_path: Path
) -> None:
    filled = [argument.format(mirror=mirror, folder=tmp_path) for argument in arguments]
    done = run(*filled, environ={"ML_DIAGNOSTICS_MIRROR": ""})
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_prices_are_needed_if_costs_are_asked_for(tmp_path: Path) -> None:
    from .test_reports import small_fleet

    small_fleet(tmp_path)
    done = run("report", "--mirror", tmp_path, "--cost")
    assert done.returncode == 2
    assert "dimensions/prices.parquet" in done.stderr
    assert "job-hours" not in run("report", "--mirror", tmp_path).stdout


def test_the_mirror_of_the_environment_is_the_default(mirror: Path) -> None:
    done = run("worst", "-n", 1, environ={"ML_DIAGNOSTICS_MIRROR": str(mirror)})
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3


def test_help_of_a_part_lists_the_exit_codes_and_common_options() -> None:
    text = " ".join(run("report", "--help").stdout.split())
    for part in ("exit codes: 0 done, 1 failed, 2 usage error", "--quiet", "--no-color", "--strict"):
        assert part in text


def test_without_the_package_the_command_names_it() -> None:
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **_: (); "
        "from ml_goodput_measurement.cli import main; raise SystemExit(main(['fleet', 'report']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "pip install ml-diagnostics-fleet" in done.stderr


def test_files_of_a_part_are_completed() -> None:
    done = subprocess.run([str(GOODPUT), "--print-completion", "bash"], capture_output=True, text=True, check=True)
    assert "_fleet_report___html_COMPGEN=_shtab_compgen_files" in done.stdout
    assert "_fleet_worst_option_strings" in done.stdout
