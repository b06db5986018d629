"""The command `tpu-stacks`: the stacks of all processes of a job in one picture.

Exit codes: 0 ok, 1 nothing was found, 2 the command was not understood or could not be done.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloud_tpu_diagnostics._version import __version__

if TYPE_CHECKING:
    from cloud_tpu_diagnostics.grouping import ProcessDump

__all__ = ["main"]

_RULING = re.compile(r"[^\n\x20-\x7e\xa0-\U0010ffff]")
"""What rules a terminal, ends of lines apart."""

_EPILOG = "exit codes: 0 ok, 1 nothing was found, 2 the command was not understood or could not be done"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if arguments is None:  # A process of our own.
        gc.disable()  # Nothing here goes in circles, and to look for that takes a quarter of the time of a large job.
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    from ml_diagnostics_common.exceptions import DiagnosticsError  # After parsing: --help needs nothing of it.

    notes: list[str] = []
    try:
        dumps = _live_dumps(options, notes) if options.command == "dump" else _recorded_dumps(options, notes)
        _note(notes)
        if not dumps:
            return 1
        _print(dumps, options)
    except BrokenPipeError:  # Whoever reads our output, `head` perhaps, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except (DiagnosticsError, OSError) as error:
        _note([*notes, str(error)])
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu-stacks",
        description="Where the processes of a training job are: equal stacks together, and who is odd.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("--format", choices=("table", "json", "collapsed"), default="table", help="default: %(default)s")
    shown.add_argument("--threads", action="store_true", help="in the table, the other threads too")

    dump = commands.add_parser("dump", parents=[shown], help="ask the processes of this machine now", epilog=_EPILOG)
    dump.add_argument("pids", metavar="PID", nargs="*", type=_pid, help="default: all that are inside of diagnose()")
    dump.add_argument("--native", action="store_true", help="frames of C and C++ too, by py-spy")
    dump.add_argument("--signal", metavar="NAME", help="the one that makes the process dump (default: SIGUSR1)")
    dump.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=10.0, help="for a process: %(default)s")

    show = commands.add_parser("show", parents=[shown], help="show what processes have written", epilog=_EPILOG)
    source = show.add_mutually_exclusive_group(required=True)
    source.add_argument("path", metavar="PATH", nargs="?", help="a trace file, a folder of them, or gs://bucket/prefix")
    source.add_argument("--job", type=_job_name, help="a job in the journal and in Cloud Logging")
    show.add_argument(
        "--since", metavar="TIME", type=_seconds, default=3600.0, help="30m, 2h, 7d: nothing older (default: 1h)"
    )
    show.add_argument(
        "--silent-after", metavar="TIME", type=_seconds, help="who sent nothing for so long is silent (default: 1.5 "
        "intervals of the process)"
    )  # fmt: skip
    return parser


def _job_name(text: str) -> str:
    from ml_diagnostics_common.payload import printable  # Only here: --help loads nothing that is slow.

    return printable(text)


def _pid(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is no process id")
    return int(text)


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, or such as 30m, 2h, 7d")
    return seconds


def _recorded_dumps(options: argparse.Namespace, notes: list[str]) -> list[ProcessDump]:
    from cloud_tpu_diagnostics.grouping import name_processes

    if options.job is not None:
        from cloud_tpu_diagnostics.stacks.log_entries import read_job

        dumps = read_job(options.job, since_seconds=options.since, notes=notes)
        where = f"of the job {options.job!r}"
    else:
        from cloud_tpu_diagnostics.stacks.trace_files import read_trace_files

        dumps = _without_well_ended(read_trace_files(options.path, notes), notes)
        where = f"in {options.path}"
    if not dumps:
        notes.append(f"no stacks {where} were found")
        return []
    newest_ns = max(dump.time_ns for dump in dumps)
    recent = [dump for dump in dumps if newest_ns - dump.time_ns <= options.since * 1e9]
    if len(recent) < len(dumps):
        notes.append(f"{len(dumps) - len(recent)} processes wrote their last long before the others: see --since")
    return name_processes(recent)


def _without_well_ended(dumps: list[ProcessDump], notes: list[str]) -> list[ProcessDump]:
    """Leave out those that ended well, unless all have: a folder has the files of many jobs."""
    others = [dump for dump in dumps if not dump.has_ended_well]
    if others and len(others) < len(dumps):
        count = len(dumps) - len(others)
        notes.append(f"{count} {'process' if count == 1 else 'processes'} that ended well not shown")
    return others or dumps


def _live_dumps(options: argparse.Namespace, notes: list[str]) -> list[ProcessDump]:
    from cloud_tpu_diagnostics.stacks.live import dump_processes

    return dump_processes(
        options.pids,
        native=options.native,
        signal_name=options.signal,
        timeout_seconds=options.timeout,
        notes=notes,
    )


def _print(dumps: list[ProcessDump], options: argparse.Namespace) -> None:
    import io

    from cloud_tpu_diagnostics.grouping import group_processes
    from cloud_tpu_diagnostics.stacks.output import format_collapsed, format_json, format_table

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A name may have letters that the terminal has not.
    if options.format == "collapsed":
        text = format_collapsed(dumps)
    else:
        picture = group_processes(dumps, silent_after_seconds=getattr(options, "silent_after", None))
        text = format_json(picture) if options.format == "json" else format_table(picture, all_threads=options.threads)
    # Names are others' words: none of them may move the cursor, or look like a line of ours.
    print(_RULING.sub(_shown, text), end="", flush=True)


def _shown(ruling: re.Match[str]) -> str:
    return f"\\x{ord(ruling[0]):02x}"


def _note(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"tpu-stacks: {_RULING.sub(_shown, note)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
