"""`xprofiler summary PATH`: print step times, utilization, slowest operations and input of a profile."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.console import BOLD
from ml_diagnostics_common.command.errors import DONE
from ml_diagnostics_common.command.formats import add_format_option, format_data
from ml_diagnostics_common.command.options import add_plot_options

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

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
            help="a log directory, local or gs://bucket/path; the folder of a session, or one .xplane.pb file; or a "
            "run of this machine, or 'last'",
        )
        parser.add_argument("--session", metavar="NAME", help="which session (default: the newest)")
        add_format_option(parser)
        add_plot_options(parser, "it")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the summary."""
        import dataclasses

        from ml_diagnostics_common.command.plotting import require_matplotlib

        from xprofiler.cli import notify_if_slow
        from xprofiler.log_directory import LogDirectory
        from xprofiler.summary.converters import temporary_folder
        from xprofiler.summary.private_copy import PrivateCopy
        from xprofiler.summary.profiles import find_profile, path_of_run
        from xprofiler.summary.reading import summarized
        from xprofiler.summary.summary import Operation
        from xprofiler.summary.text import as_dict, format_summary

        if options.plot:
            require_matplotlib("cloud-diagnostics-xprof")
        path = LogDirectory.parse(path_of_run(options.path), may_be_local=True).path
        with notify_if_slow(console, f"Waiting for an answer about {path} ..."):
            profile = find_profile(path, options.session)
        console.detail(f"Reading {profile.folder}")
        with temporary_folder("xprofiler-") as folder:
            files = PrivateCopy(folder).add(profile)
            found = summarized(profile.name, files, console)
        if options.format == "table":
            text = format_summary(found, max(console.width or _WIDTH_WITHOUT_TERMINAL, 60))
            console.data(text, styles={r"\A.+": BOLD})
        else:
            rows = [dataclasses.asdict(operation) for operation in found.operations]
            fields = [field.name for field in dataclasses.fields(Operation)]
            console.data(format_data(as_dict(found), options.format, rows, fields))
        if options.plot:
            from xprofiler.summary.plot import save_plot

            save_plot(found, options.plot, dark=options.dark)
            console.notify(f"Plot saved to {options.plot}.")
        return DONE
