"""The labels that a user gives a job."""

from __future__ import annotations

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.job_labels import chips_label, configured_labels


def test_labels_are_in_those_of_every_entry() -> None:
    environ = {"ML_DIAGNOSTICS_LABELS": " team=llm, owner=ana ,,", "ML_DIAGNOSTICS_CHIPS": "256"}
    assert configured_labels(environ) == {"team": "llm", "owner": "ana", "chips": "256"}
    labels = identity(environ).labels(job="run-7")
    assert labels.items() >= {"team": "llm", "owner": "ana", "chips": "256", "job": "run-7"}.items()
    assert "team" not in identity({}).labels()
    hash(identity(environ))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("team", "has no value"),
        ("team=", "has no value"),
        ("=llm", "is not valid"),
        ("9=x", "is not valid"),
        ("t m=x", "is not valid"),
        ("job=other", "set themselves"),
        ("writer=w", "set themselves"),
        (f"team={'x' * 64}", "longer than 63"),
        (f"{'x' * 64}=a", "longer than 63"),
    ],
)
def test_a_label_that_is_not_valid_is_left_out_with_a_warning(
    text: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert configured_labels({"ML_DIAGNOSTICS_LABELS": f"a=1,{text},b=2"}) == {"a": "1", "b": "2"}
    assert problem in caplog.text


def test_there_are_sixteen_labels_at_most(caplog: pytest.LogCaptureFixture) -> None:
    labels = configured_labels({"ML_DIAGNOSTICS_LABELS": ",".join(f"n{n}={n}" for n in range(20))})
    assert list(labels) == [f"n{n}" for n in range(16)]
    assert "more than 16" in caplog.text


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "9" * 30, "²"])
def test_chips_that_are_not_a_number_are_left_out_with_a_warning(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert configured_labels({"ML_DIAGNOSTICS_CHIPS": text}) == {}
    assert "ML_DIAGNOSTICS_CHIPS" in caplog.text


@given(st.text(), st.text())
def test_no_text_raises(labels: str, chips: str) -> None:
    found = configured_labels({"ML_DIAGNOSTICS_LABELS": labels, "ML_DIAGNOSTICS_CHIPS": chips})
    assert len(found) <= 17


def backend(platform: str, count: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(platform=platform, device_count=lambda: count)


def test_chips_are_those_of_jax_if_it_has_initialized_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = types.ModuleType("jax._src.xla_bridge")
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    assert chips_label({}) == {}
    for backends, expected in (
        ({}, {}),
        ({"cpu": backend("cpu", 8)}, {}),
        ({"cpu": backend("cpu", 8), "tpu": backend("tpu", 256)}, {"chips": "256"}),
        ({"tpu": backend("tpu", 4)}, {"chips": "4"}),
        ({"a": None, "b": None}, {}),
    ):
        bridge._backends = backends  # type: ignore[attr-defined]
        assert chips_label({}) == expected
    assert chips_label({"ML_DIAGNOSTICS_CHIPS": "7"}) == {"chips": "7"}
