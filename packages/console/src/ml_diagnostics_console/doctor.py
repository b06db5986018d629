"""The doctor, for programs and notebooks: what the command `mldiagnostics doctor` prints.

from ml_diagnostics_console.doctor import examine

report = examine("last")
print(report)
report.headline.verdict_class, report.exit_code
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_common.entry import format_timestamp

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console._ranking import rank, shown
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.observations import observations
from ml_diagnostics_console._rules.rule import Rule
from ml_diagnostics_console.verdict import EXIT_CODES, Confidence, NotChecked, Verdict, VerdictClass

__all__ = ["Report", "examine", "judge"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What the doctor found of one job.

    Attributes:
        facts: What it was judged from.
        verdicts: All verdicts in their order.
        shown: The ones that count: the headline, and at most four that add to it.
        not_checked: The rules that could not be judged, and what is missing.
        observations: Sentences on the records themselves: lost entries, silent logs, clocks that differ.
    """

    facts: Facts
    verdicts: tuple[Verdict, ...]
    shown: tuple[Verdict, ...]
    not_checked: tuple[NotChecked, ...]
    observations: tuple[str, ...]

    @property
    def headline(self) -> Verdict:
        """The first verdict."""
        return self.shown[0] if self.shown else _nothing_known(self.facts)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if nothing is wrong, else by the class of the headline."""
        return EXIT_CODES[self.headline.verdict_class]

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON: what `--format json` prints."""
        facts = self.facts
        return {
            "run": facts.name,
            "job": facts.display_name,
            "attempt": facts.attempt.number if facts.attempt is not None else None,
            "attempts": len(facts.attempts),
            "is_live": facts.is_live,
            "as_of": format_timestamp(facts.now_ns),
            "entries": facts.entry_count,
            "headline": self.headline.to_json(),
            "exit_code": self.exit_code,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "not_checked": [each.to_json() for each in self.not_checked],
            "observations": list(self.observations),
        }

    def __str__(self) -> str:
        from ml_diagnostics_console._output import format_report

        return format_report(self)


def examine(
    name: str = "last",
    *,
    attempt: int | None = None,
    project: str | None = None,
    region: str | None = None,
    kubernetes: str = "",
    report: Callable[[str], None] | None = None,
) -> Report:
    """Read all that is known of a job, and judge it. Nothing is written, and the job is not touched.

    Args:
        name: The run's id, the start of it if no other id has it, or `last`: the one that started last; or the name of
            a job without a run, or of a workload in Kubernetes.
        attempt: The attempt to judge, from 1; None is the last one.
        project: Read the runs of this project of Google Cloud; None reads those of this machine.
        region: The region of its runs; None for us-central1.
        kubernetes: The context of kubectl; empty for the current one; `off` asks no cluster.
        report: Called with each note on what cannot be read; None logs a warning.

    Raises:
        RunNotFoundError: There is no such run, job or workload, or several runs match.
        NotFoundError: The run has no such attempt.
        CredentialsError: A project is given, and there are no credentials.
        ControlPlaneError: The request for the run failed.
    """
    question = Question(name, attempt, project, region, kubernetes)
    reader = JobReader(question, report or functools.partial(_logger.warning, "%s"))
    return judge(reader.read())


def judge(facts: Facts, rules: Iterable[Rule] | None = None) -> Report:
    """Return what rules conclude from facts. Pure.

    Args:
        facts: What is known of a job.
        rules: The rules; None takes all.
    """
    known = tuple(all_rules() if rules is None else rules)
    verdicts, not_checked = [], []
    for rule in known:
        judgement = rule.judge(facts)
        if isinstance(judgement, Verdict):
            verdicts.append(judgement)
        elif isinstance(judgement, NotChecked):
            not_checked.append(judgement)
    ranked = rank(facts, verdicts, known)
    return Report(facts, ranked, shown(ranked, known), tuple(not_checked), tuple(observations(facts)))


def _nothing_known(facts: Facts) -> Verdict:
    """Return the verdict on a job of which no rule says anything."""
    return Verdict(
        rule="U0",
        verdict_class=VerdictClass.UNKNOWN,
        sentence=f"{facts.name} has recorded nothing that shows if something is wrong",
        blame=None,
        confidence=Confidence.POSSIBLE,
    )
