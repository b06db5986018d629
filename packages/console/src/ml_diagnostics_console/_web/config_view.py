"""The configs of a run, and what differs between runs: by key, and word by word in long values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ml_diagnostics_common.payload import printable
from ml_diagnostics_common.redaction import redact, redact_text

from ml_diagnostics_console._web.answers import Answer, BadQueryError, json_answer
from ml_diagnostics_console._web.ledger_view import bucket_percents
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_goodput import goodput_of
from ml_diagnostics_console._web.run_rows import primary_column

if TYPE_CHECKING:
    from ml_diagnostics_console._web.columns import Column, Floats
    from ml_diagnostics_console._web.run_data import RunData
    from ml_diagnostics_console._web.store import Store

__all__ = ["MOST_RUNS", "NO_CONFIGS", "compare", "compared_words", "config_rows", "configs"]

MOST_RUNS: Final = 12
"""More overlays cannot be distinguished."""
NO_CONFIGS: Final = "This run has recorded no configs. Give them as `ml_diagnostics.instrument(NAME, config={...})`."
_SECTIONS: Final = ("user", "software", "hardware")
_LONG: Final = 60
_LONGEST: Final = 20_000
_MOST_BYTES: Final = 10_000_000
_MOST_METRICS: Final = 200
_MOST_WORDS: Final = 1_000
_TAIL: Final = 1_000
_STEP_TIMES: Final = ("step_time", "step_time_seconds", "step_seconds")
_OWN: Final = "\0"
_WORD: Final = re.compile(r"\s+|[^\s,=:/]+|[,=:/]")

Configs = Mapping[str, Mapping[str, str]]


def configs(run: RunData, query: Query, store: Store) -> Answer:
    """Answer the configs of a run, beside those of the runs in `against`."""
    others = [store.run(name) for name in query.names("against")]
    return _answer([run, *(other for other in others if other is not run)])


def compare(store: Store, query: Query) -> Answer:
    """Answer what differs between the runs in `runs`."""
    names = query.names("runs")
    if not names:
        raise BadQueryError("runs must name at least one run: runs=a,b")
    return _answer(list(dict.fromkeys(store.run(name) for name in names)))


def _answer(runs: Sequence[RunData]) -> Answer:
    if len(runs) > MOST_RUNS:
        raise BadQueryError(f"at most {MOST_RUNS} runs can be compared, got {len(runs)}")
    rows = config_rows([run.view.configs for run in runs], [_own_names(run) for run in runs])
    metrics = _metrics(runs)
    return json_answer(
        {
            "runs": [{"id": run.id, "name": printable(redact_text(run.name)), "state": run.state} for run in runs],
            "top": _top(runs),
            "rows": rows,
            "metrics": metrics,
            "metrics_about": {name: _about(runs, name) for name in metrics},
            "help": None if rows else NO_CONFIGS,
        }
    )


def _own_names(run: RunData) -> list[str]:
    return sorted({run.id, run.name, *run.job_names} - {""}, key=len, reverse=True)


# --- Configs by key --------------------------------------------------------------------------------------


def config_rows(configs: Sequence[Configs], own_names: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return a row for each key of any of some runs, with what differs marked. Pure.

    A key that only some runs have is not a difference, nor is the run's own name in a value, or a path below it.

    Args:
        configs: The configs of each run: texts by section and key.
        own_names: The names of each run, the longest first.
    """
    known = [{section: _redacted(each.get(section, {})) for section in _sections(configs)} for each in configs]
    rows = []
    for section in _sections(configs):
        for key in sorted({key for each in known for key in each[section]}):
            values = [each[section].get(key) for each in known]
            rows.append(_row(section, key, values, own_names))
    return rows


def _sections(configs: Sequence[Configs]) -> list[str]:
    present = {section for each in configs for section in each}
    return [*(section for section in _SECTIONS if section in present), *sorted(present - set(_SECTIONS))]


def _redacted(section: Mapping[str, str]) -> dict[str, str]:
    texts = {str(key): str(value) for key, value in section.items()}
    found: dict[str, Any] = redact(texts, max_bytes=_MOST_BYTES)
    # Cut afterwards: a part of a secret has another form.
    return {printable(str(key)): printable(str(value)[:_LONGEST]) for key, value in found.items()}


def _row(section: str, key: str, values: Sequence[str | None], own_names: Sequence[Sequence[str]]) -> dict[str, Any]:
    neutral = [
        None if value is None else _without(value, names) for value, names in zip(values, own_names, strict=True)
    ]
    differs = len({_comparable(value) for value in neutral if value is not None}) > 1
    is_long = any(value is not None and len(value) > _LONG for value in values)
    return {
        "section": section,
        "key": key,
        "values": list(values),
        "differs": differs,
        "is_long": is_long,
        "words": compared_words(values, own_names) if differs and is_long else None,
    }


def _without(value: str, names: Iterable[str]) -> str:
    """Return a value with the run's own names replaced by one that all runs have."""
    for name in names:
        if name in value:
            value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", _OWN, value)
    return value


def _comparable(value: str) -> object:
    """Return a value so that equal numbers are equal, also in other forms: 1e-3 and 0.001."""
    try:
        number = float(value)
    except ValueError:
        return value
    return number if math.isfinite(number) else value


def compared_words(values: Sequence[str | None], own_names: Sequence[Sequence[str]] = ()) -> list[list[dict[str, Any]]]:
    """Return each value in parts: words that another value of the row lacks are marked. Pure.

    The first value that is known is compared with all others, and each of them with it.

    Args:
        values: The value of each run.
        own_names: The names of each run, which are not differences.
    """
    tokens = [None if value is None else _words(value) for value in values]
    names = own_names or [()] * len(values)
    neutral = [
        None if each is None else [_without(word, own) for word in each]
        for each, own in zip(tokens, names, strict=True)
    ]
    base = next((number for number, each in enumerate(neutral) if each is not None), None)
    marks = [[False] * len(each or ()) for each in tokens]
    for number, each in enumerate(neutral):
        first = neutral[base] if base is not None else None
        if each is None or first is None or number == base:
            continue
        matcher = SequenceMatcher(None, first, each, autojunk=False)
        for tag, start, stop, own_start, own_stop in matcher.get_opcodes():
            if tag != "equal":
                marks[number][own_start:own_stop] = [True] * (own_stop - own_start)
                marks[base or 0][start:stop] = [True] * (stop - start)
    return [_parts(each or (), marked) for each, marked in zip(tokens, marks, strict=True)]


def _words(value: str) -> list[str]:
    """Return the words of a value; of a very long one the rest is one word, since the comparison is quadratic."""
    words = _WORD.findall(value)
    return words if len(words) <= _MOST_WORDS else [*words[:_MOST_WORDS], "".join(words[_MOST_WORDS:])]


def _parts(words: Sequence[str], marks: Sequence[bool]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for word, differs in zip(words, marks, strict=True):
        if parts and parts[-1]["differs"] == differs:
            parts[-1]["text"] += word
        else:
            parts.append({"text": word, "differs": differs})
    return parts


# --- How the runs did ------------------------------------------------------------------------------------


def _top(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    reports = [goodput_of(run).report(run) for run in runs]
    goodput = [None if report is None else report.goodput_percent for report in reports]
    buckets = [[] if report is None else bucket_percents(report) for report in reports]
    ideal = [None if report is None else report.ideal_step_seconds for report in reports]
    steps = [_step_seconds(run) or seconds for run, seconds in zip(runs, ideal, strict=True)]
    losses = [None if (column := primary_column(run)) is None else _number_or_nan(column.last) for run in runs]
    names = [column.metric for run in runs if (column := primary_column(run)) is not None]
    loss = names[0].replace("_", " ") if names else "loss"
    return [
        {"key": "status", "kind": "state", "values": [run.state for run in runs]},
        {"key": "goodput", "kind": "percent", "values": goodput, "buckets": buckets},
        {"key": f"last {loss}", "kind": "number", "values": losses},
        {"key": "step time", "kind": "seconds", "values": steps},
        {"key": "last step", "kind": "step", "values": [run.step for run in runs]},
        {"key": "wall time", "kind": "duration", "values": [_wall_seconds(run) for run in runs]},
    ]


def _step_seconds(run: RunData) -> float | None:
    """Return the median of the last step times that a run recorded itself, in seconds."""
    names = {name.lower(): name for name in run.columns.names()}
    name = next((names[each] for each in _STEP_TIMES if each in names), None)
    column = run.columns.first(name) if name is not None else None
    if column is None:
        return None
    values = column.value[-_TAIL:]
    values = values[np.isfinite(values)]
    factor = 1e-3 if column.unit == "ms" else 1.0
    return float(np.median(values)) * factor if len(values) else None


def _wall_seconds(run: RunData) -> float | None:
    if not run.started_s:
        return None
    end_s = run.ended_s if run.ended_s is not None else run.now_s if run.is_live else run.beat_s or run.now_s
    return max(0.0, end_s - run.started_s)


def _metrics(runs: Sequence[RunData]) -> list[str]:
    """Return the metrics of the runs: those of steps first, and those first that differ most at their ends."""
    names = {name for run in runs for name in run.columns.names()}
    with_steps = {name for name in names if any(_has_steps(run, name) for run in runs)}
    return sorted(names, key=lambda name: (name not in with_steps, -_difference(runs, name), name))[:_MOST_METRICS]


def _about(runs: Sequence[RunData], name: str) -> dict[str, Any]:
    """Return what a drawing of a metric needs to know: its unit, if each value has a step, and which runs lack it."""
    columns = [run.columns.first(name) for run in runs]
    known = [column for column in columns if column is not None]
    return {
        "unit": known[-1].unit,
        "has_steps": any(column.has_steps for column in known),
        "missing": [run.id for run, column in zip(runs, columns, strict=True) if column is None],
    }


def _has_steps(run: RunData, name: str) -> bool:
    column = run.columns.first(name)
    return column is not None and column.has_steps


def _difference(runs: Sequence[RunData], name: str) -> float:
    """Return by how much the last values of runs differ, in relation to their size; -1 if one run alone has it.

    Nothing differs more than values of which some are finite, and some are not.
    """
    means = []
    is_lost = False
    for run in runs:
        column = run.columns.first(name)
        values = _end(column) if column is not None else np.empty(0)
        is_lost = is_lost or (len(values) > 0 and not math.isfinite(values[-1]))
        finite = [value for value in values.tolist() if math.isfinite(value)]
        if finite:
            means.append(sum(value / len(finite) for value in finite))  # No sum is too large for a float.
    if is_lost and means:
        return math.inf
    if len(means) < 2:
        return -1.0
    size = max(map(abs, means))
    return (max(means) - min(means)) / size if size > 0 else 0.0


def _end(column: Column) -> Floats:
    """Return the last tenth of the values, at most 1,000 of them."""
    return column.value[-min(_TAIL, max(1, len(column) // 10)) :]


def _number_or_nan(value: float | None) -> float | str | None:
    """Return a value; the text NaN for one that is not finite, which JSON has no number for."""
    return value if value is None or math.isfinite(value) else "NaN"
