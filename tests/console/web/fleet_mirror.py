"""A synthetic fleet in a local mirror, with rows, and its report as the command writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AS_OF = "2026-11-22"
_SECONDS = 100
_EVENTS_OF_A_JOB = 750


def make_rows(mirror: Path, *, jobs: int = 0, as_of: str = AS_OF) -> Path:
    """Make the rows of a moment in a mirror, first of a new fleet if it has jobs, and return the mirror.

    Args:
        mirror: The mirror, a folder.
        jobs: The number of jobs of a new fleet; 0 for the jobs that are there.
        as_of: The moment.
    """
    if jobs:
        from ml_diagnostics_fleet.synthetic import SyntheticFleet
        from ml_diagnostics_fleet.synthetic_files import write_segments

        write_segments(mirror, SyntheticFleet(seed=1, jobs=jobs, events=_EVENTS_OF_A_JOB * jobs, all_hosts=True))
        _fleet("compact", mirror, "--as-of", as_of)
    _fleet("run", mirror, "--as-of", as_of, "--processes", "1")
    return mirror


def report_file(mirror: Path, folder: Path, *options: str) -> str:
    """Return the text of the file that `goodput fleet report --html` writes.

    Args:
        mirror: The mirror.
        folder: A folder for the file.
        options: More options.
    """
    file = folder / "fleet.html"
    _fleet("report", mirror, "--html", str(file), *options)
    return file.read_text(encoding="utf-8")


def _fleet(part: str, mirror: Path, *options: str) -> None:
    argv = [sys.executable, "-m", "ml_goodput_measurement", "fleet", part, "--mirror", str(mirror), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
