"""The filter language and the order of the runs page, and the answers that it reads: in Node.js."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
import pytest
from ml_diagnostics_console._web.wire import encode

from .node import needs_node, run_script

pytestmark = needs_node

NOW = 1_795_809_279.0


def row(run_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": run_id,
        "name": run_id,
        "group": "",
        "state": "completed",
        "reason": "",
        "verdict": "",
        "started": NOW - 3600,
        "ended": NOW - 1800,
        "beat": NOW - 1800,
        "attempts": "c",
        "goodput": None,
        "step": None,
        "steps": None,
        "loss": None,
        "hosts": 1,
        "config": {},
        "metrics": {},
        "version": 1,
    } | fields


ROWS = [
    row(
        "llama3-8b", state="stuck", group="llama3", hosts=64, loss=1.99, goodput=92.5, started=NOW - 500_000, ended=None
    ),
    row("digits-1e-3", group="digits lr", loss=0.024, config={"learning_rate": "0.001", "data": "gs://corpora/dolma"}),
    row(
        "digits-3e-3",
        state="failed",
        loss=0.5,
        config={"optimizer.lr": "3e-3"},
        verdict="ValueError: labels, of step 97",
    ),
    row(
        "tiny-lm", state="running", ended=None, beat=NOW, loss=None, metrics={"eval/accuracy": 0.93, "host_memory": 2e9}
    ),
]
CASES = {
    "": ["llama3-8b", "digits-1e-3", "digits-3e-3", "tiny-lm"],
    "digits": ["digits-1e-3", "digits-3e-3"],
    "DIGITS dolma": ["digits-1e-3"],
    "digits, valueerror": ["digits-3e-3"],
    "state:failed": ["digits-3e-3"],
    "status:fail": ["digits-3e-3"],
    "state=fail": [],
    "!state:completed": ["llama3-8b", "digits-3e-3", "tiny-lm"],
    "!digits": ["llama3-8b", "tiny-lm"],
    "loss<0.5": ["digits-1e-3"],
    "loss<=0.5": ["digits-1e-3", "digits-3e-3"],
    "loss < 0.5": ["digits-1e-3"],
    "loss>=0.5,loss<1": ["digits-3e-3"],
    "lr>1e-3": ["digits-3e-3"],
    "lr>=1e-3": ["digits-1e-3", "digits-3e-3"],
    "learning_rate=0.001": ["digits-1e-3"],
    "learning_rate=1e-3": ["digits-1e-3"],
    "hosts=64": ["llama3-8b"],
    "hosts!=64": ["digits-1e-3", "digits-3e-3", "tiny-lm"],
    "accuracy>0.9": ["tiny-lm"],
    "eval/accuracy>90%": [],
    "host_memory>1.5GB": ["tiny-lm"],
    "duration>2d": ["llama3-8b"],
    "duration<1h": ["digits-1e-3", "digits-3e-3"],
    "goodput>=90%": ["llama3-8b"],
    'group:"digits lr"': ["digits-1e-3"],
    'group="digits lr" state:completed': ["digits-1e-3"],
    'verdict:"labels, of"': ["digits-3e-3"],
    "data:gs://corpora": ["digits-1e-3"],
    "nothing-has-this": [],
    "constructor:x": [],
    "__proto__=1": [],
    "(": [],
    '"': ["llama3-8b", "digits-1e-3", "digits-3e-3", "tiny-lm"],
    " , ,": ["llama3-8b", "digits-1e-3", "digits-3e-3", "tiny-lm"],
}


def filtered(texts: list[str], rows: list[dict[str, Any]] = ROWS) -> list[dict[str, Any]]:
    """Return for each text the ids of the rows that pass, and the problems."""
    found: list[dict[str, Any]] = run_script(
        """
const { filterRows } = await load("filter.js");
answer(given.texts.map((text) => {
  const { rows, problems } = filterRows(given.rows, text, given.now);
  return { ids: rows.map(({ id }) => id), problems };
}));""",
        {"texts": texts, "rows": rows, "now": NOW},
    )
    return found


def test_the_filter_passes_what_it_says() -> None:
    found = filtered(list(CASES))
    assert {text: one["ids"] for text, one in zip(CASES, found, strict=True)} == CASES


def test_a_key_that_no_run_has_and_a_bad_number_are_said() -> None:
    found = filtered(["leanring_rate>1", "loss<much", "loss<0.5 foo:bar"])
    assert [one["problems"] for one in found] == [
        ["no run has leanring_rate"],
        ["much is not a number"],
        ["no run has foo"],
    ]


def ordered(order: str) -> list[str]:
    script = """
const { sortRows } = await load("filter.js");
answer(sortRows(given.rows, given.order, given.now).map(({ id }) => id));"""
    ids: list[str] = run_script(script, {"rows": ROWS, "order": order, "now": NOW})
    return ids


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("loss.asc", ["digits-1e-3", "digits-3e-3", "llama3-8b", "tiny-lm"]),
        ("loss.desc", ["llama3-8b", "digits-3e-3", "digits-1e-3", "tiny-lm"]),
        ("status.asc", ["llama3-8b", "digits-3e-3", "tiny-lm", "digits-1e-3"]),
        ("name.asc", ["digits-1e-3", "digits-3e-3", "llama3-8b", "tiny-lm"]),
        ("start.asc", ["llama3-8b", "digits-1e-3", "digits-3e-3", "tiny-lm"]),
        ("no-such-key.asc", ["llama3-8b", "digits-1e-3", "digits-3e-3", "tiny-lm"]),
    ],
)
def test_what_is_not_known_comes_last_in_each_order(order: str, expected: list[str]) -> None:
    assert ordered(order) == expected


def test_columns_of_the_wire_format_are_read() -> None:
    times = np.linspace(0.0, 1.0, 5) + 1.8e9
    levels = np.array([0, 255, 7], np.uint8)
    losses = np.array([1.5, np.nan, -np.inf])
    data = encode({"columns": ["time", "level", "loss", "none"], "unit": "s"}, [times, levels, losses, np.empty(0)])
    found = run_script(
        """
const { decodeColumns } = await load("api.js");
const bytes = Uint8Array.from(atob(given), (character) => character.charCodeAt(0));
const { header, columns } = decodeColumns(bytes.buffer);
const shown = Object.entries(columns).map(([name, values]) =>
  [name, values.constructor.name, Array.from(values, String)]);
answer({ unit: header.unit, shown });""",
        base64.b64encode(data).decode(),
    )
    assert found["unit"] == "s"
    assert found["shown"] == [
        ["time", "Float64Array", run_script("answer(given.map(String));", times.tolist())],
        ["level", "Uint8Array", ["0", "255", "7"]],
        ["loss", "Float64Array", ["1.5", "NaN", "-Infinity"]],
        ["none", "Float64Array", []],
    ]


def test_a_case_file_answers_from_its_blocks() -> None:
    blocks = {
        "/api/runs/a%20b": {"id": "a b"},
        "/api/runs/a%20b/points?metric=loss&x=step&width=400": "all, narrow",
        "/api/runs/a%20b/points?x=step&metric=loss&width=1200": "all, wide",
        "/api/runs/a%20b/points?metric=loss&x=step&from=0&to=100&width=1200": "first half",
        "/api/runs/a%20b/points?metric=loss&x=step&from=50&to=80&width=1200": "part",
        "/api/runs/a%20b/points?metric=loss&x=time": "by time",
    }
    asked = {
        "/api/runs/a%20b": {"id": "a b"},
        "/api/runs/a%20b/points?metric=loss&x=step&width=900": "all, wide",
        "/api/runs/a%20b/points?metric=loss&x=step&from=10&to=90&width=900": "first half",
        "/api/runs/a%20b/points?metric=loss&x=step&from=60&to=70&width=900": "part",
        "/api/runs/a%20b/points?metric=loss&x=step&from=90&to=170&width=900": "all, wide",
        "/api/runs/a%20b/points?metric=loss&x=time&from=1&to=2": "by time",
        "/api/runs/a%20b/points?metric=accuracy&x=time": None,
        "/api/runs/other": None,
    }
    zipped = {
        path: base64.b64encode(gzip.compress(json.dumps(value).encode())).decode() for path, value in blocks.items()
    }
    found = run_script(
        """
const { caseSource, createApi } = await load("api.js");
const elements = Object.entries(given.blocks).map(([path, text]) => ({ dataset: { answer: path }, textContent: text }));
const api = createApi(caseSource({ querySelectorAll: () => elements, querySelector: () => null }));
const answers = await Promise.all(given.asked.map((path) => api.json(path).catch((error) => error.status)));
answer({ isFile: api.isFile, answers });""",
        {"blocks": zipped, "asked": list(asked)},
    )
    assert found["isFile"] is True
    assert found["answers"] == [404 if value is None else value for value in asked.values()]


URLS: dict[str, dict[str, Any]] = {
    "/": {"page": "runs", "run": None, "session": None, "params": {}},
    "/?state=failed&q=loss%3C0.5&sel=a,b": {
        "page": "runs",
        "params": {"state": "failed", "q": "loss<0.5", "sel": "a,b"},
    },
    "/runs/a": {"page": "overview", "run": "a"},
    "/runs/a%2Fb%3Cimg%3E/logs?around=step:4210": {
        "page": "logs",
        "run": "a/b<img>",
        "params": {"around": "step:4210"},
    },
    "/runs/a/profiles/2026_11_17": {"page": "profiles", "run": "a", "session": "2026_11_17"},
    "/runs/a/profiles": {"page": "profiles", "run": "a", "session": None},
    "/runs/a/logs/more": {"page": "missing"},
    "/runs/a/nothing": {"page": "missing"},
    "/runs": {"page": "missing"},
    "/runs/%E0%A4%A": {"page": "overview", "run": "%E0%A4%A"},
    "/compare?runs=a,b": {"page": "compare", "params": {"runs": "a,b"}},
    "/elsewhere": {"page": "missing"},
}


def test_urls_are_parsed() -> None:
    found = run_script("const { parse } = await load('router.js'); answer(given.map(parse));", list(URLS))
    for (url, expected), one in zip(URLS.items(), found, strict=True):
        assert {key: one[key] for key in expected} == expected, url


def test_urls_are_made_of_what_they_are_parsed_to() -> None:
    found = run_script(
        """
const { parse, runPath, urlOf } = await load("router.js");
answer(given.map((run) => parse(urlOf(runPath(run, "logs"), { q: run, level: "", host: null, around: "step:1" }))));""",
        ["a", "a/b", "<img src=x>", "é ü", "a?b#c", "100%", "..", "\u202e"],
    )
    for run, one in zip(["a", "a/b", "<img src=x>", "é ü", "a?b#c", "100%", "..", "\u202e"], found, strict=True):
        assert (one["page"], one["run"], one["params"]) == ("logs", run, {"q": run, "around": "step:1"})


def test_commands_lead_to_the_page_that_shows_the_same() -> None:
    pages = {
        "mldiagnostics logs digits-1 --host vm-2 --around 'step 85'": "/runs/digits-1/logs?host=vm-2&around=step:85",
        "mldiagnostics logs digits-1": "/runs/digits-1/logs",
        "mldiagnostics metrics digits-1 loss --plot": "/runs/digits-1/metrics?show=loss",
        "mldiagnostics metrics digits-1 --plot": "/runs/digits-1/metrics",
        "tpu-stacks show --job digits-1": "/runs/digits-1/stacks",
        "tpu-stacks dump 4711 --native": None,
        "mldiagnostics ssh digits-1 vm-2 -- dmesg": None,
        "mldiagnostics profile digits-1": None,
        "": None,
    }
    found = run_script("const { pageOf } = await load('frame/diagnosis.js'); answer(given.map(pageOf));", list(pages))
    assert dict(zip(pages, found, strict=True)) == pages


def test_texts_show_what_would_hide_or_reorder_them() -> None:
    texts = {
        "plain é ü 日本 👩‍👩‍👧": "plain é ü 日本 👩‍👩‍👧",
        "a\nb\tc\rd": "a\\nb\\tc\\rd",
        "\x1b[31mred\x7f\x80": "\\x1b[31mred\\x7f\\x80",
        "exe.\u202etxt\u2066\u200e": "exe.\\u202etxt\\u2066\\u200e",
        "zero\u200bwidth\ufeff": "zero\\u200bwidth\\ufeff",
        "line\u2028separator": "line\\u2028separator",
    }
    script = "const { visible } = await load('../common/dom.js'); answer(given.map((text) => visible(text)));"
    assert dict(zip(texts, run_script(script, list(texts)), strict=True)) == texts
    kept = "const { visible } = await load('../common/dom.js'); answer(visible(given, true));"
    assert run_script(kept, "a\tb\x1b") == "a\tb\\x1b"


def test_a_loss_that_is_not_finite_needs_attention_for_a_day() -> None:
    script = """
const { isLossLost, needsAttention } = await load("filter.js");
answer(given.map((row) => [isLossLost(row), needsAttention(row, 100_000)]));
"""
    lost = {"state": "completed", "loss": None, "metrics": {"loss": None}, "ended": 90_000}
    rows = [lost, {**lost, "ended": 1_000}, {**lost, "metrics": {}}, {**lost, "loss": 0.5, "metrics": {"loss": 0.5}}]
    assert run_script(script, rows) == [[True, True], [True, False], [False, False], [False, False]]


def test_the_clock_of_a_silent_run_ends_at_its_last_sign() -> None:
    beat = NOW - 14_400
    silent = row("silent", state="silent", ended=None, beat=beat)
    found = run_script(
        "const { durationOf, endOf } = await load('run_time.js');"
        " answer(given.rows.map((row) => [endOf(row, given.now), durationOf(row, given.now)]));",
        {"now": NOW, "rows": [silent | {"started": beat - 60}, *ROWS, row("unknown", ended=None, beat=None)]},
    )
    assert found[0] == [beat, 60]
    assert found[1] == [NOW, 500_000]
    assert found[2] == [NOW - 1800, 1800]
    assert found[4] == [NOW, 3600]
    assert found[5] == [None, None]
