"""Measures the figures and writes them down; a full run that misses a target ends with status 1."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from benchmarks import results

FIGURES = [
    "recording",
    "queries",
    "from_disk",
    "windows",
    "monitoring",
    "trainer",
    "importing",
    "cloud_reading",
    "hangs",
    "diagnose",
    "diagnosed_trainer",
    "metrics_recorded",
    "metrics_kept",
    "run_begun",
    "run_trainer",
    "viewers",
    "captures",
]
RESULTS = Path(__file__).parent / "RESULTS.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"some of: {', '.join(FIGURES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, in under two minutes")
    parser.add_argument(
        "--output",
        type=Path,
        help="file for the results; by default a full run of all figures replaces RESULTS.md, others are printed",
    )
    arguments = parser.parse_args()
    unknown = set(arguments.figures) - set(FIGURES)
    if unknown:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    figures = arguments.figures or FIGURES
    tables = []
    for name in figures:
        began = time.perf_counter()
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        tables += importlib.import_module(f"benchmarks.{name}").measure(quick=arguments.quick)
        print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    page = results.page(tables, quick=arguments.quick)
    output = arguments.output or (RESULTS if figures == FIGURES and not arguments.quick else None)
    if output is None:
        print(page)
    else:
        output.write_text(page, encoding="utf-8")
    missed = [f"{table.title}: {row.work}" for table in tables for row in table.rows if row.met is False]
    for work in missed:
        print(f"missed: {work}", file=sys.stderr)
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
