"""Columns as bytes and back."""

from __future__ import annotations

import json
import math
import struct
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._web.answers import BadQueryError, json_answer, text_answer
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.wire import decode, encode

NAMES = st.text(max_size=20)
FLOATS = st.lists(st.floats(), max_size=30)
BYTES = st.binary(max_size=30)


@given(st.dictionaries(NAMES, st.one_of(FLOATS, BYTES), max_size=6), st.text(max_size=50))
def test_what_is_encoded_is_decoded(columns: dict[str, Any], unit: str) -> None:
    arrays = [np.frombuffer(one, np.uint8) if isinstance(one, bytes) else array("d", one) for one in columns.values()]
    data = encode({"columns": list(columns), "unit": unit}, arrays)
    header, decoded = decode(data)
    assert header["unit"] == unit
    assert [name for name, *_ in header["columns"]] == list(columns)
    assert len(data) % 8 == 0
    for (name, length, *kind), given_values in zip(header["columns"], columns.values(), strict=True):
        assert length == len(given_values)
        if isinstance(given_values, bytes):
            assert kind == ["u8"]
            assert decoded[name].tobytes() == given_values
        else:
            assert decoded[name].tobytes() == struct.pack(f"<{length}d", *given_values)


def test_a_browser_finds_each_column_at_a_multiple_of_eight() -> None:
    data = encode({"columns": ["x", "heat", "y"], "unit": "°C"}, [[1.0], np.array([1, 2, 255], np.uint8), [2.0, 3.0]])
    assert data[:4] == b"MLD1"
    length = struct.unpack_from("<I", data, 4)[0]
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert header["columns"] == [["x", 1], ["heat", 3, "u8"], ["y", 2]]
    assert data[8 + length :] == struct.pack("<d", 1.0) + bytes([1, 2, 255, 0, 0, 0, 0, 0]) + struct.pack("<2d", 2, 3)


@pytest.mark.parametrize("data", [b"", b"MLD", b"PNG1" + bytes(20), encode({"columns": ["x"]}, [[1.0]])[:-1]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"MLD1|ends in column"):
        decode(data)


def test_columns_and_names_must_agree() -> None:
    with pytest.raises(ValueError, match="a name for each of 1 columns"):
        encode({"columns": []}, [[1.0]])
    with pytest.raises(ValueError, match="one dimension"):
        encode({"columns": ["x"]}, [[[1.0]]])


def test_json_has_null_for_what_it_has_no_number_for() -> None:
    answer = json_answer({"a": math.nan, "b": [math.inf, 1.5], "c": np.float64(2.5), "d": np.int64(3), "e": "\ud800"})
    found = json.loads(answer.body)
    assert found == {"a": None, "b": [None, 1.5], "c": 2.5, "d": 3, "e": "\\ud800"}
    assert answer.media_type == "application/json"
    assert text_answer("a\udc80").body == b"a\\udc80"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"from": "x"}, "from must be a number, got 'x'"),
        ({"from": "nan"}, "from must be a number"),
        ({"from": "inf"}, "from must be a number"),
        ({"from": "2", "to": "1"}, "from must be less than to"),
        ({"width": "0"}, "width must be from 1 to 4000"),
        ({"width": "4001"}, "width must be from 1 to 4000"),
        ({"width": "-1"}, "width must be a whole number"),
        ({"width": "1" * 5000}, "width must be a whole number"),
        ({"width": "²"}, "width must be a whole number"),
    ],
)
def test_a_parameter_that_is_not_valid_is_refused_with_a_sentence(parameters: dict[str, str], message: str) -> None:
    query = Query(parameters)
    with pytest.raises(BadQueryError, match=message) as caught:
        query.span(), query.width()
    assert len(str(caught.value)) < 150


def test_parameters_have_defaults() -> None:
    query = Query({"from": "1.5", "x": "", "runs": "a,b,,a"})
    assert query.span() == (1.5, math.inf)
    assert Query().span() is None
    assert (query.width(), query.text("x", "none"), query.natural("after", 7)) == (1200, "", 7)
    assert query.choice("x", ("step", "time")) == "step"
    assert query.names("runs") == ["a", "b"]
    with pytest.raises(BadQueryError, match="hosts must be one of , spread, got 'y'"):
        Query({"hosts": "y"}).choice("hosts", ("", "spread"))
