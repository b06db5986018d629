"""Run in an empty environment with the wheel and what it depends on: the goodput of a small fleet."""

import sys
import tempfile
from pathlib import Path

import ml_diagnostics_fleet
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.queries import question
from ml_diagnostics_fleet.rows_files import read_table
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
from ml_diagnostics_fleet.synthetic_files import write_segments

assert "site-packages" in ml_diagnostics_fleet.__file__
assert (Path(ml_diagnostics_fleet.__file__).parent / "py.typed").is_file()


def main() -> None:
    with tempfile.TemporaryDirectory() as mirror:
        entries = write_segments(mirror, SyntheticFleet(seed=1, jobs=6, events=3_000))
        assert compact(mirror, now_ns=AS_OF_NS).events == entries
        run = run_local(mirror, AS_OF_NS, processes=2)
        assert (run.jobs, run.events, run.errors) == (6, entries, []), run
        (wall, sums) = (0, 0)
        for row in read_table(mirror, run.snapshot, "jobs").to_pylist():
            wall += row["end_ns"] - row["start_ns"]
        sums = sum(read_table(mirror, run.snapshot, "ledger_rows")["ns"].to_pylist())
        assert wall == sums > 0, (wall, sums)
        if sys.version_info >= (3, 11):  # DuckDB 2 needs it.
            from ml_diagnostics_fleet.overview import overview_of
            from ml_diagnostics_fleet.page import page_of
            from ml_diagnostics_fleet.reports import FleetReports

            with FleetReports(mirror) as reports:
                view = overview_of(reports)
            assert view.all.job_ns == sums, (view.all, sums)
            assert "<svg" in page_of(view)
        assert "BIGNUMERIC" in question("goodput", dialect="bigquery")
    print("ml_diagnostics_fleet: rows of a fleet")


if __name__ == "__main__":
    main()
