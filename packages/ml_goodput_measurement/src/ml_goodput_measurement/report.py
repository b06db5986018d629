"""Reports of jobs, for programs and notebooks: what the command `goodput report` prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ml_goodput_measurement.partition import JobReport

if TYPE_CHECKING:
    from ml_goodput_measurement.exclusion_utils import ExclusionInterval

__all__ = ["Report", "report"]


class Report:
    """Text, data and pictures of how a job spent its time; notebooks show it with its timeline.

    Attributes:
        data: The exact times, in nanoseconds.
    """

    def __init__(self, data: JobReport) -> None:
        """Wrap the result of `GoodputCalculator.report`."""
        self.data = data

    def __str__(self) -> str:
        from ml_goodput_measurement._cli.report import format_text

        return format_text(self.data)

    def __repr__(self) -> str:
        return f"<Report of {self.data.job_name!r}: {self.data.goodput_percent:.2f} % goodput>"

    def _repr_html_(self) -> str:
        from ml_goodput_measurement._cli.html import format_html

        return format_html(self.data)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in the types of JSON: what `goodput report --format json` prints."""
        from ml_goodput_measurement._cli.report import as_dict

        return as_dict(self.data)

    def plot(self, path: str | os.PathLike[str], *, dark: bool = False) -> None:
        """Draw the timeline.

        Args:
            path: The picture to write; its suffix selects the format (.png, .svg, .pdf).
            dark: True for light on dark.

        Raises:
            MissingExtraError: matplotlib is not installed.
            OSError: The file cannot be written.
        """
        from ml_diagnostics_common.command.plotting import require_matplotlib

        from ml_goodput_measurement._cli.plot import plot_timeline

        require_matplotlib("ml-goodput-measurement")
        plot_timeline(self.data, os.fspath(path), dark=dark)


def report(
    job_name: str = "last", logger_name: str | None = None, exclusions: Sequence[ExclusionInterval] = ()
) -> Report:
    """Read the events of a job, and return how it spent its time.

    Args:
        job_name: The job; `last` is the one that started last on this machine.
        logger_name: The log; None is `goodput_<job_name>`, or else the only log of the job in the journal.
        exclusions: Intervals to leave out, of `exclusion_utils.read_exclusions`.

    Raises:
        NotFoundError: Nothing was recorded for the job.
        ConfigurationError: The job is in several logs.
    """
    from ml_goodput_measurement._cli.search import find_report

    return Report(find_report(job_name, logger_name, exclusions, with_timeline=True))
