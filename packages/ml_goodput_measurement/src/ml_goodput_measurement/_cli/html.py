"""A job's report as HTML for notebooks: its timeline as a picture that needs no other file, and its table."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ml_diagnostics_common.texts import format_percent

from ml_goodput_measurement._cli.buckets import BUCKET_NAMES, COLORS, column_shares
from ml_goodput_measurement._cli.plot import with_straight_edges
from ml_goodput_measurement._cli.report import format_ns, headline, percent, rows
from ml_goodput_measurement.partition import Bucket, JobReport

__all__ = ["format_html", "timeline_svg"]

_COLUMNS = 400
_HEIGHT = 48
_LEFT = 'style="text-align:left"'  # Notebooks align all cells right.


def format_html(report: JobReport) -> str:
    """Format the report as an HTML fragment without scripts, in the colors of the page around it.

    Args:
        report: The report, with its timeline.
    """
    title, *lines = (line.strip() for line in headline(report, None) if line)
    table = "".join(_rows(report))
    return (
        f"<div><p><b>{escape(title)}</b><br>{'<br>'.join(map(escape, lines))}</p>{timeline_svg(report)}"
        f"<table><thead><tr><th></th><th {_LEFT}>bucket</th><th>time</th><th>percent</th></tr></thead>"
        f"<tbody>{table}</tbody></table></div>"
    )


def timeline_svg(report: JobReport) -> str:
    """Draw the timeline: each column's colors are the shares of the buckets in that time, as in `plot_timeline`."""
    cells = "".join(
        f'<rect x="{left}" y="{_HEIGHT * (1 - top):.2f}" width="{right - left}" height="{_HEIGHT * (top - low):.2f}" '
        f'fill="{COLORS[bucket]}"/>'
        for left, right, bucket, low, top in _cells(report)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_COLUMNS} {_HEIGHT}" width="100%" height="{_HEIGHT}" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges" role="img" '
        f'aria-label="{escape(report.job_name)}: timeline">{cells}</svg>'
    )


def _cells(report: JobReport) -> Iterator[tuple[int, int, Bucket, float, float]]:
    """Yield the left and right column, the bucket, and the lower and upper edge (0 to 1) of each colored cell."""
    order = list(BUCKET_NAMES)
    pieces = with_straight_edges(report.timeline, report.start_ns, (report.wall_ns or 1) / _COLUMNS)
    columns = column_shares(pieces, report.start_ns, report.end_ns, _COLUMNS)
    start = 0
    for column, shares in enumerate(columns):
        if len(shares) == 1 and column + 1 < _COLUMNS and columns[column + 1].keys() == shares.keys():
            continue  # One cell for all columns of one color.
        low = 0.0
        for bucket in sorted(shares, key=order.index):
            top = min(1.0, low + shares[bucket])
            yield start, column + 1, bucket, low, top
            low = top
        start = column + 1


def _rows(report: JobReport) -> Iterator[str]:
    for bucket, name, duration_ns in rows(report):
        share = percent(report, bucket, duration_ns)
        shown = "" if share is None else format_percent(share, 2)
        swatch = f'<span style="background:{COLORS[bucket]};display:inline-block;width:1em;height:1em"></span>'
        numbers = "".join(f"<td>{cell}</td>" for cell in (format_ns(duration_ns), shown))
        yield f"<tr><td>{swatch}</td><td {_LEFT}>{escape(name)}</td>{numbers}</tr>"
