"""The command `python -m ml_diagnostics_console.faultbench`."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ml_diagnostics_common.exceptions import MissingExtraError

from ml_diagnostics_console.faultbench._asking import Tool, command_tool
from ml_diagnostics_console.faultbench._bench import first_cause_under_offsets, run_all, score_all, write
from ml_diagnostics_console.faultbench._histories import histories_in
from ml_diagnostics_console.faultbench._plans import KINDS, plan_of, plans_of, seeds_of

_TERMINATED = 128 + signal.SIGTERM
_FAST_FAIL = {"ML_DIAGNOSTICS_FAST_FAIL": "1"}
_SMOKE = ("sigkill", "exception_late", "healthy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run jobs, score stored ones, or both; return an exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # As Ctrl-C: the job that runs is ended first.
    parser = _parser()
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="faultbench-histories-") as folder:
        try:
            archives = _stored(options, parser) if options.score else _run(options, parser, Path(folder))
        except MissingExtraError as error:
            _report(f"{parser.prog}: {error}")
            return 1
        if options.first_cause:
            return _show_first_cause(archives)
        if options.no_score:
            return 0
        tools: dict[str, Tool] = {command: command_tool(shlex.split(command)) for command in options.tool}
        title = f"faultbench, {'stored histories' if options.score else f'seeds {options.seeds}'}"
        page, results = score_all(archives, title, tools=tools, offset_seconds=options.offsets, draws=options.draws)
    write(options.output, page, results)
    print(page)
    return 0


def _stored(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Path]:
    """Return the stored runs that are asked for."""
    archives = histories_in(options.score)
    if options.only:
        wanted = tuple(f"{name.replace('_', '-').replace('.', '-')}-" for name in options.only)
        archives = [archive for archive in archives if archive.name.startswith(wanted)]
    if not archives:
        parser.error(f"{options.score} has no histories")
    return archives


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser, folder: Path) -> list[Path]:
    """Run what is asked for, and return the histories; without --store they are in a folder for this command.

    Raises:
        MissingExtraError: JAX is not installed.
    """
    try:
        seeds = seeds_of(options.seeds)
    except ValueError:
        parser.error(f"expected --seeds in the form 0-3 or 0,2, got {options.seeds!r}")
    plans = list(plans_of(seeds, options.only, most_negatives=options.negatives))
    if options.smoke:
        plans = [plan_of(name, "0", most_processes=2) for name in _SMOKE]
    if importlib.util.find_spec("jax") is None:
        raise MissingExtraError("faultbench, which trains with JAX,", "ml-diagnostics-console", "faultbench")
    target = options.store or folder
    _report(f"{len(plans)} runs; histories in {target}")
    return run_all(
        plans,
        target,
        _report,
        is_resumed=options.resume,
        is_live=not options.no_live,
        environment=_FAST_FAIL if options.fast_fail else {},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ml_diagnostics_console.faultbench", description=__doc__)
    parser.add_argument("--seeds", default="0-7", help="such as 0-3 or 4,6 (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], choices=sorted(KINDS), metavar="KIND", help="one kind")
    parser.add_argument(
        "--negatives", type=int, metavar="N", help="at most so many a seed (default: as many as faults)"
    )
    parser.add_argument("--smoke", action="store_true", help="three jobs of two processes")
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="keep the histories of all runs there")
    parser.add_argument("--resume", action="store_true", help="leave out runs that are stored already")
    parser.add_argument("--score", type=Path, metavar="FOLDER", help="run nothing; score the stored histories")
    parser.add_argument("--offsets", type=float, default=0.0, metavar="SECONDS", help="change clocks by up to so much")
    parser.add_argument("--draws", type=int, default=1, help="how often, with other offsets (default: %(default)s)")
    parser.add_argument("--first-cause", action="store_true", help="only: the culprit under 20 draws of 60 s")
    parser.add_argument("--fast-fail", action="store_true", help="have jobs end all processes once one has failed")
    parser.add_argument("--tool", action="append", default=[], metavar="COMMAND", help="another tool to score")
    parser.add_argument("--no-live", action="store_true", help="do not ask the doctor while jobs run")
    parser.add_argument("--no-score", action="store_true", help="only run and store")
    parser.add_argument("--output", type=Path, default=Path("faultbench-results"), help="(default: %(default)s)")
    return parser


def _show_first_cause(archives: Sequence[Path]) -> int:
    found = first_cause_under_offsets(archives)
    for kind, (right, draws) in found.items():
        print(f"{kind}: {right} of {draws}")
    print(f"all: {sum(right for right, _ in found.values())} of {sum(draws for _, draws in found.values())}")
    return 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
