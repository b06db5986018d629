"""A run's configs of any type are stored: as text, without secrets, and no larger than can be sent."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import functools
import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from google_cloud_mldiagnostics._user_configs import (
    CUT_KEY,
    MAX_CONFIG_BYTES,
    MAX_TOTAL_BYTES,
    as_mapping,
    to_wire,
)
from google_cloud_mldiagnostics.exceptions import MLRunConfigurationError
from hypothesis import given, settings
from hypothesis import strategies as st


def from_wire(wire: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that a reader restores from the texts of a control plane."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    def value_of(text: str) -> Any:
        try:
            return json.loads(text, parse_constant=refuse)
        except (ValueError, RecursionError):
            return text

    return {key: value_of(text) for key, text in wire.items()}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


class Precision(enum.Enum):
    BF16 = "bf16"
    FP8 = 8


@dataclasses.dataclass
class Optimizer:
    name: str = "adam"
    betas: tuple[float, float] = (0.9, 0.95)


class Odd:
    """An object that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def wire_of(value: object) -> str:
    return to_wire({"config": value})["config"]


def test_values_of_yaml_and_json_are_read_back_unchanged() -> None:
    text = "epochs: 100\nlr: 3e-4\nuse: true\nnothing: null\nname: base\nversion: '1'\nmesh: {data: 4, axes: [x, y]}"
    for configs in (yaml.safe_load(text), json.loads(json.dumps(yaml.safe_load(text)))):
        wire = to_wire(configs)
        assert all(isinstance(value, str) for value in wire.values())
        assert from_wire(wire) == configs


def test_a_text_stays_as_it_is_unless_it_would_be_read_as_something_else() -> None:
    assert to_wire({"a": "adam", "b": 1, "c": "1", "d": True, "e": "true", "f": "gs://bucket/x", "g": ""}) == {
        "a": "adam",
        "b": "1",
        "c": '"1"',
        "d": "true",
        "e": '"true"',
        "f": "gs://bucket/x",
        "g": "",
    }


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_any_json_value_is_kept_and_read_back(configs: dict[str, Any]) -> None:
    wire = to_wire(configs)
    assert len(wire) == len(configs)
    for key, text in wire.items():
        assert isinstance(key, str)
        text.encode()  # No lone surrogates.
    if "" not in configs and "[REDACTED]" not in str(wire) and "(empty)" not in str(wire):
        assert from_wire(wire) == configs


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Precision.BF16, "bf16"),
        (Precision.FP8, "FP8"),
        (Optimizer(), '{"name": "adam", "betas": [0.9, 0.95]}'),
        (np.float32(0.5), "0.5"),
        (np.int64(7), "7"),
        (np.bool_(True), "true"),
        (np.array([1, 2]), "[1, 2]"),
        (np.array(3.0), "3.0"),
        (np.zeros((100, 100)), "<ndarray shape=(100, 100) dtype=float64>"),
        (np.float32, "numpy.float32"),
        (Path("/data/set"), "/data/set"),
        ({"b", "a"}, '["a", "b"]'),
        ((1, (2, 3)), "[1, [2, 3]]"),
        (collections.namedtuple("Shape", "rows columns")(2, 3), '{"rows": 2, "columns": 3}'),  # type: ignore[arg-type, call-arg]
        (types.SimpleNamespace(rate=0.1), '{"rate": 0.1}'),
        (argparse.Namespace(steps=3), '{"steps": 3}'),
        (types.MappingProxyType({"x": {"y": 1}}), '{"x": {"y": 1}}'),
        (collections.OrderedDict(b=1, a=2), '{"b": 1, "a": 2}'),
        (float("nan"), "NaN"),
        ([float("inf"), -float("inf")], '["Infinity", "-Infinity"]'),
        (b"raw \xff", "raw \\xff"),
        (10**400, json.dumps(hex(10**400)[:64] + "... (1,329 bits)")[1:-1]),
        ({Precision.BF16: 1, 2: 3, None: 4, (1, 2): 5}, '{"bf16": 1, "2": 3, "null": 4, "(1, 2)": 5}'),
        ({1: "a", "1": "b"}, '{"1": "a", "1 (str)": "b"}'),
        ("実験", "実験"),
        (json.dumps, "json.dumps"),
        (len, "len"),
        (lambda: 0, None),
        (Odd(), "<Odd>"),
        ({"a": Odd(), "b": 1}, '{"a": "<Odd>", "b": 1}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_python_are_kept_as_what_they_mean(value: object, text: str | None) -> None:
    wire = wire_of(value)
    assert text is None or wire == text
    assert " at 0x" not in wire  # An address differs in each process.


def test_names_of_code_have_no_memory_address() -> None:
    assert wire_of(functools.partial(Optimizer, "sgd")).count(" at 0x") == 0
    assert wire_of(Optimizer).endswith("Optimizer")
    assert wire_of(object()) == "<object object>"


def test_objects_that_turn_into_dicts_are_read_as_those() -> None:
    class OfMlCollections:
        def to_dict(self) -> dict[str, Any]:
            return {"depth": 4, "mlp": {"width": 8}}

    class OfPydantic:
        def model_dump(self) -> dict[str, Any]:
            return {"depth": 4}

    assert wire_of(OfMlCollections()) == '{"depth": 4, "mlp": {"width": 8}}'
    assert as_mapping(OfMlCollections()) == {"depth": 4, "mlp": {"width": 8}}
    assert as_mapping(OfPydantic()) == {"depth": 4}


def test_a_mapping_that_fails_on_one_key_keeps_the_others() -> None:
    class Broken(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            if key == "missing":
                raise KeyError(key)
            return 1

        def __iter__(self) -> Iterator[str]:
            return iter(["missing", "there"])

        def __len__(self) -> int:
            return 2

    assert to_wire(Broken()) == {"missing": "<KeyError>", "there": "1"}


def test_arrays_on_a_device_are_described_and_never_fetched() -> None:
    class OnDevice:
        shape = (8, 128)
        dtype = "bfloat16"

        def __array__(self, *_: object) -> Any:
            raise AssertionError("waited for the device")

        __str__ = __repr__ = tolist = __array__

    assert wire_of({"weights": OnDevice()}) == '{"weights": "<OnDevice shape=(8, 128) dtype=bfloat16>"}'


def test_configs_that_contain_themselves_end() -> None:
    loop: dict[str, Any] = {"rate": 0.1}
    loop["self"] = loop
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    wire = to_wire({"loop": loop, "deep": deep})
    assert json.loads(wire["loop"]) == {"rate": 0.1, "self": {"rate": 0.1, "self": "[CIRCULAR]"}} or (
        json.loads(wire["loop"]) == {"rate": 0.1, "self": "[CIRCULAR]"}
    )
    assert "[TRUNCATED]" in wire["deep"]
    assert "deep is kept in part" in wire[CUT_KEY]


def test_secrets_stay_home() -> None:
    wire = to_wire(
        {
            "api_key": "hunter2",
            "hub": {"hf_token": "hunter2", "max_tokens": 4096},
            "command": ["train", "--password", "hunter2"],
            "database": "postgres://bob:hunter2@db/x",
            "key": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
            "nested": json.dumps({"password": "hunter2"}),
            "settings": Optimizer(name="token=hunter2"),
        }
    )
    everything = json.dumps(wire)
    assert "hunter2" not in everything
    assert "ghp_abc" not in everything
    assert json.loads(wire["hub"])["max_tokens"] == 4096
    assert wire["api_key"] == "[REDACTED]"


@pytest.mark.parametrize(
    "value",
    [
        "word " * 100_000,
        "x" * 1_000_000,
        ["x"] * 100_000,
        [{}] * 100_000,
        [0.123456789012345678] * 100_000,
        {f"key {i}": i for i in range(100_000)},
        ["\x00" * 16] * 10_000,
        set(range(100_000)),
        b"\xff" * 100_000,
        {"é" * 1000: "é" * 100_000},
    ],
    ids=["words", "no space", "list", "dicts", "floats", "keys", "controls", "set", "bytes", "accents"],
)
def test_a_config_that_is_too_large_is_cut_and_marked(value: object, in_production: None) -> None:
    wire = to_wire({"big": value, "small": 1})
    assert len(wire["big"].encode()) <= MAX_CONFIG_BYTES
    assert "[TRUNCATED]" in wire["big"]
    assert wire["small"] == "1"
    assert "big is kept in part" in wire[CUT_KEY]
    if isinstance(value, (list, dict)):
        json.loads(wire["big"])


def test_configs_that_are_too_many_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    wire = to_wire({f"config {i}": "word " * 200 for i in range(1000)})
    sent = sum(len(key.encode()) + len(text.encode()) for key, text in wire.items() if key != CUT_KEY)
    assert MAX_TOTAL_BYTES * 0.9 < sent <= MAX_TOTAL_BYTES
    assert wire["config 0"].startswith("word")
    assert f"config {len(wire) - 1}" in wire[CUT_KEY]
    assert "more is left out" in wire[CUT_KEY]
    assert len(wire[CUT_KEY]) < 1000
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    to_wire({f"config {i}": "word " * 200 for i in range(1000)})
    assert len(caplog.records) == 1


def test_the_users_own_objects_are_never_changed() -> None:
    inner = {"lr": 0.1, 1: {"api_key": "hunter2"}}
    configs = {"inner": inner, 2: [inner]}
    before = repr(configs)
    copied = as_mapping(configs)
    to_wire(copied)
    copied["more"] = 1
    assert repr(configs) == before
    assert copied["inner"] is inner


@pytest.mark.parametrize("configs", [[1], "text", 7, {"a"}, Optimizer, b""], ids=str)
def test_configs_other_than_a_mapping_are_refused_with_what_to_do(configs: object) -> None:
    with pytest.raises(MLRunConfigurationError, match="give a dict"):
        as_mapping(configs)


def test_missing_configs_are_an_empty_mapping() -> None:
    assert as_mapping(None) == {}
    assert to_wire({}) == {}
    assert as_mapping(Optimizer()) == {"name": "adam", "betas": (0.9, 0.95)}


@settings(max_examples=50)
@given(
    st.recursive(
        st.sampled_from([Odd(), float("nan"), "\udc80", np.float32("nan"), object(), 10**30, b"\x00", Ellipsis, type])
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.none() | st.binary(), inner) | st.tuples(inner),
    )
)
def test_no_config_raises(value: object) -> None:
    wire = to_wire({"config": value})
    assert set(wire) <= {"config", CUT_KEY}
    assert len(wire["config"].encode()) <= MAX_CONFIG_BYTES
    assert from_wire(wire)["config"] is not value or isinstance(value, str)
