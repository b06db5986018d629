"""Draw the picture of the architecture: `python docs/explanation/draw_architecture.py` writes architecture.svg.

The picture is a grid of boxes: a change of the architecture is a change of a line here. A test compares the file with
this source.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

COLUMN, ROW, BOX_WIDTH, BOX_HEIGHT, MARGIN = 262, 76, 226, 52, 24

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
.note { font-size: 11.5px; fill: #57606a }
.title { font-weight: 600 }
.box { fill: #ffffff; stroke: #57606a }
.group { fill: #f1f5f6; stroke: none }
.arrow { stroke: #00796b; stroke-width: 1.5; fill: none; marker-end: url(#head) }
#head path { fill: #00796b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9aa5b1 } .box { fill: #22272e; stroke: #768390 } .group { fill: #2d333b }
  .arrow { stroke: #4db6ac } #head path { fill: #4db6ac }
}
"""


class Box(NamedTuple):
    """A box on the grid: a title, and a line below it."""

    column: float
    row: float
    title: str
    note: str

    @property
    def left(self) -> float:
        """The left edge, in pixels."""
        return MARGIN + self.column * COLUMN

    @property
    def top(self) -> float:
        """The upper edge, in pixels."""
        return 2 * MARGIN + self.row * ROW


class Group(NamedTuple):
    """An area behind boxes: a process, or storage that outlives it."""

    title: str
    first_column: float
    last_column: float
    first_row: float
    last_row: float


GROUPS = (
    Group("the training job", 0, 0, 0, 3),
    Group("the disk of its machine", 1, 1, 0, 3),
    Group("beside the training", 2, 2, 0, 3),
    Group("Google Cloud, if there is one", 3, 3, 0, 3),
    Group("any process, here or on another machine", 0, 3, 4.6, 4.6),
)

# Each row is a path from the job to the cloud; the last one is the path from entries to answers.
ROWS = (
    (
        Box(0, 0, "record_*(), metrics.record()", "one line, one write: microseconds"),
        Box(1, 0, "journal", "append-only files; survive SIGKILL"),
        Box(2, 0, "shipper (thread)", "batches, retries, resumes"),
        Box(3, 0, "Cloud Logging", "the same entries, by insertId"),
    ),
    (
        Box(0, 1, "machinelearning_run()", "runs, attempts, xprof() profiles"),
        Box(1, 1, "runs/<id>", "run.json, staged profiles"),
        Box(2, 1, "registration (thread)", "sends what the folder contains"),
        Box(3, 1, "control plane, bucket", "the same run; profiles"),
    ),
    (
        Box(0, 2, "diagnose(), heartbeat()", "faults, SIGUSR1, periodic stacks"),
        Box(1, 2, "trace files, progress page", "readable while the job is stuck"),
        Box(2, 2, "companion (process)", "outlives the job; detects hangs"),
        Box(3, 2, "Cloud Logging", "stacks, hangs, exit reasons"),
    ),
    (
        Box(0, 3, "GoodputMonitor", "starts and stops uploads"),
        Box(1, 3, "saved state", "queries read only new entries"),
        Box(2, 3, "helper (process)", "calculates; TensorBoard"),
        Box(3, 3, "Cloud Monitoring", "metrics for dashboards"),
    ),
    (
        Box(0, 4.6, "journal, Cloud Logging", "as above"),
        Box(1, 4.6, "log_source", "both, each entry once, in order"),
        Box(2, 4.6, "pure functions", "ledger, run view, equal stacks"),
        Box(3, 4.6, "goodput, mldiagnostics, ...", "tables, JSON, pictures"),
    ),
)


def text(x: float, y: float, words: str, style: str) -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(words)}</text>'


def draw_group(group: Group) -> list[str]:
    """Return the area of a group and its title."""
    left, top = MARGIN / 2 + group.first_column * COLUMN, MARGIN * 0.75 + group.first_row * ROW
    width = (group.last_column - group.first_column) * COLUMN + BOX_WIDTH + MARGIN
    height = (group.last_row - group.first_row) * ROW + BOX_HEIGHT + MARGIN * 1.8
    area = f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="10" class="group"/>'
    return [area, text(left + MARGIN / 2, top + 18, group.title, "note")]


def draw_box(box: Box) -> list[str]:
    """Return a box with its two lines of text."""
    frame = f'<rect x="{box.left:g}" y="{box.top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" class="box"/>'
    title = text(box.left + 10, box.top + 21, box.title, "title")
    return [frame, title, text(box.left + 10, box.top + 40, box.note, "note")]


def draw_arrow(start: Box, end: Box) -> str:
    """Return an arrow between two boxes of a row."""
    y = start.top + BOX_HEIGHT / 2
    return f'<path d="M{start.left + BOX_WIDTH:g} {y:g} H{end.left - 3:g}" class="arrow"/>'


def picture() -> str:
    """Return the picture as SVG."""
    width = (len(ROWS[0]) - 1) * COLUMN + BOX_WIDTH + 2 * MARGIN
    height = ROWS[-1][0].top + BOX_HEIGHT + MARGIN
    head = (
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
        '<path d="M0 0 L6 3 L0 6 Z"/></marker></defs>'
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"'
        ' aria-label="From a recorded event to an answer">',
        f"<style>{STYLE}</style>",
        head,
    ]
    for group in GROUPS:
        lines += draw_group(group)
    for row in ROWS:
        lines += [draw_arrow(start, end) for start, end in itertools.pairwise(row)]
        for box in row:
            lines += draw_box(box)
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("architecture.svg").write_text(picture(), encoding="utf-8")
