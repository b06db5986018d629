"""`mldiagnostics runs`: the runs there are, the newest first."""

from __future__ import annotations

import argparse

from ml_diagnostics_common.payload import printable

from google_cloud_mldiagnostics.cli.command import OK, add_place_options, format_option

__all__ = ["RunsCommand"]


class RunsCommand:
    """Lists runs."""

    name = "runs"
    summary = "list runs, the newest first"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        parser.add_argument("--group", metavar="GROUP", type=printable, help="only those of this group")
        parser.add_argument("--limit", metavar="N", type=_count, default=50, help="no more than these (default: 50)")
        format_option(parser, "json")
        add_place_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Prints a line a run."""
        import time

        from google_cloud_mldiagnostics.cli.places import source_of
        from google_cloud_mldiagnostics.cli.run_output import format_runs, runs_as_json
        from google_cloud_mldiagnostics.cli.text import note, print_data

        source = source_of(options)
        views = source.views(options.group, options.limit)
        if options.format == "json":
            print_data(runs_as_json(views))
        elif views:
            print_data(format_runs(views, time.time_ns()))
        else:
            of_group = f" of the group {options.group}" if options.group else ""
            note(f"there are no runs{of_group} in {source.place}")
        return OK


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of runs")
    return int(text)
