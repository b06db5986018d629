"""The picture of a job's life is correct, legible with any color vision, and works for jobs of any length."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_goodput_measurement._cli.buckets import COLORS, column_shares
from ml_goodput_measurement._cli.plot import plot_timeline, ticks
from ml_goodput_measurement.partition import Bucket, JobReport, Piece

from ..pictures import texts_by_color
from .histories import History
from .sample_reports import killed_and_resumed, report_of, without_time

pytest.importorskip("matplotlib")

# How people without one kind of cone see linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
COLOR_VISION = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TELLS_APART = 10.0  # CIE76 distance; 2.3 is the least that an attentive eye sees side by side


def picture(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return (imread(path)[..., :3] * 255).round().astype(int)


def share_of_color(image: np.ndarray, bucket: Bucket) -> float:
    """The share of the timeline (a row through its middle) that has a bucket's colour."""
    wanted = np.array([int(COLORS[bucket][at : at + 2], 16) for at in (1, 3, 5)])
    same = (image == wanted).all(axis=2)
    left, right = round(0.035 * image.shape[1]), round(0.965 * image.shape[1])
    return float(same[:, left:right].mean(axis=1).max())


def test_the_coloured_areas_are_the_shares_of_the_buckets(tmp_path: Path) -> None:
    report = report_of(killed_and_resumed())
    plot_timeline(report, tmp_path / "job.png")
    image = picture(tmp_path / "job.png")
    for bucket, ns in report.buckets.items():
        assert share_of_color(image, bucket) == pytest.approx(ns / report.wall_ns, abs=0.012) or (
            bucket is Bucket.EXCLUDED  # as white as the page, and not there
        )


def test_excluded_time_is_hatched_and_none_else_is(tmp_path: Path) -> None:
    report = report_of(killed_and_resumed(), excluded=[(20, 60)])  # in the steps of the first attempt
    plot_timeline(report, tmp_path / "job.png")
    image = picture(tmp_path / "job.png")
    top_row = next(row for row in range(len(image)) if share_of_color(image[row : row + 1], Bucket.PRODUCTIVE) > 0.2)
    timeline = image[top_row + 5 : top_row + 115]
    left, width = round(0.035 * image.shape[1]), 0.93 * image.shape[1] / 200
    inside = timeline[:, left + round(21 * width) : left + round(59 * width)]
    grey = abs(inside - 0x77).max(axis=2) < 0x40
    white = (inside == 255).all(axis=2)
    assert 0.1 < grey.mean() < 0.5
    assert white.mean() > 0.15
    beside = timeline[:, left + round(61 * width) : left + round(70 * width)]
    assert (beside == beside[0, 0]).all()


def test_the_border_between_two_long_pieces_is_straight(tmp_path: Path) -> None:
    plot_timeline(report_of(killed_and_resumed()), tmp_path / "job.png")
    image = picture(tmp_path / "job.png")
    top_row = next(row for row in range(len(image)) if share_of_color(image[row : row + 1], Bucket.PRODUCTIVE) > 0.4)
    top, bottom = image[top_row + 2], image[top_row + 115]  # of the timeline, 120 dots high
    assert (top == bottom).all()


def months(days: int = 90) -> JobReport:
    """A job of months with a save every half an hour, killed every three days."""
    history = History("a job with a name that is much too long to be written out above the timeline" * 3).start(0)
    for day in range(days):
        day_start = day * 86_400
        if day % 3 == 0 and day:
            history.start(day_start)
        history.step(day * 24, day_start + 60)
        for hour in range(1, 24):
            history.step(day * 24 + hour, day_start + hour * 3600)
            history.save(day * 24 + hour, day_start + hour * 3600, day_start + hour * 3600 + 30)
    return report_of(history.end(days * 86_400))


REPORTS = {
    "resumed": lambda: report_of(killed_and_resumed()),
    "milliseconds": lambda: report_of(History().start(0).steps(range(3), at=0, each=0.005).end(0.02)),
    "nothing yet": without_time,
    "no step": lambda: report_of(History().start(0), now=100),
    "running": lambda: report_of(History().start(0).steps(range(4), at=0), now=37),
    "$formula_$ name": lambda: report_of(killed_and_resumed("$x^2$ _{\n \x1b[31m \N{CJK UNIFIED IDEOGRAPH-4E2D}")),
    "months": months,
}


@pytest.mark.parametrize("kind", REPORTS)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_job_of_any_length_has_a_picture(tmp_path: Path, kind: str, suffix: str) -> None:
    plot_timeline(REPORTS[kind](), tmp_path / f"job{suffix}")  # type: ignore[no-untyped-call]
    assert (tmp_path / f"job{suffix}").stat().st_size > 5_000


@pytest.mark.timing
def test_a_job_of_months_is_drawn_in_seconds(tmp_path: Path) -> None:
    report = months()
    assert len(report.timeline) > 4_000
    started = time.process_time()
    plot_timeline(report, tmp_path / "job.png")
    assert time.process_time() - started < 5


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    report = report_of(killed_and_resumed())
    with pytest.raises(FileNotFoundError):
        plot_timeline(report, tmp_path / "no folder" / "job.png")
    with pytest.raises(ValueError, match="docx"):
        plot_timeline(report, tmp_path / "job.docx")


@given(
    cuts=st.lists(st.integers(0, 10**12), min_size=2, max_size=30, unique=True).map(sorted),
    buckets=st.lists(st.sampled_from(Bucket), min_size=29, max_size=29),
    columns=st.integers(1, 50),
)
def test_columns_keep_every_buckets_share(cuts: list[int], buckets: list[Bucket], columns: int) -> None:
    pieces = [
        Piece(start, end, bucket, attempt=1)
        for (start, end), bucket in zip(itertools.pairwise(cuts), buckets, strict=False)
    ]
    shares = column_shares(pieces, cuts[0], cuts[-1], columns)
    assert all(sum(column.values()) == pytest.approx(1.0) for column in shares)
    for bucket in {piece.bucket for piece in pieces}:
        drawn = sum(column.get(bucket, 0.0) for column in shares) / columns
        there = sum(piece.end_ns - piece.start_ns for piece in pieces if piece.bucket is bucket)
        assert drawn == pytest.approx(there / (cuts[-1] - cuts[0]), abs=1e-9)


@given(st.floats(1e-9, 1e9))
def test_the_clock_has_a_few_marks_whatever_the_length(wall_seconds: float) -> None:
    marks = list(ticks(wall_seconds))
    assert marks[0][0] == 0.0
    assert marks[-1][0] <= wall_seconds * (1 + 1e-9)
    assert 3 <= len(marks) <= 25
    assert len({label for _, label in marks}) == len(marks)


def test_the_clock_counts_in_units_that_suit_the_length() -> None:
    assert [label for _, label in ticks(41)][:3] == ["0 s", "5 s", "10 s"]
    assert [label for _, label in ticks(3 * 3600)][:3] == ["0 min", "15 min", "30 min"]
    assert [label for _, label in ticks(90 * 86_400)][:3] == ["0 d", "10 d", "20 d"]


@pytest.mark.parametrize("vision", COLOR_VISION)
def test_colors_are_distinguishable_with_any_kind_of_color_vision(vision: str) -> None:
    seen = {bucket: lab(np.array(COLOR_VISION[vision]) @ linear_rgb(color)) for bucket, color in COLORS.items()}
    assert set(seen) == set(Bucket)
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > TELLS_APART, (one, other)


def linear_rgb(color: str) -> np.ndarray:
    encoded = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def lab(linear: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, for the white D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear.clip(0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_in_the_dark_only_text_and_background_change(tmp_path: Path) -> None:
    report = report_of(killed_and_resumed())
    for suffix in (".png", ".svg"):
        plot_timeline(report, tmp_path / f"light{suffix}")
        plot_timeline(report, tmp_path / f"dark{suffix}", dark=True)
    light, dark = picture(tmp_path / "light.png"), picture(tmp_path / "dark.png")
    assert (light[0, 0].tolist(), dark[0, 0].tolist()) == ([255, 255, 255], [13, 17, 23])
    for bucket in Bucket:
        if bucket is not Bucket.EXCLUDED:
            assert share_of_color(dark, bucket) == share_of_color(light, bucket)
    light_texts, dark_texts = texts_by_color(tmp_path / "light.svg"), texts_by_color(tmp_path / "dark.svg")
    assert list(light_texts.values()) == list(dark_texts.values())
    assert "wasted progress" in light_texts["#222222"] & dark_texts["#e6edf3"]
    assert not light_texts.keys() & dark_texts.keys()
