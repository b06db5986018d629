"""A run as HTML for notebooks: pure functions of a `RunView`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from google_cloud_mldiagnostics._cli.metric_output import summary_table
from google_cloud_mldiagnostics._cli.run_output import attempt_table, headline, shown_configs
from google_cloud_mldiagnostics._reading.metric_series import Series
from google_cloud_mldiagnostics._reading.run_view import RunView

__all__ = ["format_html"]

_SECTIONS = ("user", "software", "hardware")


def format_html(
    view: RunView, by_metric: Mapping[str, list[Series]], where: Sequence[tuple[str, str]], now_ns: int
) -> str:
    """Format a run as an HTML fragment without scripts, in the colors of the page around it.

    Args:
        view: The run.
        by_metric: Its metrics.
        where: The run's paths by name: its folder, its link.
        now_ns: The time, in ns since 1970.
    """
    title, *facts = (line.strip() for line in headline(view, where, now_ns) if line)
    parts = [f"<p><b>{escape(title)}</b><br>{'<br>'.join(map(escape, facts))}</p>"]
    if len(view.attempts) > 1:
        parts.append(_table(*attempt_table(view)))
    if by_metric:
        parts.append(_table(*summary_table(dict(by_metric))))
    for section in _SECTIONS:
        if configs := shown_configs(view, section):
            table = _table((), configs.items(), "<<")
            parts.append(f"<details><summary>{section} configs</summary>{table}</details>")
    parts += [f"<p>Note: {escape(text)}</p>" for text in view.notes]
    return f"<div>{''.join(parts)}</div>"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """Format a table, which scrolls by itself where the page is narrow.

    Args:
        headers: The names of the columns; empty for a table without a head, whose cells may be long.
        rows: The cells.
        align: `<` or `>` for each column; notebooks align all cells right.
    """
    wrap = ";white-space:nowrap" if headers else ""
    styles = [f"text-align:{'left' if side == '<' else 'right'}{wrap}" for side in align]

    def line(kind: str, cells: Sequence[str]) -> str:
        styled = zip(styles, map(escape, cells), strict=True)
        return "<tr>" + "".join(f'<{kind} style="{style}">{cell}</{kind}>' for style, cell in styled) + "</tr>"

    thead = f"<thead>{line('th', headers)}</thead>" if headers else ""
    body = "".join(line("td", row) for row in rows)
    return f'<div style="overflow-x:auto"><table>{thead}<tbody>{body}</tbody></table></div>'
