"""The command `tpu-stacks`: the stacks of all processes of a job in one picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.console import BOLD
from ml_diagnostics_common.command.errors import DONE, FAILED, NOT_FOUND
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.options import seconds, whole_number
from ml_diagnostics_common.command.program import Command, Program

from cloud_tpu_diagnostics._version import __version__

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from cloud_tpu_diagnostics._dumps.grouping import ProcessDump

__all__ = ["main"]

_LAST = "last"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `tpu-stacks`; None takes those of this process.
    """
    description = "The stacks of all processes of a training job: equal ones together, and processes that differ."
    return Program("tpu-stacks", description, __version__, _commands).main(arguments)


def _commands() -> Iterator[Command]:
    yield DumpCommand()
    yield ShowCommand()


class DumpCommand:
    """Dumps the stacks of processes of this machine."""

    name = "dump"
    summary = "dump the stacks of processes of this machine now"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "pids", metavar="PID", nargs="*", type=whole_number(1, 2**31 - 1), help="default: all inside diagnose()"
        )
        parser.add_argument("--native", action="store_true", help="frames of C and C++ too, by py-spy")
        parser.add_argument("--signal", metavar="NAME", help="the signal that requests a dump (default: SIGUSR1)")
        parser.add_argument(
            "--timeout", metavar="TIME", type=seconds, default=10.0, help="for each process (default: %(default)s s)"
        )
        _add_output_options(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the stacks of the processes that answer."""
        from cloud_tpu_diagnostics._stacks.live import dump_processes

        notes: list[str] = []
        try:
            dumps = dump_processes(
                options.pids,
                native=options.native,
                signal_name=options.signal,
                timeout_seconds=options.timeout,
                notes=notes,
            )
        finally:
            _warn(notes, console)
        if not dumps:
            return FAILED if options.pids else NOT_FOUND
        _print(dumps, options, console)
        return DONE


class ShowCommand:
    """Shows recorded stacks."""

    name = "show"
    summary = "show the stacks that processes have recorded"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "path", metavar="PATH", nargs="?", help="a trace file, a folder of them, or gs://bucket/prefix"
        )
        source.add_argument("--job", type=_job_name, help="a job in the journal and in Cloud Logging, or 'last'")
        parser.add_argument(
            "--since", metavar="TIME", type=seconds, default=3600.0, help="30m, 2h, 7d: nothing older (default: 1h)"
        )
        parser.add_argument(
            "--silent-after",
            metavar="TIME",
            type=seconds,
            help="a process without an entry for this time is silent (default: 1.5 intervals of the process)",
        )
        _add_output_options(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the newest stacks of each process."""
        notes: list[str] = []
        try:
            dumps = _recorded_dumps(options, notes)
        finally:
            _warn(notes, console)
        if not dumps:
            return NOT_FOUND
        _print(dumps, options, console)
        return DONE


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    add_format_option(parser, "collapsed")
    parser.add_argument("--threads", action="store_true", help="in the table, the other threads too")


def _job_name(text: str) -> str:
    from ml_diagnostics_common.payload import printable  # Only here: --help loads nothing that is slow.

    return printable(text)


def _recorded_dumps(options: argparse.Namespace, notes: list[str]) -> list[ProcessDump]:
    from ml_diagnostics_common.texts import format_count

    from cloud_tpu_diagnostics._dumps.grouping import name_processes

    if options.job is not None:
        from cloud_tpu_diagnostics._stacks.log_entries import read_job

        job = _resolved(options.job)
        dumps = read_job(job, since_seconds=options.since, notes=notes)
        where = f"of the job {job!r}"
    else:
        from cloud_tpu_diagnostics._stacks.trace_files import read_trace_files

        dumps = _without_clean_exits(read_trace_files(options.path, notes), notes)
        where = f"in {options.path}"
    if not dumps:
        notes.append(f"no stacks {where} were found")
        return []
    newest_ns = max(dump.time_ns for dump in dumps)
    recent = [dump for dump in dumps if newest_ns - dump.time_ns <= options.since * 1e9]
    if len(recent) < len(dumps):
        processes = format_count(len(dumps) - len(recent), "process", "processes")
        notes.append(f"{processes} with older stacks than --since not shown")
    return name_processes(recent)


def _resolved(job: str) -> str:
    """Return the job that started last on this machine for `last`, unless a job has that name."""
    from ml_diagnostics_common.environment import diagnostics_directory
    from ml_diagnostics_common.journal import newest_job, processes_of_job

    root = diagnostics_directory()
    if job != _LAST or processes_of_job(root, job):
        return job
    newest = newest_job(root)
    return job if newest is None else newest[1]


def _without_clean_exits(dumps: list[ProcessDump], notes: list[str]) -> list[ProcessDump]:
    """Leave out processes that ended well, unless all did: a folder has the files of many jobs."""
    from ml_diagnostics_common.texts import format_count

    others = [dump for dump in dumps if not dump.has_ended_well]
    if others and len(others) < len(dumps):
        processes = format_count(len(dumps) - len(others), "process", "processes")
        notes.append(f"{processes} that ended well not shown")
    return others or dumps


def _print(dumps: list[ProcessDump], options: argparse.Namespace, console: Console) -> None:
    from ml_diagnostics_common.command.formats import format_data

    from cloud_tpu_diagnostics._dumps.grouping import group_processes
    from cloud_tpu_diagnostics._stacks.output import PROCESS_FIELDS, as_dict, format_collapsed, format_text, processes

    if options.format == "collapsed":
        console.data(format_collapsed(dumps), end="")
        return
    picture = group_processes(dumps, silent_after_seconds=getattr(options, "silent_after", None))
    if options.format == "table":
        console.data(format_text(picture, all_threads=options.threads), styles={r"\A.+": BOLD})
    else:
        console.data(format_data(as_dict(picture), options.format, processes(picture), PROCESS_FIELDS))


def _warn(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.warn(note)


if __name__ == "__main__":
    import sys

    sys.exit(main())
