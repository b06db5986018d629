"""`mldiagnostics doctor`: why a job waits, was retried, is slow, is stuck or failed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import DONE, NotFoundError, UsageError

from ml_diagnostics_console._cli.questions import add_source_options, job_reader

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_diagnostics_console.report import Report

__all__ = ["DoctorCommand"]

_EXPLAIN: Final = "explain"
_FORMATS: Final = ("text", "json", "monitored-event")
_CLASSES: Final = ("waiting", "before_start", "crash", "stuck", "slow", "numbers", "restarts", "unknown")
_EXIT_CODES: Final = (
    "exit codes: 0 nothing is wrong, 1 failed, 2 usage error, 3 no such run, 4 no credentials; of the first verdict: "
    "10 waiting, 11 failed before the first step, 12 crash, 13 stuck, 14 slow, 15 wrong numbers, 16 restarts, "
    "19 something is wrong and unknown"
)


class DoctorCommand:
    """Prints what is wrong with a job, or explains a verdict."""

    name = "doctor"
    summary = "find out why a job waits, was retried, is slow, is stuck or failed, with proof"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.usage = "%(prog)s RUN [options]\n       %(prog)s explain RUN/N | RULE"  # argparse has no alternatives.
        parser.epilog = _EXIT_CODES
        parser.add_argument(
            "words",
            nargs="+",
            metavar="RUN",
            help="the run's id, the start of it, 'last', the name of a job or workload without a run, or a case file; "
            "'explain RUN/2' has all that made the second verdict, 'explain C2' what a rule needs",
        )
        parser.add_argument("--attempt", metavar="N|all", default="", help="judge this attempt (default: the last one)")
        parser.add_argument("--all", action="store_true", help="print all verdicts, and all that was not checked")
        parser.add_argument("--format", choices=_FORMATS, default="text", help="the form of the output (default: text)")
        parser.add_argument("--live", action="store_true", help="read again every 10 s, and print what is new")
        parser.add_argument("--until", choices=_CLASSES, help="with --live: end at the first verdict of this kind")
        parser.add_argument(
            "--alert",
            action="append",
            default=[],
            metavar="webhook=URL|entry|event",
            help="with --live: report each verdict once, to a webhook, as an entry of the job's log, or as an entry in "
            "the form of Google's monitored events",
        )
        parser.add_argument(
            "--allow-private-address", action="store_true", help="let a webhook be on a private or local address"
        )
        add_source_options(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print a report, or explain a verdict."""
        words = options.words
        if words[0] == _EXPLAIN and len(words) == 2:
            return _explain(words[1], options, console)
        if len(words) > 1:
            raise UsageError(f"expected one run, got {len(words)}: {' '.join(words)}")
        if not options.live and (options.alert or options.until):
            raise UsageError("--alert and --until need --live")
        if options.live and _is_case_file(words[0]):
            raise UsageError("--live needs a run: a case file does not change")
        if options.live:
            return _watch(words[0], options, console)
        return _report(words[0], options, console)


def _report(name: str, options: argparse.Namespace, console: Console) -> int:
    from ml_diagnostics_console.doctor import judge

    if _is_case_file(name):
        reports = _reports_of_case(name, options.attempt)
    else:
        facts = job_reader(options, console, name, may_be_all=True).read()
        reports = [judge(facts)]
        if options.attempt == "all":
            reports = [judge(facts.of_attempt(index)) for index in range(len(facts.attempts))] or reports
    from ml_diagnostics_console._forms import print_reports

    print_reports(reports, options.format, console, with_all=options.all, is_list=options.attempt == "all")
    return reports[-1].exit_code


def _is_case_file(name: str) -> bool:
    """Return True if a name is that of a file that `mldiagnostics export` has written, not of a run."""
    from pathlib import Path

    return name.endswith((".html", ".htm")) and ("/" in name or Path(name).is_file())  # No id of a run has a slash.


def _reports_of_case(name: str, attempt: str) -> list[Report]:
    from pathlib import Path

    from ml_diagnostics_console._cli.questions import attempt_of
    from ml_diagnostics_console._web.case_report import read_case

    case = read_case(Path(name))
    if attempt == "all":
        return list(case.attempts) or [case.last]
    number = attempt_of(attempt)
    if number is None:
        return [case.last]
    found = [each for each in case.attempts if each.facts.attempt is not None and each.facts.attempt.number == number]
    if not found:
        raise NotFoundError(f"{name} has no attempt {number}")
    return found


def _explanation_of_case(name: str, number: int) -> str:
    from pathlib import Path

    from ml_diagnostics_console._web.case_report import read_case

    case = read_case(Path(name))
    if not 0 < number <= len(case.explanations):
        raise NotFoundError(f"{name} explains {len(case.explanations)} verdicts, and none with the number {number}")
    return case.explanations[number - 1]


def _watch(name: str, options: argparse.Namespace, console: Console) -> int:
    from ml_diagnostics_console._live.alerts import alerts_of
    from ml_diagnostics_console._live.watch import Watch

    alerts = alerts_of(options.alert, allows_private=options.allow_private_address)
    reader = job_reader(options, console, name, may_be_all=True, records_cluster=True)
    return Watch(reader, console, options.format, alerts, until=options.until).run()


def _explain(what: str, options: argparse.Namespace, console: Console) -> int:
    from ml_diagnostics_console._explanation import explain_rule, explain_verdict
    from ml_diagnostics_console._rules import all_rules
    from ml_diagnostics_console.doctor import judge

    rules = {rule.id.lower(): rule for rule in all_rules()}
    if what.lower() in rules:
        console.data(explain_rule(rules[what.lower()], console.width))
        return DONE
    name, slash, digits = what.rpartition("/")
    if not slash or not digits.isdecimal() or not name:
        known = ", ".join(sorted(rule.id for rule in all_rules()))
        raise NotFoundError(f"{what!r} is neither a rule nor a verdict such as last/1; the rules are {known}")
    if _is_case_file(name):
        console.data(_explanation_of_case(name, int(digits)))
        return DONE
    reader = job_reader(options, console, name, may_be_all=True)
    report = judge(reader.read())
    verdicts = [report.headline, *(each for each in report.verdicts if each is not report.headline)]
    if not 0 < int(digits) <= len(verdicts):
        raise NotFoundError(f"{name} has {len(verdicts)} verdicts, and none with the number {digits}")
    verdict = verdicts[int(digits) - 1]
    entries = reader.entries({ref.id for ref in verdict.evidence})
    console.data(explain_verdict(report, verdict, console.width, entries=entries))
    return DONE
