"""`mldiagnostics metrics RUN [NAME ...]`: metrics of a run, as a table, for programs, or as a picture."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import DONE, NotFoundError
from ml_diagnostics_common.command.formats import add_format_option, format_data
from ml_diagnostics_common.command.options import add_plot_options
from ml_diagnostics_common.payload import printable

from google_cloud_mldiagnostics._cli import add_run_argument, add_source_options, run_source

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["MetricsCommand"]

_NAMES_SHOWN: Final = 30
_LINES_AT_ONCE: Final = 1000


class MetricsCommand:
    """Shows metrics of a run."""

    name = "metrics"
    summary = "show the metrics that a run recorded, all or some"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_run_argument(parser)
        # Without a default, argparse names NAME as required if RUN is missing.
        parser.add_argument(
            "names", metavar="NAME", nargs="*", default=[], type=printable, help="these metrics (default: all)"
        )
        add_plot_options(parser, "the curves")
        add_format_option(parser)
        add_source_options(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the values, or statistics of them, and draw them.

        Raises:
            NotFoundError: The run has not recorded such a metric.
            MissingExtraError: A picture is asked for, and matplotlib is not installed.
        """
        from ml_diagnostics_common.texts import one_line

        from google_cloud_mldiagnostics._cli.metric_output import (
            csv_lines,
            format_summaries,
            format_values,
            in_order,
            json_lines,
            values_as_dict,
        )
        from google_cloud_mldiagnostics._reading.metric_series import MetricSeries
        from google_cloud_mldiagnostics.control_plane import resource_id

        if options.plot is not None:
            from ml_diagnostics_common.command.plotting import require_matplotlib

            require_matplotlib("google-cloud-mldiagnostics")
        source = run_source(options, console)
        run = source.find(options.run)
        run_id = resource_id(run)
        series = MetricSeries()
        for batch in source.entries.of_metrics(run, options.names):
            series.add(batch)
        source.report_unread()
        missing = [name for name in options.names if name not in series.names()]
        if missing or not series.names():
            known = ", ".join(one_line(name, 50) for name in list(in_order(series))[:_NAMES_SHOWN])
            what = " and ".join(repr(name) for name in missing) or "metrics"
            raise NotFoundError(f"the run {run_id} has recorded no {what}" + (f"; it has {known}" if known else ""))
        by_metric = in_order(one for one in series if not options.names or one.metric in options.names)
        if options.format in ("csv", "json"):
            lines = csv_lines(by_metric) if options.format == "csv" else json_lines(run_id, by_metric)
            while some := "".join(islice(lines, _LINES_AT_ONCE)):
                console.data(some, end="")
        elif options.format == "yaml":
            console.data(format_data(values_as_dict(run_id, by_metric), "yaml"))
        else:
            table = format_summaries(by_metric, console.width)
            if options.names:
                table += format_values(by_metric, console.width)
            console.data("\n".join(table))
        if options.plot is not None:
            from google_cloud_mldiagnostics._cli.plot import plot_metrics

            plot_metrics(run_id, by_metric, options.plot, dark=options.dark)
            console.notify(f"Plot saved to {options.plot}.")
        return DONE
