"""The pure parts of the drawings: axes, pieces on pixels, ranges, smoothing, rows of hosts, trees, zoom; in Node.js."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from .node import STATIC, needs_node, run_script

pytestmark = needs_node

DAY = 86_400
START = 1_795_000_000.0
MODULES = sorted(path.relative_to(STATIC / "js").as_posix() for path in (STATIC / "js" / "draw").glob("*.js"))


def test_each_module_loads_without_a_document() -> None:
    script = "answer(await Promise.all(given.map(async (name) => Object.keys(await load(name)).length)));"
    assert min(run_script(script, MODULES)) > 0


# --- Axes ------------------------------------------------------------------------------------------------


def ticks(*spans: list[Any], kind: str = "clockTicks") -> Any:
    return run_script(
        f"const {{ {kind} }} = await load('draw/time_axis.js'); answer(given.map((span) => {kind}(...span)));", spans
    )


def test_ticks_of_a_clock_are_few_in_order_and_inside_for_any_span() -> None:
    random.seed(1)
    spans = [[START + random.random() * 1e8, 0.0, random.randint(2, 14)] for _ in range(300)]
    for span in spans:
        span[1] = span[0] + 10 ** random.uniform(-2, 8.3)
    for (start, end, most), found in zip(spans, ticks(*spans), strict=True):
        places = [tick["at"] for tick in found]
        assert places == sorted(set(places))
        assert all(start <= place <= end for place in places)
        # Days of a month or of a change of the clock may add one.
        assert len(places) <= most + 2


@pytest.mark.parametrize(
    ("seconds", "step"),
    [(5.88 * DAY, DAY), (28 * 3600, 6 * 3600), (3600, 600), (55, 10), (1.0, 0.2), (700 * DAY, 90 * DAY)],
)
def test_steps_of_a_clock_are_those_of_people(seconds: float, step: float) -> None:
    (found,) = ticks([START, START + seconds, 8])
    gaps = {round(later["at"] - tick["at"], 6) for tick, later in pairwise(found)}
    assert gaps == {step}


def test_a_clock_within_a_day_names_the_day_once() -> None:
    (found,) = ticks([START, START + 600, 6])
    assert sum(" " in tick["label"] for tick in found) == 1
    assert found[0]["label"].split()[1] in {"Nov", "Dec", "Oct"}


def test_no_ticks_for_no_span() -> None:
    assert ticks([START, START, 5], [START, START - 1, 5], [START, None, 5]) == [[], [], []]


def test_elapsed_time_reads_as_durations() -> None:
    (days, seconds) = ticks([0, 3 * DAY, 7], [0, 50, 6], kind="elapsedTicks")
    assert [tick["label"] for tick in days] == ["0", "12 h", "1 d", "1 d 12 h", "2 d", "2 d 12 h", "3 d"]
    assert [tick["label"] for tick in seconds] == ["0", "10 s", "20 s", "30 s", "40 s", "50 s"]


@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [
        (0.9, 120, [1, 10, 100]),
        (0.002, 0.3, [0.01, 0.1]),
        (1.7, 11, [2, 4, 6, 8, 10]),
        (1e-9, 1e9, [1e-9, 1e-5, 0.1, 1000, 1e7]),
        (0, 1, []),
    ],
)
def test_a_logarithmic_axis_has_round_numbers(start: float, end: float, numbers: list[float]) -> None:
    script = "const { logNumbers } = await load('draw/time_axis.js'); answer(logNumbers(...given));"
    assert run_script(script, [start, end, 5]) == pytest.approx(numbers)


# --- The ledger on pixels --------------------------------------------------------------------------------


def laid_out(pieces: Sequence[tuple[float, float, int]], view: Mapping[str, float]) -> Any:
    script = """
const { layOutPieces, stackColumn } = await load("draw/ledger_band.js");
const column = (at) => given.pieces.map((piece) => piece[at]);
const found = layOutPieces(column(0), column(1), column(2), given.view);
answer({
  rectangles: found.rectangles,
  columns: [...found.columns].map(([at, shares]) => [at, Array.from(shares), stackColumn(shares, 44, 0)]),
});
"""
    return run_script(script, {"pieces": pieces, "view": view})


def test_every_short_piece_is_kept_on_any_zoom() -> None:
    random.seed(2)
    pieces: list[tuple[float, float, int]] = []
    time = 0.0
    for _ in range(4000):
        length = 10 ** random.uniform(-4, 2.5)
        pieces.append((time, time + length, random.choice([0, 0, 0, 1, 2, 3, 4])))
        time += length
    for start, end in ((0.0, time), (time * 0.3, time * 0.4), (time * 0.5, time * 0.5 + 3)):
        view = {"from": start, "to": end, "width": 1000, "count": 5}
        found = laid_out(pieces, view)
        stacks = {
            at: {part["bucket"]: part["bottom"] - part["top"] for part in stack} for at, _, stack in found["columns"]
        }
        scale = 1000 / (end - start)
        for left, right, bucket in pieces:
            if right <= start or left >= end or bucket == 0:
                continue  # productive time is what remains
            low, high = max(left - start, 0) * scale, min((right - start) * scale, 1000)
            if high - low >= 1.5:
                assert any(
                    part["bucket"] == bucket and part["left"] == math.floor(low + 0.5) for part in found["rectangles"]
                )
                continue
            heights = [
                stacks[column].get(bucket, 0.0)
                for column in range(math.floor(low), math.floor(low) + 2)
                if column in stacks
            ]
            assert max(heights) >= 3.99, (low, high, bucket)


def test_red_of_a_wide_piece_is_not_hidden_by_a_thin_neighbour() -> None:
    view = {"from": 0, "to": 100, "width": 100, "count": 3}
    found = laid_out([(0, 50, 0), (50, 52, 2), (52, 52.1, 1), (52.1, 100, 0)], view)
    ((at, _, stack),) = found["columns"]
    assert at == 52
    assert {part["bucket"] for part in stack} == {0, 1}
    assert {"left": 50, "right": 52, "bucket": 2} in found["rectangles"]


def stacked(*cases: list[Any]) -> Any:
    return run_script(
        "const { stackColumn } = await load('draw/ledger_band.js'); answer(given.map((each) => stackColumn(...each)));",
        cases,
    )


def test_a_shared_column_is_full_and_each_loss_has_four_pixels() -> None:
    random.seed(3)
    cases: list[Any] = [[[random.choice([0, random.random() ** 6]) for _ in range(16)], 44, 0] for _ in range(300)]
    for (shares, height, _), stack in zip(cases, stacked(*cases), strict=True):
        present = {index for index, share in enumerate(shares) if share > 0}
        assert {part["bucket"] for part in stack} == present
        if not present:
            continue
        assert sum(part["bottom"] - part["top"] for part in stack) == pytest.approx(height, abs=0.01)
        least = min(4.0, height / len(present))
        assert all(part["bottom"] - part["top"] >= least - 0.01 for part in stack if part["bucket"] != 0)


# --- Ranges and smoothing --------------------------------------------------------------------------------


def ranges(function: str, *calls: list[Any]) -> Any:
    return run_script(
        f"const {{ {function} }} = await load('draw/ranges.js'); answer(given.map((each) => {function}(...each)));",
        calls,
    )


def test_what_lies_outside_is_named_never_cut_silently() -> None:
    header = {"lo": 0.43, "hi": 0.5, "least": 0.42, "greatest": 1.54, "unit": "s"}
    found = run_script(
        "const { shownRange } = await load('draw/curve.js'); answer([shownRange(given), shownRange(given, true)]);",
        header,
    )
    assert found[0]["above"] == 1.54
    assert found[0]["low"] < 0.43 < 0.5 < found[0]["high"] < 0.52
    assert found[1]["above"] is None
    assert found[1]["below"] is None
    assert found[1]["high"] > 1.54


def test_a_run_of_nothing_but_nan_does_not_stretch_the_axis_of_others() -> None:
    small = {"lo": 1e-4, "hi": 2e-4, "least": 1e-4, "greatest": 2e-4, "unit": "1"}
    nothing = {"lo": None, "hi": None, "least": None, "greatest": None, "unit": "1"}
    replaced = {"least": 0.0, "greatest": 5e-4}
    script = """
        const { commonRange } = await load('draw/chart.js');
        const run = ([header, replaced]) => ({ points: { header }, replaced: replaced && { header: replaced } });
        answer(given.map(([runs, isFull, isLog]) => commonRange(runs.map(run), { isFull, isLog })));
    """
    both = [[small, None], [nothing, None]]
    cases = [[both, False, False], [both, True, True], [[[nothing, None]], False, False]]
    alone, log, none, robust, full = run_script(
        script, [*cases, [[[small, replaced]], False, False], [[[small, replaced]], True, False]]
    )
    assert 0 < alone["low"] < 1e-4 < 2e-4 < alone["high"] < 3e-4
    assert 0 < log["low"] < log["high"] < 3e-4
    assert (none["low"], none["high"]) == (0, 1)
    assert robust == alone
    assert full["low"] <= 0 < 5e-4 < full["high"] < 1e-3


def test_an_axis_that_there_is_not_is_said_once() -> None:
    script = """
        const { askedAxis } = await load('pages/metric_controls.js');
        answer(given.map((x) => askedAxis({ get: () => x }, 'step')));
    """
    found = run_script(script, ["", "elapsed", "bad", "x" * 1000])
    assert [each["axis"] for each in found] == ["step", "elapsed", "step", "step"]
    assert [bool(each["problem"]) for each in found] == [False, False, True, True]
    assert "bad" in found[2]["problem"]
    assert len(found[3]["problem"]) < 100


def test_noise_does_not_fill_a_chart() -> None:
    (percent, value, nothing) = ranges("paddedRange", [91.9, 92.1, "%"], [100, 100.001, ""], [0, 0, ""])
    assert percent[1] - percent[0] >= 5
    assert value[1] - value[0] >= 1
    assert nothing[0] < 0 < nothing[1]


def test_smoothing_does_not_lag() -> None:
    slope = [0.5 * index for index in range(101)]
    peak = [math.exp(-(((index - 40) / 6) ** 2)) for index in range(101)]
    (smooth_slope, smooth_peak) = ranges("centredMean", [slope, 12], [peak, 8])
    assert smooth_slope == pytest.approx(slope)
    assert smooth_peak.index(max(smooth_peak)) == 40
    assert smooth_peak[20:61] == pytest.approx(smooth_peak[60:19:-1])


def test_smoothing_keeps_gaps_and_is_none_at_zero() -> None:
    values = [1, 2, None, 4, 5]
    assert ranges("centredMean", [values, 1], [values, 0]) == [[1, 1.5, None, 4.5, 5], values]
    assert ranges("smoothingWindow", [0, 300], [1, 300], [0.2, 300]) == [0, 30, 1]


def test_a_flat_fleet_is_calm_and_one_far_value_is_not() -> None:
    script = """
const { levelsOf, ramp } = await load("draw/heat.js");
const colours = { heatBelow: "#e0a443", heatMiddle: "#8cc6b5", heatAbove: "#7757b5" };
const levels = levelsOf(Uint8Array.from(given));
answer([levels, Array.from(ramp(levels, colours))]);
"""
    random.seed(4)
    cells = [min(254, max(0, round(random.gauss(180, 5)))) for _ in range(5000)] + [120] * 40 + [255] * 300
    levels, colours = run_script(script, cells)
    assert abs(levels["median"] - 180) <= 1

    def distance(level: int) -> float:
        return math.dist(colours[3 * level : 3 * level + 3], (0x8C, 0xC6, 0xB5))

    assert max(distance(level) for level in range(170, 191)) < 25
    assert distance(120) > 2 * distance(170)
    assert distance(0) > 100


# --- Curves ----------------------------------------------------------------------------------------------


def test_lines_break_where_nothing_was_recorded() -> None:
    script = """
const { stretches } = await load("draw/curve.js");
const { gapWidth } = await load("draw/ranges.js");
const y = given.map((at) => (at === 5 ? NaN : at));
answer(stretches(given, y, gapWidth(given, 1)));
"""
    x = [*range(10), *range(60, 70)]
    assert run_script(script, x) == [[0, 5], [6, 10], [10, 20]]


def test_extremes_are_what_lies_far_beyond_the_band() -> None:
    script = """
const { extremes } = await load("draw/curve.js");
answer(extremes(given.x, given.y, given.band));
"""
    band = {"x": [5, 15], "low": [0.9, 0.9], "high": [1.1, 1.1]}
    given = {"x": [1, 4, 8, 12, 16], "y": [1.0, 1.3, 2.0, 0.2, 1.05], "band": band}
    assert run_script(script, given) == [2, 3]


def test_appended_points_are_joined_and_the_last_bucket_is_made_again() -> None:
    script = """
const { appendPoints } = await load("draw/live_points.js");
const column = (...values) => Float64Array.from(values);
const none = column();
let points = { header: { total: 3, lo: 1, hi: 3, least: 1, greatest: 3 },
  columns: { x: column(0, 1, 2), y: column(1, 2, 3), mean_x: column(1), mean_y: column(2),
    p5: column(1), p95: column(3) } };
const answerOf = (x, y, total) => ({ header: { total }, columns: { x: column(...x), y: column(...y) } });
points = appendPoints(points, answerOf([3, 4], [9, 5], 5), 1);
points = appendPoints(points, answerOf([5, 7], [4, 8], 7), 1);
answer({ total: points.header.total, greatest: points.header.greatest, x: Array.from(points.columns.x),
  mean_x: Array.from(points.columns.mean_x), mean_y: Array.from(points.columns.mean_y) });
"""
    found = run_script(script)
    assert found == {
        "total": 7,
        "greatest": 9,
        "x": [0, 1, 2, 3, 4, 5, 7],
        "mean_x": [1, 4, 7],
        "mean_y": [2, 6, 8],
    }


def test_few_points_stay_without_a_band() -> None:
    script = """
const { appendPoints } = await load("draw/live_points.js");
const none = new Float64Array(0);
const before = { header: { total: 1, points: 1 },
  columns: { x: Float64Array.of(0), y: Float64Array.of(1), mean_x: none, mean_y: none, p5: none, p95: none } };
const added = { header: { total: 2 }, columns: { x: Float64Array.of(5), y: Float64Array.of(2) } };
const { header, columns } = appendPoints(before, added, 1);
answer([header.points, Array.from(columns.x), columns.mean_x.length]);
"""
    assert run_script(script) == [2, [0, 5], 0]


def test_a_live_run_is_not_asked_more_often_than_its_pixels_change() -> None:
    script = (
        "const { appendDelay } = await load('draw/live_points.js'); answer(given.map((each) => appendDelay(each)));"
    )
    assert run_script(script, [0.01, 4, 400, None]) == [4000, 8000, 30_000, 4000]


def test_points_are_read_again_after_many_were_appended() -> None:
    script = """
const { appendPoints } = await load("draw/live_points.js");
const many = Float64Array.from({ length: 5000 }, (_, index) => index);
const columns = { x: new Float64Array(0), y: new Float64Array(0) };
answer(appendPoints({ header: { total: 0 }, columns }, { header: { total: 5000 }, columns: { x: many, y: many } }, 1));
"""
    assert run_script(script) is None


# --- Hosts -----------------------------------------------------------------------------------------------


def icicle(frames: list[tuple[int, int]], space: float) -> tuple[list[float], float]:
    script = """
const { layOutIcicle } = await load("draw/icicle.js");
const frames = given.frames.map(([start, width]) => ({ start, width }));
const { left, total } = layOutIcicle(frames, given.space);
answer([frames.map(({ start, width }) => left(start + width) - left(start)), total]);
"""
    widths, total = run_script(script, {"frames": frames, "space": space})
    return widths, total


def test_the_branch_of_one_host_in_64_is_wide_enough_to_read() -> None:
    widths, total = icicle([(0, 64), (0, 61), (61, 2), (63, 1)], 1400)
    assert total == 1400
    assert widths == pytest.approx([1400, 1040, 180, 180])


def test_widths_are_in_proportion_where_all_are_wide_enough() -> None:
    assert icicle([(0, 8), (0, 5), (5, 3)], 800)[0] == pytest.approx([800, 500, 300])
    assert icicle([(0, 8), (0, 5), (5, 3)], 300)[0] == pytest.approx([300, 150, 150])


def test_many_branches_scroll_instead_of_vanishing() -> None:
    widths, total = icicle([(index, 1) for index in range(40)], 400)
    assert min(widths) == pytest.approx(64)
    assert total == pytest.approx(40 * 64)


@pytest.mark.parametrize(("hosts", "width"), [(1, 1000), (64, 640), (64, 300), (4096, 340), (10_000, 1000)])
def test_a_map_of_hosts_fits_its_space(hosts: int, width: int) -> None:
    found = run_script(
        "const { layOutMap } = await load('draw/host_map.js'); answer(layOutMap(...given));", [hosts, width]
    )
    assert found["columns"] <= 32
    assert found["columns"] * found["rows"] >= hosts
    assert found["width"] <= width + 0.01
    assert found["square"] >= 2


def test_a_small_curve_has_gaps() -> None:
    script = "const { decodeSpark } = await load('draw/spark.js'); answer(decodeSpark(given));"
    assert run_script(script, "A/ f") == [0, 1, None, pytest.approx(31 / 63)]


def test_shares_of_the_whole_bar_add_up_and_none_vanishes() -> None:
    script = "const { barShares } = await load('draw/bars.js'); answer(barShares(given));"
    shares = run_script(script, [{"seconds": seconds} for seconds in (500_000, 1, 0, 3000)])
    assert sum(shares) == pytest.approx(100)
    assert shares[2] == 0
    assert min(share for share in shares if share) > 0.5


# --- Zoom ------------------------------------------------------------------------------------------------


def test_zoom_keeps_the_time_under_the_pointer_and_stays_inside() -> None:
    script = """
const { zoomed, panned, clamped, attemptSpan } = await load("draw/span.js");
const whole = [0, 1000];
const attempts = [{ started: 0, ended: 300 }, { started: 320, ended: 600 }, { started: 650, ended: null }];
const second = attemptSpan(attempts, whole, whole, 1);
const next = attemptSpan(attempts, second, whole, 1);
answer({
  near: zoomed([0, 1000], 250, 0.5, whole), edge: zoomed([900, 1000], 1000, 2, whole),
  out: zoomed([0, 1000], 10, 4, whole),
  pan: panned([800, 900], 5, whole), small: clamped([5, 5], whole), first: second, next,
  last: attemptSpan(attempts, whole, whole, -1), none: attemptSpan(attempts, second, whole, -1),
  before: attemptSpan(attempts, [400, 500], whole, -1), no: attemptSpan([], whole, whole, 1),
});
"""
    found = run_script(script)
    assert found["near"] == [125, 625]
    assert found["edge"] == [800, 1000]
    assert found["out"] == [0, 1000]
    assert found["pan"] == [900, 1000]
    assert found["small"][1] > found["small"][0]
    assert found["first"] == [0, 309]
    assert found["next"] == pytest.approx([311.6, 608.4])
    assert found["last"] == pytest.approx([639.5, 1000])
    assert found["none"] is None
    assert found["before"] == pytest.approx([311.6, 608.4])
    assert found["no"] is None


def test_tracks_that_a_run_shows() -> None:
    script = """
const { chooseTracks, sortedMetrics } = await load("pages/track_choice.js");
const names = (rows) => rows.map(({ name }) => name);
answer(given.map((metrics) => {
  const { curves, rows } = chooseTracks(metrics);
  return [names(curves), names(rows), names(sortedMetrics(metrics))];
}));
"""

    def metric(name: str, hosts: int = 1, unit: str = "") -> dict[str, Any]:
        return {"name": name, "hosts": hosts, "unit": unit, "has_steps": hosts == 1}

    many = [
        metric("tpu_duty_cycle", 64, "%"),
        metric("host_step_time", 64, "s"),
        metric("learning_rate"),
        metric("step_time", unit="s"),
        metric("loss"),
    ]
    one = [metric("eval/loss"), metric("process_memory"), metric("host_cpu_utilization", unit="%")]
    found_many, found_one, found_none = run_script(script, [many, one, []])
    assert found_many[0] == ["loss", "step_time", "host_step_time"]
    assert found_many[1] == ["tpu_duty_cycle", "host_step_time"]
    assert found_many[2][:3] == ["loss", "step_time", "learning_rate"]
    assert found_one[0] == ["eval/loss", "host_cpu_utilization", "process_memory"]
    assert found_none == [[], [], []]


def test_a_run_that_ended_shows_no_track_of_one_value_a_host() -> None:
    script = """
const { chooseTracks } = await load("pages/track_choice.js");
answer(given.map(([metrics, isLive]) => {
  const { curves, rows } = chooseTracks(metrics, { isLive });
  return [curves, rows].map((part) => part.map(({ name }) => name));
}));
"""
    loss = {"name": "loss", "unit": "", "hosts": 1, "points": 90, "has_steps": True}
    once = {"name": "host_cpu_utilization", "unit": "%", "hosts": 3, "points": 3, "has_steps": False}
    often = {"name": "host_memory_utilization", "unit": "%", "hosts": 3, "points": 6, "has_steps": False}
    given = [[[loss, once, often], False], [[loss, once, often], True], [[once], False]]
    ended, live, only = run_script(script, given)
    assert ended == [["loss"], ["host_memory_utilization"]]
    assert live == [["loss"], ["host_cpu_utilization", "host_memory_utilization"]]
    assert only == [[], ["host_cpu_utilization"]]


def test_stacks_of_a_run_that_ended_are_the_last_that_show_where_it_was() -> None:
    script = """
const { endedGroups, newestStacks } = await load("pages/groups.js");
const asked = [];
const api = { json: async (path) => {
  asked.push(path);
  const at = Number(path.split("at=")[1] ?? 3);
  return { at, moments: [1, 2, 3], groups: at < 3 ? [{}] : [], ended: [{ name: "w0" }] };
} };
const found = await newestStacks(api, "/api/runs/r");
const ended = endedGroups([{ name: "w0", text: "killed", step: 4 }, { name: "w1", text: "killed", step: 5 }]);
answer([found.at, asked, ended]);
"""
    at, asked, ended = run_script(script, None)
    assert (at, asked) == (2, ["/api/runs/r/stacks", "/api/runs/r/stacks?at=2"])
    assert ended == [{"kind": "ended", "sentence": "killed", "hosts": ["w0", "w1"], "step": None}]
