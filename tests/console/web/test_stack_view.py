"""Stacks of hosts that wait for one: groups, a map of hosts, one tree, and each moment that was kept."""

from __future__ import annotations

import itertools
import json

import pytest
from cloud_tpu_diagnostics.reading import Frame
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._web.stack_view import icicle

from .recorded import Page

_FRAMES = [Frame("train.py", line, f"f{line}") for line in range(4)]


def test_the_host_that_all_wait_for_is_odd(hung: Page) -> None:
    answer = hung.json("/stacks")
    odd = [host for host in answer["hosts"] if host["kind"] == "odd"]
    assert len(odd) == 1
    assert len(answer["hosts"]) == 16
    group = answer["groups"][odd[0]["group"]]
    assert group["kind"] == "odd"
    assert group["hosts"] == [odd[0]["name"]]
    assert "__next__" in group["sentence"]
    assert group["unchanged_seconds"] > 60
    assert odd[0]["name"] in answer["sentence"]
    assert "".join(part["text"] for part in answer["parts"]) == answer["sentence"]
    assert [host["index"] for host in answer["hosts"]] == list(range(16))


def test_the_tree_is_as_wide_as_the_hosts_and_its_odd_branch_is_marked(hung: Page) -> None:
    answer = hung.json("/stacks")
    boxes = answer["icicle"]
    assert sum(box["width"] for box in boxes if box["depth"] == 0) == 16
    leaves = [box for box in boxes if box["is_leaf"]]
    assert sum(box["width"] for box in leaves) == 16
    assert {box["kind"] for box in leaves} >= {"most", "odd"}
    lines = answer["folded"].splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 16


def test_an_earlier_moment_can_be_asked_for(hung: Page) -> None:
    answer = hung.json("/stacks")
    first = answer["moments"][0]
    earlier = hung.json("/stacks", at=first)
    assert earlier["at"] == pytest.approx(first, abs=1e-3)
    assert earlier["at"] <= answer["at"]


def test_the_exception_of_a_real_job_left_its_stack(failed: Page) -> None:
    answer = failed.json("/stacks")
    (ended,) = answer["ended"]
    assert ended["text"] == "raised ValueError: batch 30 is empty"
    assert ended["frames"][0]["function"] == "<module>"
    assert [host["kind"] for host in answer["hosts"]] == ["ended"]
    assert answer["help"] is None


def test_without_stacks_the_page_says_what_would_record_them(empty: Page) -> None:
    answer = empty.json("/stacks")
    assert answer["at"] is None
    assert answer["groups"] == answer["moments"] == answer["icicle"] == []
    assert "diagnose" in answer["help"]


@pytest.mark.parametrize("at", ["x", "nan", "-1", "1e300"])
def test_a_bad_moment_is_refused(hung: Page, at: str) -> None:
    assert "at must be" in hung.error(400, "/stacks", at=at)


def test_a_moment_before_all_stacks_is_the_first_one(hung: Page) -> None:
    answer = hung.json("/stacks", at=1)
    assert answer["at"] == pytest.approx(hung.json("/stacks")["moments"][0], abs=1e-3)


@given(
    stacks=st.lists(
        st.tuples(st.lists(st.sampled_from(_FRAMES), max_size=6), st.integers(1, 9), st.sampled_from(["most", "odd"])),
        max_size=8,
    )
)
def test_each_stack_is_a_path_through_the_tree(stacks: list[tuple[list[Frame], int, str]]) -> None:
    boxes = icicle([(frames[::-1], hosts) for frames, hosts, _ in stacks], [kind for *_, kind in stacks])
    assert json.dumps(boxes)
    for depth in range(6):
        row = [box for box in boxes if box["depth"] == depth]
        assert sum(box["width"] for box in row) == sum(hosts for frames, hosts, _ in stacks if len(frames) > depth)
        for before, after in itertools.pairwise(row):
            assert before["start"] + before["width"] <= after["start"]
        for box in row:
            above = [each for each in boxes if each["depth"] == depth - 1]
            assert depth == 0 or any(
                each["start"] <= box["start"] and box["start"] + box["width"] <= each["start"] + each["width"]
                for each in above
            )
