"""`xprofiler summary PATH`: print step times, utilization, slowest operations and input of a profile."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from xprofiler.exceptions import DONE

if TYPE_CHECKING:
    from xprofiler.console import Console
    from xprofiler.summary.summary import Summary

__all__ = ["SummaryCommand"]

_WIDTH_WITHOUT_TERMINAL = 200  # Columns: names are not cut in a file or a pipe.


class SummaryCommand:
    """Summarizes a profile."""

    name = "summary"
    summary = "sum up a profile: step time, busy and idle, slowest operations, input"
    passes_on = False

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "path",
            metavar="PATH",
            help="a log directory, local or gs://bucket/path; or the folder of a session, or one .xplane.pb file",
        )
        parser.add_argument("--session", metavar="NAME", help="which session (default: the newest)")
        parser.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")
        parser.add_argument("--plot", metavar="FILE.png", help="also draw it (needs the extra [plot])")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the summary."""
        import shutil
        from pathlib import Path

        from xprofiler.log_directory import LogDirectory
        from xprofiler.summary.disk_space import temporary_folder
        from xprofiler.summary.private_copy import PrivateCopy
        from xprofiler.summary.profiles import find_profile
        from xprofiler.summary.reading_process import summarized
        from xprofiler.summary.text import format_summary
        from xprofiler.waiting import told_if_slow

        if options.plot:
            from xprofiler.summary.plot import check_target

            check_target(Path(options.plot))
        path = LogDirectory.parse(options.path, may_be_local=True).path
        with told_if_slow(console, f"Waiting for an answer about {path} ..."):
            profile = find_profile(path, options.session)
        console.detail(f"Reading {profile.folder}")
        with temporary_folder("xprofiler-") as folder:
            files = PrivateCopy(folder).add(profile)
            found = summarized(profile.name, files, console)
        if options.format == "json":
            console.data(_as_json(found))
        else:
            width = shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
            console.data(format_summary(found, max(width, 60)))
        if options.plot:
            from xprofiler.summary.plot import save_plot

            save_plot(found, Path(options.plot))
            console.notify(f"Plot saved to {options.plot}.")
        return DONE


def _as_json(summary: Summary) -> str:
    import msgspec

    from xprofiler.summary.json_form import as_json

    return msgspec.json.format(as_json(summary), indent=2).decode()
