"""The results as a table in Markdown, and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ml_diagnostics_console.faultbench._plans import KINDS
from ml_diagnostics_console.faultbench._scoring import Case, Rate, Score, is_right_class, is_right_culprit

__all__ = ["BARS", "cases_json", "markdown"]

BARS: Final = "precision >= 0.95, recall >= 0.90, culprit >= 0.95, false alarms on negatives <= 1 %"


def markdown(
    title: str, scores: Sequence[Score], cases: Sequence[Case], notes: Iterable[str] = (), replayed: Score | None = None
) -> str:
    """Return a page: all tools side by side, the classes of the first, and its runs by kind.

    Args:
        title: The heading.
        scores: The score of each tool; the first is the doctor.
        cases: The runs with the first tool's answers.
        notes: Sentences below the heading, such as the seeds and the runs that are void.
        replayed: The score of the first tool on replayed faults, which count apart.
    """
    parts = [f"# {title}", *notes, f"Bars of the doctor: {BARS}.", _tools(scores)]
    if scores:
        parts += ["## Classes", _classes(scores[0])]
        if replayed is not None and replayed.runs:
            parts += ["## Replayed faults, counted apart", _tools([replayed])]
        parts += ["## Kinds", _kinds(cases)]
        if wrong := _wrong(cases):
            parts += ["## Wrong answers", wrong]
    return "\n\n".join(parts) + "\n"


def _tools(scores: Sequence[Score]) -> str:
    head = ["tool", "class right", "precision", "recall", "culprit", "false alarms", "blame", "unknown", "Brier", "s"]
    rows = [
        [
            each.tool,
            _shown(each.right_class),
            _shown(each.precision),
            _shown(each.recall),
            _shown(each.right_culprit),
            _shown(each.false_alarms),
            _shown(each.right_blame),
            _shown(each.unknown),
            "" if each.brier is None else f"{each.brier:.3f}",
            "" if each.seconds_to_verdict is None else f"{each.seconds_to_verdict:.1f}",
        ]
        for each in scores
    ]
    return _rows(head, rows)


def _classes(score: Score) -> str:
    rows = [[each.value, _shown(one.precision), _shown(one.recall)] for each, one in score.by_class.items()]
    return _rows(["class", "precision", "recall"], rows)


def _kinds(cases: Sequence[Case]) -> str:
    names = list(dict.fromkeys(case.kind for case in cases))
    names.sort(key=list(KINDS).index)
    rows = []
    for name in names:
        of_kind = [case for case in cases if case.kind == name]
        culprits = [case for case in of_kind if case.label.culprit is not None]
        rows.append(
            [
                name,
                KINDS[name].how,
                _short(Rate(sum(is_right_class(case.label, case.answer) for case in of_kind), len(of_kind))),
                _short(Rate(sum(is_right_culprit(case.label, case.answer) for case in culprits), len(culprits))),
                ", ".join(f"{rule} {count}" for rule, count in Counter(case.answer.rule for case in of_kind).items()),
            ]
        )
    return _rows(["kind", "how", "class", "culprit", "rules"], rows)


def _wrong(cases: Sequence[Case]) -> str:
    lines = []
    for case in cases:
        label, answer = case.label, case.answer
        is_culprit_wrong = label.culprit is not None and not is_right_culprit(label, answer)
        if not is_right_class(label, answer) or is_culprit_wrong:
            wanted = label.verdict_class.value + ("" if label.culprit is None else f" by {label.culprit}")
            named = ", ".join(map(str, answer.culprits)) or "none"
            lines.append(f"- {case.name}: {wanted}, got {answer.verdict_class.value} by {named}: {answer.sentence}")
    return "\n".join(lines)


def cases_json(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Return runs with their labels and answers in the types of JSON."""
    return [
        {
            "name": case.name,
            "kind": case.kind,
            "label": case.label.to_json(),
            "answer": {
                "class": case.answer.verdict_class.value,
                "process_indices": list(case.answer.culprits),
                "blame": None if case.answer.blame is None else case.answer.blame.value,
                "probability": case.answer.probability,
                "rule": case.answer.rule,
                "sentence": case.answer.sentence,
            },
            "is_right": is_right_class(case.label, case.answer),
            "seconds_to_verdict": case.seconds,
        }
        for case in cases
    ]


def _shown(rate: Rate) -> str:
    if rate.share is None:
        return "-"
    low, high = rate.interval
    return f"{rate.share:.3f} ({rate.right} of {rate.of}; {low:.2f} to {high:.2f})"


def _short(rate: Rate) -> str:
    return f"{rate.right} of {rate.of}" if rate.of else ""


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = (
        [cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in [head, ["---"] * len(head), *rows]
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
