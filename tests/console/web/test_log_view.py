"""Logs of a job: the tail, pages, a search, around a step; without secrets and control characters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._web.log_sources import part_of
from ml_diagnostics_console._web.log_view import level_of

from ..real_jobs import run_job
from .recorded import Page, page_of

_PRINTS = r"""
for number in range(3000):
    print(f"line {number}", flush=number % 100 == 0)
print("\x1b[31mred\x1b[0m \u202eoverride <img src=x onerror=alert(1)>")
for _ in range(5):
    print("the same")
sys.exit(3)
"""


@pytest.fixture(scope="module")
def printed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("printed")
    run_job(folder, _PRINTS)
    return folder


@pytest.fixture
def printed(printed_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page of a real job that has printed much."""
    return page_of(printed_folder, monkeypatch)


def source(page: Page, stream: str) -> dict[str, str]:
    sources = page.json("/logs")["sources"]
    found = next(each for each in sources if each["stream"] in (stream, "output"))
    return {"host": found["host"], "stream": found["stream"]}


def test_the_streams_of_a_job_are_listed(printed: Page) -> None:
    answer = printed.json("/logs")
    assert answer["help"] is None
    assert {each["stream"] for each in answer["sources"]} >= {"companion"}
    assert max(each["size"] for each in answer["sources"]) > 20_000


def test_the_tail_is_whole_lines_of_the_last_bytes(printed: Page) -> None:
    answer = printed.ask("/logs", source(printed, "stdout"), tail=4096)
    lines = answer.body.decode().splitlines()
    assert lines[-1] == "the same"
    assert 3900 < len(answer.body) <= 4200
    assert all(line.startswith("line ") for line in lines[:-6])
    assert answer.headers["X-Log-Next"] == answer.headers["X-Log-Size"]


def test_pages_by_ranges_are_the_whole_log(printed: Page) -> None:
    where, position, text = source(printed, "stdout"), 0, ""
    while True:
        answer = printed.ask("/logs", where, range=f"{position}-{position + 5000}")
        assert int(answer.headers["X-Log-From"]) == position
        text += answer.body.decode()
        position = int(answer.headers["X-Log-Next"])
        if position == int(answer.headers["X-Log-Size"]):
            break
    assert [line for line in text.splitlines() if line.startswith("line ")] == [f"line {n}" for n in range(3000)]


def test_escapes_are_shown_as_text(printed: Page) -> None:
    text = printed.ask("/logs", source(printed, "stdout")).body.decode()
    assert "red \\u202eoverride <img src=x onerror=alert(1)>" in text
    assert "\x1b" not in text


def test_a_search_finds_lines_and_counts_equal_ones(printed: Page) -> None:
    answer = printed.json("/logs", q="THE SAME")
    (line,) = answer["lines"]
    assert (line["text"], line["count"], line["level"]) == ("the same", 5, "info")
    assert answer["is_complete"]
    assert printed.json("/logs", q="no such text")["lines"] == []


def test_levels_are_found_and_secrets_are_not_sent(failed: Page) -> None:
    errors = failed.json("/logs", level="error")
    assert any("ValueError: batch 30 is empty" in line["text"] for line in errors["lines"])
    warnings = failed.json("/logs", level="warning")
    assert any("retrying the read" in line["text"] for line in warnings["lines"])
    assert warnings["counts"]["error"] == errors["counts"]["error"] > 0
    answers = [failed.ask("/logs", {"q": "batch"}).body, failed.ask("/logs", source(failed, "stdout")).body]
    for answer in answers:
        assert b"batch 30 is loaded" in answer
        assert b"hunter2secret" not in answer


def test_the_lines_around_a_step_are_of_its_time(failed: Page) -> None:
    answer = failed.json("/logs", around="step:29", window=20)
    assert any("batch 30" in line["text"] for line in answer["lines"])
    assert all(abs(line["time"] - answer["at"]) <= 10.001 for line in answer["lines"])
    unknown = failed.json("/logs", around="step:4210")
    assert unknown["lines"] == []
    assert "step 4210 is not known" in unknown["help"]


def test_a_run_without_logs_says_what_would_keep_them(restarted: Page, empty: Page) -> None:
    answer = restarted.json("/logs")
    assert answer["sources"] == []
    assert "python -m cloud_tpu_diagnostics run" in answer["help"]
    assert empty.json("/logs", q="x")["lines"] == []


@pytest.mark.parametrize(
    ("status", "query"),
    [
        (400, {"around": "lunch"}),
        (400, {"level": "loud"}),
        (400, {"stream": "output", "range": "9-1"}),
        (400, {"stream": "output", "range": "a-b"}),
        (404, {"host": "nope", "stream": "stdout"}),
        (404, {"host": "../../etc/passwd", "stream": "stdout"}),
        (404, {"stream": "nope"}),
        (400, {"stream": "output", "tail": "-5"}),
    ],
)
def test_bad_queries_are_refused_with_a_sentence(failed: Page, status: int, query: dict[str, str]) -> None:
    streams = {each["stream"] for each in failed.json("/logs")["sources"]}
    if query.get("stream") == "output" and "output" not in streams:
        query = {**query, "stream": "stdout"}
    assert failed.error(status, "/logs", query)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("E1127 19:53:45.409179 2789 grpc.cc:1] failed", "error"),
        ("Traceback (most recent call last):", "error"),
        ("ValueError: batch 12 is empty", "error"),
        ("jax.errors.JaxRuntimeError: UNKNOWN: Gloo", "error"),
        ("2026-11-27 ERROR trainer: no data", "error"),
        ("The job has made no progress for about 5 s", "error"),
        ("W1127 19:53:45.409179 2789 x.cc:1] slow", "warning"),
        ("UserWarning: deprecated", "warning"),
        ("step 7 loss 1.5", "info"),
        ("error rate 0.1", "info"),
    ],
)
def test_levels_of_lines(text: str, level: str) -> None:
    assert level_of(text) == level


@given(lines=st.lists(st.text(st.characters(categories=["L", "N"]), max_size=12), max_size=20), size=st.integers(1, 60))
def test_parts_of_a_text_join_to_the_whole(lines: list[str], size: int) -> None:
    text = "".join(f"{line}\n" for line in lines)
    position, joined = 0, ""
    while position < len(text.encode()):
        part = part_of(text, position, position + size)
        assert (part.start, part.size) == (position, len(text.encode()))
        assert part.end > position
        joined, position = joined + part.text, part.end
    assert joined == text


@given(start=st.integers(-3000, 3000), length=st.integers(0, 3000))
def test_no_part_has_a_line_of_a_printed_key(start: int, length: int) -> None:
    body = "".join(f"MIIEpAIBAAKCAQEA{number:048d}\n" for number in range(24))
    text = f"before\n-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\nafter\n" * 2
    part = part_of(text, start, start + length if start >= 0 else 2**62)
    assert "MIIE" not in part.text
    assert "PRIVATE KEY" not in part.text


def test_parts_with_a_printed_key_follow_each_other() -> None:
    body = "".join(f"MIIEpAIBAAKCAQEA{number:048d}\n" for number in range(24))
    text = f"before\n-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\nafter\n"
    for size in (1, 50, 700, 10_000):
        position, joined = 0, ""
        while position < len(text):
            part = part_of(text, position, position + size)
            assert part.start == position
            joined, position = joined + part.text, part.end
        assert joined == "before\n[REDACTED]\nafter\n"


def test_a_key_without_an_end_hides_a_bounded_part() -> None:
    text = "-----BEGIN RSA PRIVATE KEY-----\n" + "step 1 loss 2.5\n" * 10_000
    part = part_of(text, -4096, 2**62)
    assert part.text.startswith("step 1 loss 2.5\n")
    assert part_of(text, 0, 100).end < len(text)


def test_answers_are_json_whatever_was_printed(printed: Page) -> None:
    assert json.dumps(printed.json("/logs", level="all", q="red"))
