"""`goodput fleet`: goodput of thousands of jobs. Parsers import this module, so imports are lazy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.console import BOLD, RED
from ml_diagnostics_common.command.errors import DONE, EXIT_CODES, FAILED, CommandError, UsageError
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.options import picture, whole_number

from ml_diagnostics_fleet._cli.causes import causes, format_causes, prepare_causes
from ml_diagnostics_fleet._cli.options import (
    add_by_option,
    add_mirror_options,
    add_report_options,
    add_since_option,
    mirror_of,
    open_reports,
)
from ml_diagnostics_fleet.queries import DIALECTS, QUESTIONS

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_diagnostics_fleet.compact import Compaction
    from ml_diagnostics_fleet.compact_view import ViewCompaction

__all__ = ["FleetCommand"]

_Part = Callable[[argparse.Namespace, "Console"], int]
_MOST = 10_000
_MOST_WARNINGS = 20
_TABLES = "tables"
_SOURCES = ("events", "segments")
_NEEDED = ("numpy", "pyarrow")
_BIGQUERY = "bigquery:"


class FleetCommand:
    """The goodput of a fleet."""

    name = "fleet"
    summary = "sum the goodput of thousands of jobs, by team, zone, accelerator and week"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the parts of the command."""
        parts = parser.add_subparsers(metavar="PART", required=True)
        for name, prepare, run, summary in (
            ("compact", _prepare_compact, _compact, "add what jobs have mirrored to the table of events"),
            ("run", _prepare_run, _run, "make the rows of all jobs"),
            ("causes", prepare_causes, causes, "ask the doctor for the causes of disruptions"),
            ("report", _prepare_report, _report, "report how the fleet spent its time and its money"),
            ("worst", _prepare_worst, _worst, "list the jobs that lost most"),
            ("hosts", _prepare_hosts, _hosts, "list the hosts that fail too often"),
            ("sql", _prepare_sql, _sql, "print the text of a question, to run anywhere"),
        ):
            part = parts.add_parser(
                name,
                help=summary,
                description=f"{summary[0].upper()}{summary[1:]}.",
                epilog=EXIT_CODES,
                allow_abbrev=False,
            )
            prepare(part)
            part.add_argument("--quiet", action="store_true", help="print no progress, only data and errors")
            part.add_argument("--no-color", action="store_true", help="print no colors (as with NO_COLOR)")
            part.set_defaults(part=run, parser=part)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run one part."""
        part: _Part = options.part
        try:
            return part(options, console)
        except ImportError as error:
            if error.name not in _NEEDED:
                raise
            reason = f"`goodput fleet` needs {error.name}, which cannot be imported ({error})"
            raise CommandError(f"{reason}; install it with: pip install ml-diagnostics-fleet") from None


# --- From what jobs mirrored to rows ----------------------------------------------------------------------------------


def _prepare_compact(parser: argparse.ArgumentParser) -> None:
    add_mirror_options(parser, "add the days that end by this time (default: now)")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        type=_source,
        default=_SOURCES[1],
        help="what is read: segments of the mirror, or bigquery:DATASET.VIEW or bigquery:PROJECT.DATASET.VIEW with "
        "the entries of Cloud Logging (needs the extra [bigquery]; default: %(default)s)",
    )
    add_since_option(parser, "of BigQuery, only entries from this time on, such as 3d or 2026-11-20 (default: all)")
    _add_strict_option(parser, "entries are missing, an object is damaged, or a row cannot be read")
    add_format_option(parser)


def _source(text: str) -> str:
    if text != _SOURCES[1] and not text.startswith(_BIGQUERY):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {_SOURCES[1]}, or {_BIGQUERY}DATASET.VIEW")
    return text


def _compact(options: argparse.Namespace, console: Console) -> int:
    if options.source.startswith(_BIGQUERY):
        return _compact_view(options, console)
    if options.since is not None:
        raise UsageError(f"--since is for --from {_BIGQUERY}DATASET.VIEW: of a mirror, what is new is known")
    from ml_diagnostics_common.command.formats import format_data
    from ml_diagnostics_common.texts import format_count

    from ml_diagnostics_fleet.compact import compact

    done = compact(mirror_of(options), through_ns=options.as_of)
    missing = sum(gap.last - gap.first + 1 for gap in done.gaps)
    found = {
        "version": done.version,
        "segments": done.segments,
        "events": done.events,
        "files": len(done.files),
        "merged": done.merged,
        "deleted": done.deleted,
        "rolled_up": done.rolled_up,
        "without_job": done.without_job,
        "missing": missing,
        "damaged": len(done.damaged),
    }
    if options.format == "table":
        console.data(
            f"{format_count(done.events, 'event')} of {format_count(done.segments, 'object')} added in "
            f"{format_count(len(done.files), 'file')}: version {done.version}"
        )
    else:
        console.data(format_data(found, options.format, [found], tuple(found)))
    for text in done.warnings:
        console.warn(text)
    for path in done.damaged[:_MOST_WARNINGS]:
        console.warn(f"{path} is damaged, and was passed over")
    if len(done.damaged) > _MOST_WARNINGS:
        console.warn(f"{len(done.damaged) - _MOST_WARNINGS:,} more objects are damaged")
    _warn_gaps(done, console)
    return FAILED if options.strict and (done.gaps or done.damaged) else DONE


def _compact_view(options: argparse.Namespace, console: Console) -> int:
    from ml_diagnostics_common.command.formats import format_data
    from ml_diagnostics_common.texts import format_count

    from ml_diagnostics_fleet.compact_view import compact_view

    view = options.source.removeprefix(_BIGQUERY)
    done = compact_view(mirror_of(options), view, since_ns=options.since, through_ns=options.as_of)
    found = {
        "version": done.version,
        "rows": done.rows,
        "events": done.events,
        "known": done.known,
        "without_payload": done.without_payload,
        "without_job": done.without_job,
        "unreadable": sum(done.unreadable.values()),
        "files": len(done.files),
        "merged": done.merged,
        "deleted": done.deleted,
        "missing": sum(gap.last - gap.first + 1 for gap in done.gaps),
    }
    if options.format == "table":
        console.data(
            f"{format_count(done.events, 'event')} of {format_count(done.rows, 'row')} added in "
            f"{format_count(len(done.files), 'file')}: version {done.version}"
        )
    else:
        console.data(format_data(found, options.format, [found], tuple(found)))
    for text in done.warnings:
        console.warn(text)
    for name, count in (("were in the table", done.known), ("have no JSON payload", done.without_payload)):
        if count:
            console.notify(f"{format_count(count, 'row')} {name}")
    if done.without_job:
        console.notify(f"{format_count(done.without_job, 'row')} name no job")
    for reason, count in done.unreadable.items():
        console.warn(f"{format_count(count, 'row')} passed over: {reason}: {', '.join(done.unreadable_ids[reason])}")
    _warn_gaps(done, console)
    return FAILED if options.strict and (done.gaps or done.unreadable) else DONE


def _warn_gaps(done: Compaction | ViewCompaction, console: Console) -> None:
    from ml_diagnostics_common.texts import one_line

    for gap in done.gaps[:_MOST_WARNINGS]:
        console.warn(f"entries {gap.first} to {gap.last} of {gap.writer} are missing, in {one_line(gap.log)}")
    if len(done.gaps) > _MOST_WARNINGS:
        console.warn(f"{len(done.gaps) - _MOST_WARNINGS:,} more gaps; the manifest has all of them")


def _prepare_run(parser: argparse.ArgumentParser) -> None:
    add_mirror_options(parser, "the moment at which jobs that run end, the same for all (default: now)")
    parser.add_argument(
        "--engine",
        choices=("local", "beam"),
        default="local",
        help="local: processes of this machine; beam: Apache Beam (default: %(default)s)",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=whole_number(1, 1024),
        help="how many processes the local engine starts (default: one for each core)",
    )
    parser.add_argument(
        "--beam-option",
        metavar="OPTION",
        action="append",
        default=[],
        help="an option of Beam, such as --beam-option=--runner=DataflowRunner; may be given again",
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=_SOURCES,
        default=_SOURCES[0],
        help="what Beam reads: the table of events, or all segments without it (default: %(default)s)",
    )
    add_format_option(parser)


def _run(options: argparse.Namespace, console: Console) -> int:
    import time

    from ml_diagnostics_common.command.formats import format_data
    from ml_diagnostics_common.texts import format_clock, format_count, one_line

    mirror = mirror_of(options)
    as_of_ns = time.time_ns() if options.as_of is None else options.as_of
    is_beam = options.engine == "beam"
    if not is_beam and (options.beam_option or options.source != _SOURCES[0]):
        raise UsageError("--beam-option and --from segments are for --engine beam")
    if is_beam and options.processes is not None:
        raise UsageError("--processes is for --engine local; give Beam's as --beam-option")
    if is_beam:
        from ml_diagnostics_fleet.beam_engine import run_beam

        done = run_beam(mirror, as_of_ns, options=options.beam_option, source=options.source)
    else:
        from ml_diagnostics_fleet.local_engine import run_local

        done = run_local(mirror, as_of_ns, processes=options.processes)
    found = {
        "as_of_ns": as_of_ns,
        "jobs": done.jobs,
        "events": done.events,
        "errors": [[key.log, key.job, text] for key, text in done.errors],
    }
    if options.format == "table":
        counts = f"{format_count(done.jobs, 'job')}, {format_count(done.events, 'event')}"
        console.data(f"rows of {counts}, as of {format_clock(as_of_ns)}")
    else:
        row = {**found, "errors": len(done.errors)}
        console.data(format_data(found, options.format, [row], tuple(row)))
    for key, text in done.errors[:_MOST_WARNINGS]:
        console.warn(f"job {one_line(key.job, 200)}: {one_line(text)}")
    if len(done.errors) > _MOST_WARNINGS:
        console.warn(f"{len(done.errors) - _MOST_WARNINGS:,} more jobs failed; the table of jobs has all of them")
    return DONE


# --- Answers ----------------------------------------------------------------------------------------------------------


def _prepare_report(parser: argparse.ArgumentParser) -> None:
    add_report_options(parser)
    add_by_option(parser)
    parser.add_argument("--html", metavar="FILE", help="also write the report as one page that opens anywhere")
    parser.add_argument(
        "--png",
        metavar="FILE",
        type=picture,
        help="also draw it, as .png, .svg or .pdf (needs the extra [plot])",
    )
    parser.add_argument("--dark", action="store_true", help="draw it light on dark")
    _add_strict_option(parser, "entries are missing")
    add_format_option(parser)


def _report(options: argparse.Namespace, console: Console) -> int:
    from ml_diagnostics_common.command.formats import format_data

    from ml_diagnostics_fleet._cli.data import GROUP_FIELDS, group_as_row, overview_as_dict
    from ml_diagnostics_fleet._cli.text import format_overview
    from ml_diagnostics_fleet.overview import overview_of

    if options.png is not None:
        from ml_diagnostics_common.command.plotting import require_matplotlib

        require_matplotlib("ml-diagnostics-fleet")
    with open_reports(options) as reports:
        view = overview_of(reports, options.by)
    # Files first: the reader of standard output may be `head`.
    if options.html is not None:
        from ml_diagnostics_fleet.page import write_page

        write_page(view, options.html)
        console.notify(f"Page saved to {options.html}.")
    if options.png is not None:
        from ml_diagnostics_fleet.picture import draw_fleet

        draw_fleet(view, options.png, dark=options.dark)
        console.notify(f"Plot saved to {options.png}.")
    if options.format == "table":
        console.data(format_overview(view, console.width), styles={r"\A.+": BOLD, r"^Note: .*gaps.*": RED})
    else:
        rows = [group_as_row(group, view) for group in view.groups]
        console.data(format_data(overview_as_dict(view), options.format, rows, (*view.by, *GROUP_FIELDS)))
    if view.has_failed:
        console.warn(f"{view.snapshot.errors:,} of {view.snapshot.jobs:,} jobs could not be read: more than 1 %")
        return FAILED
    return FAILED if options.strict and view.quality.is_incomplete else DONE


def _prepare_worst(parser: argparse.ArgumentParser) -> None:
    add_report_options(parser)
    parser.add_argument(
        "-n", "--number", metavar="N", type=whole_number(1, _MOST), default=10, help="how many jobs (default: 10)"
    )
    parser.add_argument(
        "--order",
        choices=("money", "share"),
        default="money",
        help="money: most money first, or time without prices; share: the largest share of a job's time, of jobs that "
        "ran for an hour (default: %(default)s)",
    )
    add_format_option(parser)


def _worst(options: argparse.Namespace, console: Console) -> int:
    from ml_diagnostics_common.command.formats import format_data

    from ml_diagnostics_fleet._cli.data import JOB_FIELDS, job_as_dict, job_as_row
    from ml_diagnostics_fleet._cli.text import format_worst
    from ml_diagnostics_fleet.overview import Unit, worst_jobs

    with open_reports(options) as reports:
        unit = Unit(any(group.all.chip_ns for group in reports.goodput()))
        by_money, by_share = worst_jobs(reports.jobs(), unit, options.number)
        currency = reports.currency
    jobs = by_money if options.order == "money" else by_share
    if options.format == "table":
        if jobs:
            console.data(format_worst(jobs, unit, currency, console.width))
        else:
            console.notify("no job ran for an hour" if options.order == "share" else "there are no jobs")
        return DONE
    found = [job_as_dict(job, unit, currency) for job in jobs]
    rows = [job_as_row(job) for job in found]
    console.data(format_data({"currency": currency, "jobs": found}, options.format, rows, JOB_FIELDS))
    return DONE


def _prepare_hosts(parser: argparse.ArgumentParser) -> None:
    add_report_options(parser)
    add_format_option(parser)


def _hosts(options: argparse.Namespace, console: Console) -> int:
    from collections import Counter

    from ml_diagnostics_common.command.formats import format_data
    from ml_diagnostics_common.texts import one_line

    from ml_diagnostics_fleet._cli.data import HOST_FIELDS, hosts_as_dict
    from ml_diagnostics_fleet._cli.text import format_hosts
    from ml_diagnostics_fleet.diagnosis import causes_by_host
    from ml_diagnostics_fleet.lemons import find_lemons

    with open_reports(options) as reports:
        found = find_lemons(reports.hosts())
    causes_of = causes_by_host(mirror_of(options), options.as_of) if found.lemons else {}
    if options.format == "table":
        console.data(format_hosts(found, console.width))
        for one in found.lemons:
            counts = causes_of.get(one.host.host, Counter())
            console.data(f"\ncauses of {one_line(one.host.host)}: {format_causes(counts)}")
    else:
        document = hosts_as_dict(found)
        for row in document["listed"]:
            row["causes"] = dict(causes_of.get(row["host"], {}))
        console.data(format_data(document, options.format, document["listed"], HOST_FIELDS))
    return DONE


def _prepare_sql(parser: argparse.ArgumentParser) -> None:
    names = (*QUESTIONS, _TABLES)
    answers = "; ".join(f"{name}: {answer}" for name, answer in QUESTIONS.items())
    parser.add_argument(
        "question", metavar="NAME", choices=names, help=f"{answers}; {_TABLES}: the tables that they need"
    )
    parser.add_argument(
        "--dialect", choices=DIALECTS, default=DIALECTS[0], help="the dialect of SQL (default: %(default)s)"
    )
    add_by_option(parser)
    add_mirror_options(parser, "for tables: the newest rows that are not after this time (default: the newest)")


def _sql(options: argparse.Namespace, console: Console) -> int:
    from ml_diagnostics_fleet.queries import question

    if options.question != _TABLES:
        console.data(question(options.question, options.by, options.dialect), end="")
    elif options.dialect == "bigquery":
        from ml_diagnostics_fleet.bigquery import tables_text

        console.data(tables_text(), end="")
    else:
        from ml_diagnostics_fleet._tables import tables_text as views_text

        console.data(views_text(mirror_of(options), options.as_of), end="")
    return DONE


def _add_strict_option(parser: argparse.ArgumentParser, when: str) -> None:
    parser.add_argument("--strict", action="store_true", help=f"exit with code 1 if {when}")
