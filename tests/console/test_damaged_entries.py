"""Damaged entries, such as those of a disk with errors: the doctor answers, without a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_console._facts.entries import Lives
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.faultbench import read

from .made_facts import facts, process
from .test_facts import end, entries_of

_ARCHIVES = ("exception-in-input-0", "deadlock-0", "cgroup-memory-0", "config-skew-0")
_JOURNALS = ("ml_diagnostics_metric", "tpu.googleapis.com%2Fruntime_monitor")

_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module", params=_ARCHIVES)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a stored run."""
    folder = tmp_path_factory.mktemp("stored")
    with read(Path(__file__).parent / "histories" / f"{request.param}.tar.xz", folder) as history:
        shutil.copytree(history.diagnostics, folder / "kept")
    return folder / "kept"


def _damage(entry: Any, draw: st.DataObject) -> Any:
    """Return an entry's payload with one value, at any depth, replaced."""
    if isinstance(entry, dict) and entry and draw.draw(st.integers(0, 3)):
        name = draw.draw(st.sampled_from(["kind", *entry] if "kind" in entry else [*entry]))
        return {**entry, name: _damage(entry[name], draw)}
    if isinstance(entry, list) and entry and draw.draw(st.booleans()):
        number = draw.draw(st.integers(0, len(entry) - 1))
        return [*entry[:number], _damage(entry[number], draw), *entry[number + 1 :]]
    return draw.draw(_junk)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_damaged_values_of_entries_give_an_answer(stored: Path, draw: st.DataObject) -> None:
    root = diagnostics_directory()
    shutil.rmtree(root)
    shutil.copytree(stored, root)
    for journal in _JOURNALS:
        for path in sorted((root / "journal" / journal).glob("*.jsonl")):
            header, *lines = path.read_text(encoding="utf-8").splitlines()
            entries = [json.loads(line) for line in lines]
            for number in draw.draw(st.lists(st.integers(0, max(0, len(entries) - 1)), min_size=1, max_size=4)):
                if number < len(entries):
                    entries[number]["p"] = _damage(entries[number]["p"], draw)
            path.write_text("\n".join([header, *map(json.dumps, entries), ""]), encoding="utf-8")
    report = judge(JobReader(Question("last", kubernetes="off"), lambda _: None).read())
    assert report.headline.sentence


@pytest.mark.parametrize("kind", [["job_ended"], {"a": 1}, None, 3])
def test_a_kind_of_another_type_after_an_end_is_read(kind: object) -> None:
    lives = Lives()
    lives.add(entries_of([end("exit", 10, exit_code=3)]))
    lives.add(entries_of([(11.0, {"kind": kind})], writer_at=11.0))
    assert lives.labelled(["run-1"])


def _broken(known: Facts) -> Judgement:
    raise KeyError(known.name)


_BROKEN = Rule("X1", "a rule with an error", ("entries",), _broken)


@pytest.mark.usefixtures("in_production")
def test_a_rule_that_fails_is_not_checked_and_the_others_answer() -> None:
    report = judge(facts([process(0, end="exception: ValueError: x")]), [_BROKEN])
    assert [each.rule for each in report.not_checked] == ["X1"]
    assert "KeyError" in report.not_checked[0].why


def test_a_rule_that_fails_is_an_error_under_test() -> None:
    with pytest.raises(KeyError):
        judge(facts([process(0)]), [_BROKEN])
