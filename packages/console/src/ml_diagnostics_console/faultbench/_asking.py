"""Tools that are asked about a run: the doctor, a baseline, or one of others. Each returns an answer of one form."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console.faultbench._histories import History, diagnostics_dir
from ml_diagnostics_console.verdict import Blame, Verdict, VerdictClass

__all__ = ["Answer", "Tool", "answer_of", "ask_doctor", "command_tool", "doctor"]

_COMMAND_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Answer:
    """The answer of a tool about one run.

    Attributes:
        verdict_class: Its class; `unknown` if the tool does not know.
        culprits: The indexes of the processes that it names.
        blame: The side that it blames; None if it names none.
        probability: The probability that it is right, from 0 to 1; None if the tool gives none.
        rule: The rule or method that decided, for people.
        sentence: The answer as a sentence.
    """

    verdict_class: VerdictClass
    culprits: tuple[int, ...] = ()
    blame: Blame | None = None
    probability: float | None = None
    rule: str = ""
    sentence: str = ""

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Answer:
        """Return the answer of a verdict in the form of `mldiagnostics doctor --format json`, or a part of it.

        Raises:
            ValueError: It is not in that form.
        """
        try:
            blame = encoded.get("blame")
            confidence = encoded.get("confidence")
            probability = encoded.get("probability", _PROBABILITIES.get(str(confidence)))
            return cls(
                VerdictClass(encoded["class"]),
                tuple(int(index) for index in encoded.get("process_indices") or ()),
                None if blame is None else Blame(blame),
                None if probability is None else float(probability),
                str(encoded.get("rule", "")),
                str(encoded.get("sentence", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the answer is not a verdict: {error!r}") from error


Tool = Callable[[History], Answer]
"""Answers about a stored run, given its unpacked archive."""

_PROBABILITIES: Final = {"proven": 0.99, "likely": 0.85, "possible": 0.5}
"""The meaning of the levels of confidence: how probable it is that a verdict is right. The Brier score judges it."""


def answer_of(verdict: Verdict) -> Answer:
    """Return the answer of a verdict."""
    return Answer(
        verdict.verdict_class,
        tuple(verdict.process_indices),
        verdict.blame,
        _PROBABILITIES[Confidence(verdict.confidence).value],
        verdict.rule,
        verdict.sentence,
    )


def doctor(history: History) -> Answer:
    """Answer by the doctor, from the records alone, at the time when the bench had ended the job."""
    cluster = history.cluster
    return answer_of(ask_doctor(history.diagnostics, history.run, now_ns=history.ended_ns, cluster=cluster))


def ask_doctor(
    diagnostics: Path, name: str, *, now_ns: int | None = None, cluster: Sequence[dict[str, Any]] = ()
) -> Verdict:
    """Return the doctor's headline on a run in a folder.

    Args:
        diagnostics: ML_DIAGNOSTICS_DIR.
        name: The run, or the job if it has no run.
        now_ns: The time of the question; None is now.
        cluster: Objects of Kubernetes; empty if no cluster is to be known.
    """
    from google_cloud_mldiagnostics.exceptions import RunNotFoundError

    from ml_diagnostics_console._facts.facts import Facts
    from ml_diagnostics_console._facts.reading import JobReader, Question
    from ml_diagnostics_console.doctor import judge
    from ml_diagnostics_console.faultbench._replayed_clusters import cluster_facts

    asked_ns = time.time_ns() if now_ns is None else now_ns
    with diagnostics_dir(diagnostics):
        question = Question(name, kubernetes="off")
        try:
            facts = JobReader(question, lambda _: None, clock_ns=lambda: asked_ns).read()
        except RunNotFoundError:
            if not cluster:
                return Verdict("U", VerdictClass.UNKNOWN, "nothing was recorded", None)
            facts = Facts(name, asked_ns, is_live=True, display_name=name)
        if cluster:
            facts = replace(facts, kubernetes=cluster_facts(cluster, asked_ns))
        return judge(facts).headline


def command_tool(command: list[str]) -> Tool:
    """Return a tool that runs a command on the folder of each run, and reads a verdict as JSON from its stdout.

    Args:
        command: The program and its arguments; the folder is appended.
    """

    def ask(history: History) -> Answer:
        try:
            done = subprocess.run(
                [*command, str(history.folder)], capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
            )
            return Answer.from_json(json.loads(done.stdout))
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return Answer(VerdictClass.UNKNOWN, sentence=f"no answer: {error}")

    return ask
