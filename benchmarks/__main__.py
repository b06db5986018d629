"""Run the benchmarks and write their results; exit with 1 if one fails, or if a full run misses a target.

A benchmark that raises costs no result of the others: it is named in the results, and the next one runs. Every run,
also of some benchmarks only, leaves a JSON file in out/benchmarks, which `compare` reads.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks import compare, measurements, results
from benchmarks.results import Row, Table

TABLES = [
    "recording",
    "queries",
    "from_disk",
    "windows",
    "advice",
    "jobs_watched",
    "monitoring",
    "trainer",
    "importing",
    "cloud_reading",
    "cloud_writing",
    "mirror",
    "mirror_watched",
    "hangs",
    "fast_fail",
    "console",
    "inferred",
    "diagnose",
    "diagnosed_trainer",
    "metrics_recorded",
    "metrics_kept",
    "metrics_read",
    "run_started",
    "run_trainer",
    "viewers",
    "captures",
    "webhook",
    "operator",
    "operator_chaos",
    "front_door",
    "doctor",
    "first_cause",
    "faultbench",
    "page",
    "fleet",
    "fleet_report",
    "fleet_beam",
]
RESULTS = Path(__file__).parent / "RESULTS.md"


def main(argv: Sequence[str], tables: Sequence[str] = TABLES) -> int:
    if argv[:1] == ["compare"]:
        return compare.main(argv[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"some of: {', '.join(tables)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, in under two minutes")
    parser.add_argument(
        "--output",
        type=Path,
        help="file for the page, with its JSON beside it; by default a full run of all tables replaces RESULTS.md and"
        " RESULTS.json, others are printed",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=compare.RUNS,
        help="folder that keeps the JSON of each run (default: out/benchmarks)",
    )
    arguments = parser.parse_args(argv)
    unknown = set(arguments.tables) - set(tables)
    if unknown:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(tables)}")
    names = arguments.tables or list(tables)
    output = arguments.output or (RESULTS if names == list(tables) and not arguments.quick else None)
    kept = arguments.runs / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    measured: list[Table] = []
    failed = []
    for name in names:
        started = time.perf_counter()
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        try:
            measured += importlib.import_module(f"benchmarks.{name}").measure(quick=arguments.quick)
        except Exception as error:
            traceback.print_exc()
            failed.append(name)
            measured.append(_failure(name, error))
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
        measurements.write(kept, measured, quick=arguments.quick)  # after each, for interrupted runs
        if output is not None:
            output.write_text(results.page(measured, quick=arguments.quick), encoding="utf-8")
            measurements.write(output.with_suffix(".json"), measured, quick=arguments.quick)
    if output is None:
        print(results.page(measured, quick=arguments.quick))
    missed = [f"{table.title}: {row.work}" for table in measured for row in table.rows if row.met is False]
    for work in missed:
        print(f"missed: {work}", file=sys.stderr)
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    print(f"numbers: {kept}", file=sys.stderr)
    return 1 if failed or (missed and not arguments.quick) else 0


def _failure(name: str, error: Exception) -> Table:
    message = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "\\|")[:300]
    return Table(f"{name}: failed", "This benchmark did not finish; its results are missing.", [Row("error", message)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
