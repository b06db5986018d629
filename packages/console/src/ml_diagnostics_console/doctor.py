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

from ml_diagnostics_common.guard import report_loss

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console._ranking import rank, shown
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.observations import observations
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console.report import Report
from ml_diagnostics_console.verdict import NotChecked, Verdict

__all__ = ["Report", "examine", "judge"]

_logger = logging.getLogger(__name__)


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
        facts: The facts of a job.
        rules: The rules; None takes all.
    """
    known = tuple(all_rules() if rules is None else rules)
    verdicts, not_checked = [], []
    for rule in known:
        judgement = _judgement(rule, facts)
        if isinstance(judgement, Verdict):
            verdicts.append(judgement)
        elif isinstance(judgement, NotChecked):
            not_checked.append(judgement)
    ranked = rank(facts, verdicts, known)
    return Report(facts, ranked, shown(ranked, known), tuple(not_checked), tuple(observations(facts)))


def _judgement(rule: Rule, facts: Facts) -> Judgement:
    """Return what a rule concludes; a rule that fails is one that was not checked, and the others still answer."""
    try:
        return rule.judge(facts)
    except Exception as error:
        report_loss(f"rule {rule.id}", error, "judge the job", warn=lambda key, message, *args: None)
        return NotChecked(
            rule.id, f"the rule failed with {type(error).__name__}: please report it with the job's entries"
        )
