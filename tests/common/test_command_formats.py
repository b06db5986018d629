"""Output of commands: tables, JSON, YAML and CSV, and texts that cannot control the terminal."""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.command.console import RED, Console
from ml_diagnostics_common.command.formats import first_and_last, format_data, format_table, with_gap
from ml_diagnostics_common.command.options import seconds
from ml_diagnostics_common.command.program import edits, nearest_flag

HEADERS = ("Log_Directory", "URL", "Name", "Zone")
_words = st.text(st.characters(min_codepoint=33, max_codepoint=0x17F, exclude_characters="\x7f\xad"), max_size=20)
_cells = _words.filter(str.isprintable)
_data: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda values: st.lists(values) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values),
    max_leaves=10,
)


@given(st.lists(st.tuples(_cells, _cells, _cells, _cells), max_size=6))
def test_a_table_has_the_style_simple_of_tabulate(rows: list[tuple[str, str, str, str]]) -> None:
    tabulate = pytest.importorskip("tabulate")
    lines = format_table([f"{header}  " for header in HEADERS], rows)  # tabulate adds two spaces to headers.
    assert "\n".join(lines) == tabulate.tabulate(rows, HEADERS, disable_numparse=True)


@pytest.mark.parametrize("count", [1, 12, 13, 40])
def test_a_long_table_has_its_first_and_last_rows_and_the_number_of_the_others(count: int) -> None:
    shown = first_and_last(range(count))
    lines = with_gap(format_table(["row"], [[str(row)] for row in shown], indent="  "), count, "row")
    gap = [line for line in lines if "--format json has all" in line]
    assert gap == ([f"  ... {count - 12} more row{'s' * (count > 13)}; --format json has all"] if count > 12 else [])
    rows = [int(line) for line in lines[2:] if line not in gap]
    assert rows == [row for row in range(count) if row < 6 or row >= count - 6]
    assert not gap or lines[8] == gap[0]


def test_names_that_are_valid_numbers_are_not_changed() -> None:
    assert format_table(["Name"], [["1e5"], ["007"]])[2:] == ["1e5", "007"]


def test_columns_are_aligned_and_indented() -> None:
    assert format_table(["a", "size"], [["xy", "1"], ["z", "23"]], "<>", indent=" ") == [
        " a   size",
        " --  ----",
        " xy     1",
        " z     23",
    ]
    assert format_table((), [["name", "x"], ["group", "y"]]) == ["name   x", "group  y"]


@given(st.text())
def test_a_cell_is_one_line(text: str) -> None:
    assert len("\n".join(format_table(["Name"], [[f"a{text}"]])).splitlines()) == 3


@given(st.lists(st.tuples(_cells, _cells), min_size=1, max_size=4), st.integers(30, 90))
def test_a_table_fits_the_terminal(rows: list[tuple[str, str]], width: int) -> None:
    cells = [("name", *row, "x" * 40) for row in rows]
    lines = format_table(
        ["id", "first", "second", "why"], cells, width=width, cut=["why", "first", "second"], indent=" "
    )
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(" id")


def test_the_least_important_column_is_cut_first() -> None:
    rows = [["x" * 20, "y" * 40]]
    assert format_table(["name", "why"], rows, width=40, cut=["why", "name"])[2] == f"{'x' * 20}  {'y' * 15}..."
    assert format_table(["name", "why"], rows, width=34, cut=["why", "name"])[2] == f"{'x' * 13}...  {'y' * 13}..."


def test_columns_that_must_be_copied_are_not_cut() -> None:
    assert format_table(["url"], [["u" * 90]], width=40)[2] == "u" * 90


def test_values_of_csv_are_not_formulas() -> None:
    rows: list[dict[str, Any]] = [{"a": "=cmd|' /C calc'!A0", "b": "-1.5"}, {"a": "@SUM(1)", "b": -2}]
    assert format_data(None, "csv", rows, ("a", "b")) == "a,b\n'=cmd|' /C calc'!A0,-1.5\n'@SUM(1),-2"


def test_values_of_csv_are_quoted() -> None:
    assert format_data(None, "csv", [{"a": 'x,"y"', "b": None}], ("a", "b")) == 'a,b\n"x,""y""",'


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_data)
def test_yaml_and_json_are_the_same_data(document: Any) -> None:
    yaml = pytest.importorskip("yaml")
    assert json.loads(format_data(document, "json")) == document
    assert yaml.safe_load(format_data(document, "yaml")) == document


def test_yaml_is_easy_to_read() -> None:
    document = {"job": "a-1", "buckets": {"x": 1.5}, "notes": [], "attempts": [{"number": 1, "why": "no: data"}, "yes"]}
    assert format_data(document, "yaml").splitlines() == [
        "job: a-1",
        "buckets:",
        "  x: 1.5",
        "notes: []",
        "attempts:",
        "  - number: 1",
        '    why: "no: data"',
        '  - "yes"',
    ]


@given(st.text())
def test_no_text_controls_the_terminal(text: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console("p", is_verbose=True, out=out, err=err, answers=io.StringIO("n\n"))
    console.data(text)
    console.notify(text)
    console.warn(text)
    console.detail(text)
    console.confirms(text)
    shown = out.getvalue() + err.getvalue()
    assert not any((ord(letter) < 32 and letter not in "\n\t") or 127 <= ord(letter) < 160 for letter in shown)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colors_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def shown(stream: io.StringIO, *, may_use_color: bool = True) -> str:
        console = Console("p", out=stream, err=stream, may_use_color=may_use_color)
        console.data("all FAILED \x1b[0m", styles={"FAILED": RED})
        console.warn("bad")
        return stream.getvalue()

    plain = "all FAILED \\x1b[0m\np: bad\n"
    assert shown(_Terminal()) == "all \x1b[31mFAILED\x1b[0m \\x1b[0m\n\x1b[31mp: bad\x1b[0m\n"
    assert shown(io.StringIO()) == plain
    assert shown(_Terminal(), may_use_color=False) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(_Terminal()) == plain


def test_quiet_prints_data_and_errors_only() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console("p", is_quiet=True, out=out, err=err)
    console.data("data")
    console.notify("progress")
    console.warn("problem")
    assert (out.getvalue(), err.getvalue()) == ("data\n", "p: problem\n")


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90.0), ("0.5", 0.5), ("90s", 90.0), ("30m", 1800.0), ("2d", 172800.0)]
)
def test_durations_have_units(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "0", "-1h", "8 h", " 8", "1w", "٣h", "nan", "inf"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration"):
        seconds(text)


@given(st.text("abcdef-", min_size=1), st.text("abcdef-", min_size=1))
def test_edits_are_a_distance(one: str, other: str) -> None:
    assert edits(one, other) == edits(other, one)
    assert (edits(one, other) == 0) == (one == other)
    assert abs(len(one) - len(other)) <= edits(one, other) <= max(len(one), len(other))


@given(st.text("abcdef-", min_size=4), st.data())
def test_two_wrong_letters_are_two_edits(word: str, data: st.DataObject) -> None:
    first, second = sorted(data.draw(st.sets(st.integers(0, len(word) - 1), min_size=2, max_size=2)))
    typed = word[:first] + "\0" + word[first + 1 : second] + word[second + 1 :]
    assert edits(typed, word) == 2


def test_a_swap_is_one_edit() -> None:
    assert edits("--zonse", "--zones") == 1


def test_an_option_more_than_two_edits_away_is_not_a_near_miss() -> None:
    flags = ["-z", "--zones", "--filter", "--format"]
    assert nearest_flag("--zoness=a", flags) == "--zones"
    assert nearest_flag("--limit=2", flags) is None
    assert nearest_flag("--project", flags) is None
    assert nearest_flag("zones", flags) is None
    assert nearest_flag("-zone", flags) is None


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected the format json, yaml or csv, got 'table'"):
        format_data({"a": 1}, "table")
