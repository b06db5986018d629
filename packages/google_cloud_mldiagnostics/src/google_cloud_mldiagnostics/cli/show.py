"""`mldiagnostics show RUN`: how a run is, its attempts and processes, metrics, profiles and configs."""

from __future__ import annotations

import argparse
import json

from google_cloud_mldiagnostics.cli.command import OK, add_place_options, format_option, run_argument

__all__ = ["ShowCommand"]


class ShowCommand:
    """Shows a run."""

    name = "show"
    summary = "show a run: how it is, its processes, metrics, profiles and configs"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        run_argument(parser)
        format_option(parser, "json")
        add_place_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Prints a page, or an object."""
        import time

        from google_cloud_mldiagnostics.cli.metric_output import format_summaries, in_order, metrics_as_dicts
        from google_cloud_mldiagnostics.cli.places import source_of
        from google_cloud_mldiagnostics.cli.run_output import format_run, run_as_dict
        from google_cloud_mldiagnostics.cli.text import print_data
        from google_cloud_mldiagnostics.reading.metric_series import MetricSeries
        from google_cloud_mldiagnostics.reading.run_history import RunHistory

        source = source_of(options)
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
        if options.format == "json":
            shown = {**run_as_dict(view), **dict(where), "metrics": metrics_as_dicts(by_metric)}
            print_data(json.dumps(shown, indent=2) + "\n")
        else:
            lines = format_summaries(by_metric) if by_metric else []
            print_data(format_run(view, lines, where, time.time_ns()))
        return OK
