from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.payload import encode_payload, encode_text, printable


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(blacklist_categories=()))
    | st.binary()
    | st.datetimes()
    | st.sampled_from([np.float32("nan"), np.int64(7), np.array([1, 2]), 10**1000, Hostile(), object])
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner) | st.dictionaries(_scalars.filter(lambda value: _hashable(value)), inner),
    max_leaves=10,
)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@given(st.dictionaries(st.text(st.characters(blacklist_categories=())), _anything, max_size=4))
def test_any_payload_becomes_one_line_that_a_strict_reader_accepts(payload: dict[str, Any]) -> None:
    line = encode_payload(payload)
    assert "\n" not in line
    assert isinstance(msgspec.json.decode(line), dict)


def test_ordinary_payloads_are_written_as_they_are() -> None:
    payload = {"job_name": "j", "n": 3, "x": 0.1, "list": [1, None, True], "inner": {"ü": "€😀"}}
    assert json.loads(encode_payload(payload)) == payload


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (np.float64(1.5), 1.5),
        (np.int64(5), 5),
        (np.array(5), 5),
        ({1}, [1]),
        (("a", b"b"), ["a", "b'b'"]),
        ("\udc80", "\\udc80"),
        (Hostile(), "<Hostile>"),
    ],
)
def test_values_that_json_does_not_have_are_written_in_the_most_specific_form(value: Any, written: Any) -> None:
    assert json.loads(encode_payload({"value": value, "other": 1})) == {"value": written, "other": 1}


def test_a_payload_that_contains_itself_ends() -> None:
    payload: dict[str, Any] = {"name": "j"}
    payload["self"] = payload
    text = encode_payload(payload)
    assert '"..."' in text
    assert len(text) < 2_000


def test_names_that_differ_in_a_surrogate_stay_different() -> None:
    assert printable("a\udc80") != printable("a\udc81")
    assert json.loads(encode_text('"\n\udc80')) == '"\n\\udc80'


def test_a_name_from_the_arguments_of_a_process_with_a_c_locale_is_the_same_name() -> None:
    typed = "模型-é".encode().decode("ascii", "surrogateescape")
    assert printable(typed) == "模型-é"
    assert json.loads(encode_payload({"job_name": typed})) == {"job_name": "模型-é"}


def test_an_integer_too_long_to_be_printed_is_written_in_part() -> None:
    assert json.loads(encode_payload({"n": 10**5000}))["n"] == hex(10**5000)[:64]


def test_a_payload_that_contains_itself_twice_ends_too() -> None:
    twice: list[Any] = []
    twice += [twice, twice]
    assert json.loads(encode_payload({"x": twice, "n": 1})) == {"x": ["...", "..."], "n": 1}


@pytest.mark.timing
def test_a_payload_that_is_too_big_is_cut_with_a_note() -> None:
    value: Any = float("nan")
    for _ in range(25):  # 33 million values, of 25 lists.
        value = [value, value]
    started = time.monotonic()
    text = encode_payload({"x": value, "n": 1})
    assert time.monotonic() - started < 5
    assert '"..."' in text
    assert len(text) < 2_000_000


class BrokenText(str):
    def encode(self, *_: Any) -> bytes:
        raise RuntimeError("no bytes")


class BrokenInteger(int):
    def __int__(self) -> int:
        raise RuntimeError("no integer")


class BrokenFloat(float):
    def __float__(self) -> float:
        raise RuntimeError("no float")


class BrokenMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no item")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")

    def __len__(self) -> int:
        return 1


class BrokenDict(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class BrokenList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no iteration")


class BrokenClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (BrokenText("a"), "a"),
        (BrokenInteger(5), 5),
        (BrokenFloat(1.5), 1.5),
        (BrokenFloat("nan"), "NaN"),
        (BrokenMapping(), "<BrokenMapping>"),
        (BrokenDict(a=1), "<BrokenDict>"),
        (BrokenClass(), "<BrokenClass>"),
    ],
    ids=range(7),  # Their own ids would be made by the broken code.
)
def test_a_value_with_failing_code_affects_only_itself(value: Any, written: Any) -> None:
    tamed = {"nan": float("nan"), "value": value, "other": 1}
    assert json.loads(encode_payload(tamed)) == {"nan": "NaN", "value": written, "other": 1}


@pytest.mark.parametrize("payload", [BrokenMapping(), BrokenDict(a=1), BrokenList([1]), [1], "text"], ids=range(5))
def test_a_value_that_is_not_a_mapping_is_still_written_as_an_object(payload: Any) -> None:
    assert isinstance(json.loads(encode_payload(payload)), dict)


def test_no_call_waits_for_a_device() -> None:
    class OnDevice:
        shape = ()
        dtype = "float32"

        def wait(self) -> Any:
            raise AssertionError("it was waited for")

        item = __str__ = __repr__ = __float__ = wait

    assert json.loads(encode_payload({"loss": OnDevice()})) == {"loss": "<OnDevice shape=() dtype=float32>"}
