"""Configs of a run, and the differences of runs: numbers by value, paths without the name of the run, words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._web.companions import Companions
from ml_diagnostics_console._web.config_view import compared_words, config_rows, configs
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_data import RunData
from ml_diagnostics_console._web.writers import JournalWriters

from .recorded import Page


def rows_of(answer: dict[str, object]) -> dict[str, dict[str, object]]:
    rows = answer["rows"]
    assert isinstance(rows, list)
    return {row["key"]: row for row in rows}


def test_the_configs_of_one_run_have_no_differences(restarted: Page) -> None:
    answer = restarted.json("/configs")
    rows = rows_of(answer)
    assert rows["learning_rate"]["values"] == ["0.001"]
    assert not any(row["differs"] for row in rows.values())
    assert rows["token"]["values"] != ["abc"]
    assert answer["rows"][0]["section"] == "user"


def test_two_runs_differ_by_value_and_not_by_their_own_names(restarted: Page) -> None:
    answer = restarted.json("/configs", against="llama-2")
    assert [run["id"] for run in answer["runs"]] == ["llama-1", "llama-2"]
    rows = rows_of(answer)
    assert rows["learning_rate"]["differs"]
    assert rows["seed"] == {**rows["seed"], "values": [None, "7"], "differs": False}
    words = rows["flags"]["words"]
    assert isinstance(words, list)
    marked = [[part["text"] for part in parts if part["differs"]] for parts in words]
    assert marked == [["32"], ["64"]]


def test_runs_are_compared_by_how_they_did(restarted: Page) -> None:
    answer = restarted.json("/api/compare", runs="llama-1,llama-2,llama-1")
    top = {row["key"]: row for row in answer["top"]}
    assert top["status"]["values"] == ["completed", "completed"]
    assert top["last step"]["values"] == [999, 99]
    assert top["step time"]["values"] == pytest.approx([0.5, 0.5], rel=0.3)
    assert all(0 < value <= 100 for value in top["goodput"]["values"])
    assert sum(percent for _, percent in top["goodput"]["buckets"][0]) == pytest.approx(100)
    assert set(answer["metrics"]) == {"loss", "learning_rate", "step_time"}
    assert answer["metrics"][-1] == "step_time"
    assert answer["metrics_about"]["step_time"] == {"unit": "s", "has_steps": True, "missing": []}


def test_a_loss_that_is_not_a_number_differs_most() -> None:
    run, other = (RunData(name, Companions(), JournalWriters(Path("nowhere"))) for name in ("run-1", "run-2"))
    for one, last in ((run, math.nan), (other, 0.5)):
        for step in range(20):
            one.columns.column("accuracy", "0", "", "").append(step, 1e9 + step, 0.1 if one is run else 0.9)
            one.columns.column("loss", "0", "", "").append(step, 1e9 + step, 0.5 if step < 10 else last)

    class Runs:
        def run(self, run_id: str) -> RunData:
            return other

    answer = json.loads(configs(run, Query({"against": "run-2"}), Runs()).body)  # type: ignore[arg-type]
    top = {row["key"]: row for row in answer["top"]}
    assert top["last loss"]["values"] == ["NaN", 0.5]
    assert answer["metrics"] == ["loss", "accuracy"]
    assert list(answer["metrics_about"]) == answer["metrics"]


def test_bad_comparisons_are_refused(restarted: Page) -> None:
    assert "at least one run" in restarted.error(400, "/api/compare")
    assert "no run 'nope'" in restarted.error(404, "/api/compare", runs="llama-1,nope")
    assert "no run '../x'" in restarted.error(404, "/configs", against="../x")


def test_a_run_without_configs_says_how_to_give_them(empty: Page) -> None:
    answer = empty.json("/configs")
    assert all(row["section"] == "hardware" for row in answer["rows"])


@pytest.mark.parametrize(
    ("values", "differs"),
    [
        (("0.001", "1e-3"), False),
        (("0.001", "0.002"), True),
        (("nan", "nan"), False),
        (("/runs/a/out", "/runs/b/out"), False),
        (("/runs/a/out", "/data/b/out"), True),
        (("banana", "bbnbnb"), True),
        (("x", None), False),
    ],
)
def test_what_is_a_difference(values: tuple[str, str | None], differs: bool) -> None:
    configs = [{"user": {} if value is None else {"key": value}} for value in values]
    (row,) = config_rows(configs, [["a"], ["b"]])
    assert row["differs"] is differs


def test_no_configs_have_no_rows() -> None:
    assert config_rows([], []) == []
    assert config_rows([{}, {}], [[], []]) == []


@given(values=st.lists(st.one_of(st.none(), st.text("ab -=/,", max_size=30)), max_size=4))
def test_the_parts_of_compared_values_are_the_values(values: list[str | None]) -> None:
    parts = compared_words(values)
    assert ["".join(part["text"] for part in each) for each in parts] == [value or "" for value in values]
    if len({value for value in values if value is not None}) <= 1:
        assert not any(part["differs"] for each in parts for part in each)


def test_a_very_long_value_is_compared_in_time_and_kept_whole() -> None:
    values = [f"{word} " * 20_000 for word in ("a", "b")]
    parts = compared_words(values)
    assert ["".join(part["text"] for part in each) for each in parts] == values


@pytest.mark.parametrize("at", range(-8, 2))
def test_a_secret_at_the_end_of_what_is_shown_of_a_value_is_not_cut_in_two(at: int) -> None:
    secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    value = "x" * (20_000 - len(secret) - 1 - at) + " " + secret
    (row,) = config_rows([{"user": {"notes": value}}], [[]])
    assert "ghp_" not in row["values"][0]
    assert len(row["values"][0]) <= 20_000
