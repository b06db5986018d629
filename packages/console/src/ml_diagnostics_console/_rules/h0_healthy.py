"""H0: nothing is wrong: the step, the goodput, and what would save most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, Facts, Unknown
from ml_diagnostics_console._rules.asked import asked_of, is_graceful
from ml_diagnostics_console._rules.costs import GOODPUT, report_of
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.u0_unknown import signs_of
from ml_diagnostics_console._rules.wording import clock, command_line
from ml_diagnostics_console.verdict import NextCommand, Ref, Verdict, VerdictClass

if TYPE_CHECKING:
    from ml_goodput_measurement.partition import JobReport

__all__ = ["RULE"]

_LEAST_PERCENT: Final = 1.0
_QUIET_SECONDS: Final = 60.0
_ADVICE: Final = {
    "WASTED_PROGRESS": ("repeated steps", "save more often, and see why it restarts"),
    "ELASTIC_SLICE_DOWN": ("missing slices", "see why slices go"),
    "ELASTIC_SCALE_UP": ("scaling up", "scale less often"),
    "ELASTIC_REINITIALIZATION": ("reinitialisation of slices", "see why slices go"),
    "CUSTOM": ("the program's own events", "see which of them takes most"),
    "CHECKPOINT_RESTORE": ("restoring checkpoints", "restore in parallel, or from a nearer storage"),
    "CHECKPOINT_SAVE": ("saving checkpoints", "save asynchronously, or less often"),
    "TPU_INITIALIZATION": ("initialising devices", "restart less often"),
    "TRAINING_PREP": ("preparing the training", "see what it does before the first step"),
    "DATA_LOADING_SYNC": ("waiting for data", "prefetch, and use more workers"),
    "PROGRAM_STARTUP": ("the first step of each start", "use a compilation cache: JAX_COMPILATION_CACHE_DIR"),
    "INFRASTRUCTURE_RECOVERY": ("waiting for a new start after disruptions", "see why it restarts"),
}
"""The members of `partition.Bucket`: their name, and what saves most of their time."""


def _judge(facts: Facts) -> Judgement:
    """Return that nothing is wrong, if nothing shows that something is."""
    attempt = facts.attempt
    if attempt is None or signs_of(facts):
        return None
    report = report_of(facts)
    goodput, advice, refs = ("", (), ()) if report is None else _goodput(report)
    unknown = ""
    if isinstance(facts.ledger, Unknown):
        unknown = f"; its goodput is not known: {facts.ledger.why}"
    steps = [process.last_step for process in attempt.processes if isinstance(process.last_step, Fact)]
    step_refs = max(steps, key=lambda fact: fact.value).refs[:1] if steps else ()
    return Verdict(
        rule="H0",
        verdict_class=VerdictClass.HEALTHY,
        sentence=f"Nothing is wrong: {_state(facts, attempt)}{goodput}{unknown}",
        blame=None,
        confidence=Confidence.LIKELY if step_refs or refs else Confidence.POSSIBLE,
        step=attempt.best_step,
        since_ns=attempt.started_ns,
        ended_ns=attempt.ended_ns,
        evidence=(*refs, *step_refs),
        next=advice,
    )


def _state(facts: Facts, attempt: AttemptFacts) -> str:
    step = "" if attempt.best_step is None else f" at step {attempt.best_step:,}"
    planned = max((process.planned_steps or 0 for process in attempt.processes), default=0)
    of_planned = f" of {planned:,} planned" if planned and step else ""
    lead = lead_of(facts)
    if lead is not None and is_graceful(facts, lead):
        asked = asked_of(lead.process)
        when = f" at {clock(asked.time_ns)}" if asked is not None and asked.time_ns is not None else ""
        return f"the job was asked to stop{when}, and ended well{step}{of_planned}"
    if attempt.ended_ns is not None or not facts.is_live:
        return f"the job ended well{step}{of_planned}"
    return f"the job runs{step}{of_planned}{_since(facts)}"


def _since(facts: Facts) -> str:
    """Return since when no step was reported, if that is long: a pause, or a hang that is not reported yet."""
    known = [process.last_step.as_of_ns for process in facts.processes if isinstance(process.last_step, Fact)]
    seconds = (facts.now_ns - max(known, default=facts.now_ns)) / 1e9
    return f", reported {format_duration(round(seconds))} ago" if seconds >= _QUIET_SECONDS else ""


def _goodput(report: JobReport) -> tuple[str, tuple[NextCommand, ...], tuple[Ref, ...]]:
    """Return the goodput, and the kind of time that costs most, with what saves it."""
    text = f"; goodput {report.goodput_percent:.1f} %"
    ref = Ref(f"goodput/{report.job_name}", GOODPUT, report.end_ns, "", f"goodput {report.goodput_percent:.1f} %")
    see_report = NextCommand(command_line("goodput", "report", report.job_name), "see where the time goes")
    shares = {bucket.name: ns for bucket, ns in report.buckets.items() if bucket.name in _ADVICE and ns > 0}
    if not shares or report.counted_ns <= 0:
        return text, (see_report,), (ref,)
    name = max(shares, key=shares.__getitem__)
    percent = 100 * shares[name] / report.counted_ns
    if percent < _LEAST_PERCENT:
        return text, (see_report,), (ref,)
    shown, advice = _ADVICE[name]
    text += f"; most of the rest is {shown}: {percent:.1f} %"
    return text, (see_report._replace(why=f"to save most: {advice}"),), (ref,)


RULE = Rule(
    id="H0",
    title="nothing is wrong",
    needs=("the ends, hangs and steps of all processes", "the ledger: ml_goodput_measurement, or `instrument`"),
    judge=_judge,
    thresholds=(
        Threshold("silence that is worth a remark", f"{_QUIET_SECONDS:.0f} s", "six step summaries are missing"),
        Threshold("share of the time worth saving, at least", f"{_LEAST_PERCENT:.0f} %", "below, noise decides"),
    ),
    example="Nothing is wrong: the job runs at step 4,210; goodput 97.3 %; most of the rest is waiting for data: 1.4 %",
)
