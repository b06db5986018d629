"""`mldiagnostics runs` and `mldiagnostics show`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE
from ml_diagnostics_common.command.formats import add_format_option, format_data
from ml_diagnostics_common.command.options import whole_number
from ml_diagnostics_common.payload import printable

from google_cloud_mldiagnostics._cli import add_run_argument, add_source_options, run_source

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["RunsCommand", "ShowCommand"]


class RunsCommand:
    """Lists runs."""

    name = "runs"
    summary = "list runs, the newest first"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("--group", metavar="GROUP", type=printable, help="only runs of this group")
        parser.add_argument(
            "--limit", metavar="N", type=whole_number(1, 10**9), default=50, help="at most N runs (default: 50)"
        )
        add_format_option(parser)
        add_source_options(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print a line for each run."""
        import time

        from google_cloud_mldiagnostics._cli.run_output import RUN_FIELDS, STATE_STYLES, format_runs, runs_as_dicts

        source = run_source(options, console)
        views = source.views(options.group, options.limit)
        if options.format != "table":
            records = runs_as_dicts(views)
            console.data(format_data(records, options.format, records, RUN_FIELDS))
        elif views:
            console.data(format_runs(views, time.time_ns(), console.width), styles=STATE_STYLES)
        else:
            of_group = f" of the group {options.group}" if options.group else ""
            console.notify(f"there are no runs{of_group} in {source.name}")
        return DONE


class ShowCommand:
    """Shows a run."""

    name = "show"
    summary = "show a run: its state, processes, metrics, profiles and configs"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_run_argument(parser)
        add_format_option(parser)
        add_source_options(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print a page; for programs, an object, or in CSV a line for each process."""
        from google_cloud_mldiagnostics._cli.page import RunPage
        from google_cloud_mldiagnostics._cli.run_output import PROCESS_FIELDS, STATE_STYLES, processes_as_dicts

        page = RunPage.read(run_source(options, console), options.run)
        if options.format == "table":
            console.data(page.as_text(console.width), styles=STATE_STYLES)
        else:
            rows = processes_as_dicts(page.view)
            console.data(format_data(page.as_dict(), options.format, rows, PROCESS_FIELDS))
        return DONE
