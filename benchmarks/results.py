"""Results of measurements, and their format."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

REFERENCES = (
    "ml-goodput-measurement 0.2.3, cloud-tpu-diagnostics 0.1.5, google-cloud-mldiagnostics 1.0.0 and 1.0.10,"
    " cloud-diagnostics-xprof 0.1.1"
)
OURS = [
    "ml-goodput-measurement",
    "cloud-tpu-diagnostics",
    "google-cloud-mldiagnostics",
    "cloud-diagnostics-xprof",
    "ml-diagnostics",
]
BESIDE = "W&B 0.31.0 and MLflow 3.17.2"


@dataclass(frozen=True)
class Row:
    """One result: ours, the compared one, and the target."""

    work: str
    ours: str
    compared_with: str = ""
    ratio: str = ""
    target: str = ""
    met: bool | None = None
    """None where there is no target."""


@dataclass(frozen=True)
class Table:
    """The rows of one benchmark."""

    title: str
    note: str
    rows: Sequence[Row]

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.note, ""]
        lines += ["| | ours | compared with | ratio | target | |", "|---|---|---|---|---|---|"]
        for row in self.rows:
            verdict = {None: "", True: "met", False: "**missed**"}[row.met]
            cells = (row.work, row.ours, row.compared_with, row.ratio, row.target, verdict)
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def page(tables: Sequence[Table], *, quick: bool) -> str:
    """Return all tables, under a heading with the machine and the date."""
    size = "a quick run: small sizes, few repetitions" if quick else "a full run"
    head = [
        "# Results",
        "",
        f"Written by `python -m benchmarks` ({size}) on {datetime.date.today().isoformat()}. Ratios within one run are",
        "what counts; absolute times are this machine's.",
        "",
        f"- machine: {machine()}, Linux {platform.release()}",
        f"- Python {platform.python_version()}; google-cloud-logging {version('google-cloud-logging')},"
        f" msgspec {version('msgspec')}",
        f"- ours: {', '.join(f'{name} {version(name)}' for name in OURS)} from this tree; reference: {REFERENCES} from"
        f" the package index, each in an environment of its own; beside it {BESIDE}",
        "",
    ]
    return "\n".join(head) + "\n" + "\n".join(table.markdown() for table in tables)


def seconds(value: float) -> str:
    """Format a duration with three digits and a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= 0.9995 * scale:  # Three digits of a little less would be those of 1,000 of the smaller unit.
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def machine() -> str:
    """Identify this machine in comparisons: processor, cores and memory."""
    return f"{_cpu()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
