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
        import time

        from google_cloud_mldiagnostics._cli.metric_output import format_summaries, in_order, metrics_as_dicts
        from google_cloud_mldiagnostics._cli.run_output import (
            PROCESS_FIELDS,
            STATE_STYLES,
            format_run,
            processes_as_dicts,
            run_as_dict,
        )
        from google_cloud_mldiagnostics._reading.metric_series import MetricSeries
        from google_cloud_mldiagnostics._reading.run_history import RunHistory

        source = run_source(options, console)
        run = source.find(options.run)
        run_id = str(run["name"])
        history, series = RunHistory(), MetricSeries()
        for batch in source.entries.overview(run):
            history.add(batch)
            series.add(batch)
        view = source.view(run, history)
        by_metric = in_order(series)
        link = source.control_plane.link(run_id)
        where = [("link" if "://" in link else "folder", link)]
        if options.format == "table":
            metrics = format_summaries(by_metric, console.width) if by_metric else []
            page = format_run(view, metrics, where, time.time_ns(), console.width)
            console.data(page, styles=STATE_STYLES)
        else:
            shown = {**run_as_dict(view), **dict(where), "metrics": metrics_as_dicts(by_metric)}
            console.data(format_data(shown, options.format, processes_as_dicts(view), PROCESS_FIELDS))
        return DONE
