"""Reports in notebooks: a fragment of HTML with the timeline, safe for any name, without scripts or requests."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from ml_diagnostics_common.command.errors import NotFoundError
from ml_goodput_measurement._cli.buckets import COLORS
from ml_goodput_measurement.goodput import Recorder
from ml_goodput_measurement.partition import Bucket
from ml_goodput_measurement.report import Report, report

from .histories import History
from .sample_reports import killed_and_resumed, report_of, without_time

SVG = "{http://www.w3.org/2000/svg}"


def parsed(shown: Report) -> ElementTree.Element:
    return ElementTree.fromstring(shown._repr_html_().replace("<br>", "<br/>"))


def test_each_color_of_the_timeline_has_the_area_of_its_bucket() -> None:
    shown = Report(report_of(killed_and_resumed()))
    (svg,) = parsed(shown).iter(f"{SVG}svg")
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    areas = dict.fromkeys(Bucket, 0.0)
    colors = {color: bucket for bucket, color in COLORS.items()}
    for cell in svg.iter(f"{SVG}rect"):
        areas[colors[cell.attrib["fill"]]] += float(cell.attrib["width"]) * float(cell.attrib["height"])
    whole = width * height
    assert sum(areas.values()) == pytest.approx(whole, rel=0.001)
    for bucket, area in areas.items():
        expected = shown.data.buckets[bucket] / shown.data.wall_ns
        assert area / whole == pytest.approx(expected, abs=0.005), bucket


def test_the_table_has_the_rows_of_the_text() -> None:
    shown = Report(report_of(killed_and_resumed()))
    rows = ["".join(row.itertext()) for row in parsed(shown).iter("tr")]
    assert rows[0] == "buckettimepercent"
    assert any(row.startswith("custom: evaluation") for row in rows)
    spent = [name for name, share in shown.as_dict()["buckets"].items() if share["seconds"]]
    assert len(rows) - 1 == len(spent)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a&b", '"><img src=x onerror=y>'])
def test_a_name_with_markup_is_shown_as_text(name: str) -> None:
    history = History(name).start(0).steps(range(3), at=1).custom(6, 7, "<b>eval</b>").end(8)
    page = parsed(Report(report_of(history)))
    assert {element.tag.removeprefix(SVG) for element in page.iter()} <= {
        *("div", "p", "b", "br", "svg", "rect", "table", "thead", "tbody", "tr", "th", "td", "span")
    }
    assert any(name in text for text in page.itertext())


def test_a_job_without_time_has_an_empty_timeline() -> None:
    assert list(parsed(Report(without_time())).iter(f"{SVG}rect")) == []


def test_a_timeline_of_a_long_job_stays_small() -> None:
    history = History().start(0).steps(range(20_000), at=1).end(20_002)
    assert len(Report(report_of(history))._repr_html_()) < 300_000


def test_a_report_is_found_by_the_job_or_as_the_last_and_reads_as_the_command_prints_it(tmp_path: Path) -> None:
    with Recorder("digits") as recorder, recorder.step(1):
        pass
    for name in ("digits", "last"):
        found = report(name)
        assert str(found).startswith("digits: ")
        assert repr(found).startswith("<Report of 'digits': ")
    found.plot(tmp_path / "timeline.svg")
    assert (tmp_path / "timeline.svg").read_text().startswith("<?xml")
    with pytest.raises(NotFoundError, match="digits"):
        report("digit")
