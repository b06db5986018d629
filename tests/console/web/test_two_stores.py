"""Two stores in one process, as of two diagnostics folders, have nothing in common."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_cloud_mldiagnostics.reading import LocalSource
from ml_diagnostics_console._web.run_companions import companions_of
from ml_diagnostics_console._web.run_goodput import goodput_of
from ml_diagnostics_console._web.store import Store

from .made_runs import MadeAttempt, MadeRun
from .recorded import DOCTOR_SECONDS, Page, page_of

_START_NS = 1_760_000_000 * 10**9


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """Two pages with a run of the same id, of 10 and of 20 steps; the environment names the second folder."""
    pages = []
    for name, last in (("first", 9), ("second", 19)):
        folder = tmp_path / name
        MadeRun("same", _START_NS, [MadeAttempt(0, last, "COMPLETED")], configs={"folder": name}).write(folder)
        pages.append(page_of(folder, monkeypatch))
    return pages


def test_each_page_has_the_records_of_its_own_folder(pages: list[Page]) -> None:
    assert [page.json()["step"] for page in pages] == [9, 19]
    assert [page.json()["config"]["folder"] for page in pages] == ["first", "second"]
    assert [len(page.json("/explain", of="metric:loss@15")["entries"]) for page in pages] == [0, 1]
    reports = [goodput_of(page.run).report(page.run) for page in pages if page.run is not None]
    assert [report.steps_kept for report in reports if report is not None] == [10, 20]


def test_each_page_is_judged_by_a_doctor_of_its_own(pages: list[Page]) -> None:
    first, second = pages
    assert first.run is not None
    assert second.run is not None
    first.store.doctor.wait(first.run, DOCTOR_SECONDS)
    assert second.store.doctor.known(second.run) is None
    second.store.doctor.wait(second.run, DOCTOR_SECONDS)
    known = [page.store.doctor.known(page.run) for page in pages if page.run is not None]
    judged = [each.judged.evidence for each in known if each is not None]
    assert len(judged) == 2
    assert first.store.doctor._judging.pid != second.store.doctor._judging.pid  # type: ignore[attr-defined]


def test_stores_of_one_folder_share_nothing_that_is_read_on(pages: list[Page]) -> None:
    first = pages[1].store
    other = Store(LocalSource(lambda note: None))
    other.refresh()
    runs = first.run("same"), other.run("same")
    assert goodput_of(runs[0]) is goodput_of(runs[0]) is not goodput_of(runs[1])
    assert companions_of(runs[0]) is companions_of(runs[0]) is not companions_of(runs[1])
    assert runs[0].journal is not runs[1].journal
    for name in ("doctor", "summaries", "viewers"):
        assert getattr(first, name) is not getattr(other, name)
