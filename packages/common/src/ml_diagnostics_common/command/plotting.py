"""The style of all pictures, drawn by matplotlib."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.exceptions import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ALARM",
    "FAINT",
    "GRID",
    "INK",
    "PALE",
    "PAPER",
    "new_figure",
    "require_matplotlib",
    "save_figure",
    "style_axes",
]

INK: Final = "#222222"
FAINT: Final = "#777777"
PALE: Final = "#c4c4c4"
GRID: Final = "#e6e6e6"
ALARM: Final = "#b3001b"
PAPER: Final = "#ffffff"

_IN_DARK: Final = {
    INK: "#e6edf3",
    FAINT: "#9198a1",
    PALE: "#5a626d",
    GRID: "#262c36",
    ALARM: "#ff7b72",
    PAPER: "#0d1117",
}
_COLORS: Final = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")

_DOTS_PER_INCH: Final = 150


def require_matplotlib(distribution: str) -> None:
    """Check that pictures can be drawn, before any work.

    Args:
        distribution: The distribution that has the extra `plot`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError("--plot", distribution, "plot") from None


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure of a size in inches; `options` are those of matplotlib's Figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor=PAPER, **options)
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, title: str) -> None:
    """Write a title on the left, and draw pale axes below and on the left only."""
    axes.set_title(title, loc="left", fontsize=10, color=INK, parse_math=False)
    axes.tick_params(labelsize=8, colors=FAINT, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALE)


def save_figure(figure: Figure, path: str | Path, *, dark: bool = False) -> None:
    """Write a picture in the format of the path's suffix.

    Args:
        figure: The figure, drawn in the colors of this module.
        path: The file to write.
        dark: True for light text on a dark background; colors that are not of this module remain.

    Raises:
        OSError: The file cannot be written.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # A name in a script that the font lacks.
        if dark:
            _darken(figure)
        figure.savefig(path)


def _darken(figure: Figure) -> None:
    """Replace the colors of this module in a figure that is complete: its parts need not know of two styles."""
    from matplotlib.colors import is_color_like, to_hex

    figure.draw_without_rendering()  # Axes make their ticks and labels as they are drawn.
    for artist in figure.findobj():
        for name in _COLORS:
            color: Any = getattr(artist, f"get_{name}", lambda: None)()
            if is_color_like(color) and to_hex(color) in _IN_DARK:
                getattr(artist, f"set_{name}")(_IN_DARK[to_hex(color)])
