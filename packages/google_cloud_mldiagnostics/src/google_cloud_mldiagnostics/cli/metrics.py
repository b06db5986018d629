"""`mldiagnostics metrics RUN [NAME ...]`: what a run recorded, as a table, for programs, or as a picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from ml_diagnostics_common.payload import printable

from google_cloud_mldiagnostics.cli.command import NOT_DONE, OK, add_place_options, format_option, run_argument

__all__ = ["MetricsCommand"]

_PICTURES: Final = (".png", ".svg", ".pdf")
_NAMES_SHOWN: Final = 30
_LINES_AT_ONCE: Final = 1000


class MetricsCommand:
    """Shows what a run recorded."""

    name = "metrics"
    summary = "show what a run recorded, all metrics or some"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        run_argument(parser)
        parser.add_argument("names", metavar="NAME", nargs="*", type=printable, help="these metrics (default: all)")
        parser.add_argument("--plot", metavar="FILE.png", type=_picture, help="draw the curves, too")
        format_option(parser, "csv", "json")
        add_place_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Prints values, or what they come to, and draws them."""
        from google_cloud_mldiagnostics.cli.metric_output import (
            csv_lines,
            format_summaries,
            format_values,
            in_order,
            json_lines,
        )
        from google_cloud_mldiagnostics.cli.places import source_of
        from google_cloud_mldiagnostics.cli.text import note, one_line, print_data
        from google_cloud_mldiagnostics.reading.metric_series import MetricSeries
        from google_cloud_mldiagnostics.reading.run_source import run_id_of

        def print_lines(lines: Iterator[str]) -> None:
            while some := "".join(islice(lines, _LINES_AT_ONCE)):
                print_data(some)

        source = source_of(options)
        run = source.find(options.run)
        run_id = run_id_of(run)
        series = MetricSeries()
        for batch in source.entries.of_metrics(run, options.names):
            series.add(batch)
        source.report_unread()
        missing = [name for name in options.names if name not in series.names()]
        if missing or not series.names():
            known = ", ".join(one_line(name, 50) for name in list(in_order(series))[:_NAMES_SHOWN])
            what = " and ".join(repr(name) for name in missing) or "metrics"
            note(f"the run {run_id} has recorded no {what}" + (f"; it has {known}" if known else ""))
            return NOT_DONE
        by_metric = in_order(one for one in series if not options.names or one.metric in options.names)
        if options.format == "csv":
            print_lines(csv_lines(by_metric))
        elif options.format == "json":
            print_lines(json_lines(run_id, by_metric))
        else:
            table = format_summaries(by_metric) + (format_values(by_metric) if options.names else [])
            print_data("\n".join(table) + "\n")
        if options.plot is not None:
            from google_cloud_mldiagnostics.reading.plot import plot_metrics

            plot_metrics(run_id, by_metric, options.plot)
            note(f"drew {options.plot}")
        return OK


def _picture(name: str) -> Path:
    path = Path(name)
    if path.suffix.lower() not in _PICTURES:
        raise argparse.ArgumentTypeError(f"{name!r} is no picture that can be drawn; end it in {', '.join(_PICTURES)}")
    return path
