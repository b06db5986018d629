"""How lists are written: the table as tabulate has always written it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xprofiler.console import Console
from xprofiler.output import format_records, format_table
from xprofiler.parallel import in_parallel

HEADS = ("Log_Directory", "URL", "Name", "Zone")
_words = st.text(st.characters(min_codepoint=33, max_codepoint=0x17F, exclude_characters="\x7f\xad"), max_size=20)
_cells = _words.filter(str.isprintable)


@given(st.lists(st.tuples(_cells, _cells, _cells, _cells), max_size=6))
def test_the_table_is_that_of_tabulate(rows: list[tuple[str, str, str, str]]) -> None:
    tabulate = pytest.importorskip("tabulate")
    assert format_table(HEADS, rows) == tabulate.tabulate(rows, HEADS, disable_numparse=True)


def test_names_that_look_like_numbers_stay_as_they_are() -> None:
    assert format_table(["Name"], [["1e5"], ["007"]]).splitlines()[2:] == ["1e5", "007"]


@given(st.text())
def test_a_cell_is_one_line(text: str) -> None:
    assert len(format_table(["Name"], [[f"a{text}"]]).splitlines()) == 3


def test_values_of_csv_are_no_formulas() -> None:
    records = [{"a": "=cmd|' /C calc'!A0", "b": "-1.5"}, {"a": "@SUM(1)", "b": -2}]
    expected = "a,b\n'=cmd|' /C calc'!A0,-1.5\n'@SUM(1),-2"
    assert format_records(records, "csv", ("a", "b")) == expected


def test_values_of_csv_are_quoted() -> None:
    assert format_records([{"a": 'x,"y"', "b": None}], "csv", ("a", "b")) == 'a,b\n"x,""y""",'


@given(st.text())
def test_no_text_rules_the_terminal(text: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(is_verbose=True, out=out, err=err, answers=io.StringIO("n\n"))
    console.data(text)
    console.notify(text)
    console.detail(text)
    console.confirms(text)
    shown = out.getvalue() + err.getvalue()
    assert not any((ord(letter) < 32 and letter not in "\n\t") or 127 <= ord(letter) < 160 for letter in shown)


def test_things_done_side_by_side_come_back_in_their_order() -> None:
    def halved(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number // 2

    found = in_parallel(halved, range(100))
    assert [one for one in found if not isinstance(one, Exception)] == list(range(50))
    assert [one.args[0] for one in found if isinstance(one, ValueError)] == list(range(1, 100, 2))
    assert in_parallel(halved, []) == []
