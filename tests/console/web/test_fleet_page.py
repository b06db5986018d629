"""The page of a fleet: the report of `goodput fleet report --html`, by the real command, in the page's frame."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape, unescape
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_console._web import fleet_reports
from ml_diagnostics_console._web.fleet_page import fleet_document
from ml_diagnostics_console._web.fleet_reports import FleetError, FleetReports
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from tests.console.web.browser import Browser, needs_browser, opened_browser
from tests.console.web.fleet_mirror import AS_OF, make_rows, report_file
from tests.console.web.made_runs import MadeAttempt, MadeRun
from tests.console.web.served import COMMAND, Served, served
from tests.waiting import LONG_SECONDS, wait_until

pytestmark = pytest.mark.skipif(find_spec("duckdb") is None, reason="DuckDB 2 needs Python 3.11")

_START_NS = 1_795_000_000_000_000_000
_LATER = "2026-11-23"
_TEMPLATE = re.compile(r'<template id="fleet"([^>]*)>(.*?)</template>', re.DOTALL)
_MAIN = re.compile(r'<main class="fleet-page">\n(.*)\n</main>', re.DOTALL)
_JOBS = re.compile(r'<span class="job">([^<]*)</span>')


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_rows(tmp_path_factory.mktemp("mirror"), jobs=40)


@pytest.fixture(scope="module")
def report(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file that the command writes."""
    return report_file(mirror, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def job(report: str) -> str:
    """A job of the report."""
    return unescape(_JOBS.findall(report)[0])


@pytest.fixture(scope="module")
def root(job: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnostics folder with a run of that job, and one of another."""
    folder = tmp_path_factory.mktemp("runs")
    for name in (job, "digits-1"):
        MadeRun(name, _START_NS, [MadeAttempt(0, 20)]).write(folder)
    return folder


@pytest.fixture(scope="module")
def server(root: Path, mirror: Path) -> Iterator[Served]:
    with served(root, "--mirror", str(mirror)) as running:
        yield running


def problem(server: Served, path: str, status: int) -> str:
    """Return the sentence of a page without a report."""
    reply = server.get(path)
    assert reply.status == status, reply.body[-500:]
    found = _TEMPLATE.search(reply.body.decode())
    assert found is not None
    return unescape(found[1].partition('data-problem="')[2].removesuffix('"'))


@pytest.mark.parametrize("choice", [{}, {"by": "zone,week"}, {"by": "accelerator", "cost": "3.22/chip-hour"}])
def test_the_file_is_that_of_the_command(server: Served, mirror: Path, choice: dict[str, str], tmp_path: Path) -> None:
    query = "&".join(f"{name}={quote(value)}" for name, value in choice.items())
    reply = server.get(f"/api/fleet.html?{query}")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-disposition"] == 'attachment; filename="fleet.html"'
    options = [f"--{name}={value}" for name, value in choice.items()]
    assert reply.body.decode() == report_file(mirror, tmp_path, *options)


def test_the_page_is_the_report_with_links_to_the_runs_that_are_here(server: Served, report: str, job: str) -> None:
    reply = server.get("/fleet")
    assert reply.status == 200
    found, main = _TEMPLATE.search(reply.body.decode()), _MAIN.search(report)
    assert found is not None
    assert main is not None
    links = set(re.findall(r'<a class="job" href="([^"]*)">([^<]*)</a>', found[2]))
    assert links == {(f"/runs/{job}", job)}
    assert re.sub(r'<a class="job" href="[^"]*">([^<]*)</a>', r'<span class="job">\1</span>', found[2]) == main[1]
    assert server.get(f"/runs/{job}").status == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=color", "by: 'color': expected different groups of team, "),
        ("by=team,team", "by: 'team,team': expected different groups"),
        ("cost=cheap", "cost: "),
        ("as_of=tomorrow%20", "as_of: "),
        ("by=--html%3D/tmp/x", "by: '--html=/tmp/x'"),
        ("by=a%00b", "by: 'a\\x00b' has a character that no option can have."),
        (f"by={'x' * 300}", "by has 300 characters, and at most 200 are read."),
    ],
)
def test_a_choice_that_is_not_valid_is_a_sentence(server: Served, query: str, words: str) -> None:
    assert problem(server, f"/fleet?{query}", 400).startswith(words)
    reply = server.get(f"/api/fleet.html?{query}")
    assert reply.status == 400
    assert reply.json()["error"].startswith(words)


def test_a_moment_before_all_rows_is_a_sentence(server: Served) -> None:
    assert "has no rows that are not after that moment" in problem(server, "/fleet?as_of=2020-01-01", 404)


def test_the_page_keeps_to_the_rules_of_the_server(server: Served) -> None:
    for path in ("/fleet", "/api/fleet.html"):
        assert server.get(path, headers={"Host": "evil.example"}).status == 403
        assert server.get(path, headers={"Origin": "http://evil.example"}).status == 403
        assert server.get(path, method="POST").status == 403
        policy = server.get(path).headers["content-security-policy"]
        assert "script-src 'self'; style-src 'self'" in policy


def test_with_a_token_nothing_of_the_fleet_is_answered_without_it(root: Path, mirror: Path) -> None:
    with served(root, "--token", "--mirror", str(mirror)) as running:
        for path in ("/fleet", "/api/fleet.html"):
            reply = running.get(path)
            assert reply.status == 401
            assert b"goodput" not in reply.body.lower()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_server_loads_neither_pyarrow_nor_duckdb_and_leaves_no_process(server: Served) -> None:
    assert server.get("/fleet?by=team,zone").status == 200
    loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert not re.search(r"duckdb|arrow", loaded)
    assert server.children() == []


def test_new_rows_are_shown_at_the_next_load(root: Path, tmp_path: Path) -> None:
    mirror = make_rows(tmp_path / "mirror", jobs=3)
    with served(root, "--mirror", str(mirror)) as running:
        first = running.get("/fleet")
        assert b"2026-11-22 00:00:00Z" in first.body
        same = running.get("/fleet", headers={"If-None-Match": first.headers["etag"]})
        assert (same.status, same.body) == (304, b"")
        make_rows(mirror, as_of=_LATER)
        new = running.get("/fleet", headers={"If-None-Match": first.headers["etag"]})
        assert new.status == 200
        assert b"2026-11-23 00:00:00Z" in new.body
        assert b"2026-11-22 00:00:00Z" in running.get(f"/fleet?as_of={AS_OF}").body


def test_a_mirror_without_rows_says_what_makes_them(root: Path, tmp_path: Path) -> None:
    with served(root, "--mirror", str(tmp_path)) as running:
        said = problem(running, "/fleet", 404)
        assert f"`goodput fleet compact --mirror {tmp_path}` and `goodput fleet run --mirror {tmp_path}`" in said
        assert running.get("/").status == 200


def test_a_mirror_that_cannot_be_read_is_a_sentence_and_the_runs_are_still_there(
    root: Path, mirror: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "mirror"
    shutil.copytree(mirror, damaged)
    newest = sorted((damaged / "v1" / "manifests" / "rows").iterdir())[-1]
    newest.write_text("{")
    with served(root, "--mirror", str(damaged)) as running:
        assert "is damaged" in problem(running, "/fleet", 503)
        assert len(running.json("/api/runs")["rows"]) == 2


@contextmanager
def closed(cloud: CloudStorageServer) -> Iterator[None]:
    """Close a server, and keep its port, so that connections are refused and no server of another test answers them."""
    port = urlsplit(cloud.url).port
    cloud.close()
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        yield


def test_a_fleet_in_a_bucket_is_shown_and_a_bucket_that_is_gone_is_a_sentence(
    root: Path, mirror: Path, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CloudStorageServer(buckets=["bucket"]) as cloud:
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        storage = storage_for("gs://bucket/fleet")
        for file in mirror.rglob("*.*"):
            storage.write(f"gs://bucket/fleet/{file.relative_to(mirror).as_posix()}", file.read_bytes())
        with served(root, "--mirror", "gs://bucket/fleet") as running:
            assert running.get("/api/fleet.html").body.decode() == report
            with closed(cloud):
                assert problem(running, "/fleet", 503).startswith("The mirror cannot be read: ")
            assert len(running.json("/api/runs")["rows"]) == 2
        storage.close()  # type: ignore[attr-defined]


def test_the_mirror_is_that_of_the_environment_unless_given(
    root: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", str(mirror))
    with served(root) as running:
        assert running.get("/fleet").status == 200
        assert b'<html lang="en" data-fleet>' in running.get("/").body
    monkeypatch.delenv("ML_DIAGNOSTICS_MIRROR")
    with served(root) as running:
        assert "mldiagnostics ui --mirror" in problem(running, "/fleet", 404)
        assert b"data-fleet" not in running.get("/").body


def test_a_mirror_of_another_scheme_is_refused_at_once(root: Path) -> None:
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local"}
    argv = [*COMMAND, "ui", "--no-browser", "--mirror", "s3://bucket/runs"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "s3:// is not supported" in done.stderr


def test_without_the_package_the_page_names_it(
    root: Path, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["ml_diagnostics_fleet"] = None\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with served(root, "--mirror", str(mirror)) as running:
        assert "`pip install ml-diagnostics-fleet`" in problem(running, "/fleet", 503)
        assert running.get("/").status == 200
        page = running.get("/").body.decode()
        for address in re.findall(r"/static/v/[\w./-]+", page):
            assert running.get(address).status == 200


# --- The command ---------------------------------------------------------------------------------------------


def command(folder: Path, body: str) -> list[str]:
    """Return a command line of a program in place of `goodput fleet report`; it counts its starts."""
    program = folder / "report.py"
    count = f"open({str(folder / 'starts')!r}, 'a').write('x')"
    find = "path = next(each[7:] for each in sys.argv if each.startswith('--html='))"
    program.write_text(f"import os, sys, time\n{count}\n{find}\n{body}\n")
    return [sys.executable, str(program)]


WRITES = "open(path, 'w').write('<main class=\"fleet-page\">\\n' + ' '.join(sys.argv[3:-2]) + '\\n</main></html>\\n')"


def test_a_report_is_made_once_for_the_same_rows(mirror: Path, tmp_path: Path) -> None:
    copied = tmp_path / "mirror"
    shutil.copytree(mirror, copied)
    reports = FleetReports(str(copied), argv=command(tmp_path, WRITES))
    starts = tmp_path / "starts"
    for _ in range(3):
        assert "--by=team" in reports.report({"by": "team"})
    assert starts.read_text() == "x"
    reports.report({"by": "zone"})
    reports.report({"by": "team", "cost": ""})
    assert starts.read_text() == "xx"
    prices = copied / "v1" / "dimensions" / "prices.parquet"
    prices.write_bytes(prices.read_bytes())
    os.utime(prices, ns=(time.time_ns(), time.time_ns() + 10**9))
    reports.report({"by": "team"})
    assert starts.read_text() == "xxx"


def test_a_command_that_does_not_end_is_ended(mirror: Path, tmp_path: Path) -> None:
    reports = FleetReports(str(mirror), argv=command(tmp_path, "time.sleep(600)"), deadline_seconds=1.0)
    started = time.monotonic()
    with pytest.raises(FleetError, match="takes longer than 1 s") as raised:
        reports.report({})
    assert raised.value.status == 503
    assert time.monotonic() - started < 30


def test_a_command_that_is_ended_leaves_no_files(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(fleet_reports, "_END_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    body = "import tempfile; tempfile.mkdtemp(); print(file=open(path + '.made', 'w')); time.sleep(600)"
    reports = FleetReports(str(mirror), argv=command(tmp_path, body))

    def make() -> None:
        with pytest.raises(FleetError, match="exit code -9"):
            reports.report({})

    making = threading.Thread(target=make, daemon=True)
    making.start()
    wait_until(lambda: bool(list(scratch.glob("*/fleet.html.made"))), 2 * LONG_SECONDS)  # It works at low priority.
    reports.close()
    assert list(scratch.iterdir()) == []
    making.join()


def test_no_report_is_made_for_clients_that_have_left(server: Served) -> None:
    host, _, port = server.host.rpartition(":")
    waiting = []
    for price in range(1, 31):
        connection = socket.create_connection((host, int(port)))
        connection.sendall(f"GET /fleet?cost={price}.25/chip-hour HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode())
        waiting.append(connection)
    for connection in waiting:
        connection.close()
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.update(server.children())
            time.sleep(0.005)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        assert server.get("/fleet?by=cluster").status == 200
    finally:
        done.set()
        watching.join()
    assert 1 <= len(seen) <= 5  # Those that had their turn before they left, and the last one.


def test_the_end_of_the_server_ends_the_command(mirror: Path, tmp_path: Path) -> None:
    reports = FleetReports(str(mirror), argv=command(tmp_path, "time.sleep(600)"))
    closing = threading.Timer(1.0, reports.close)
    closing.start()
    started = time.monotonic()
    with pytest.raises(FleetError, match="exit code -9"):
        reports.report({})
    assert time.monotonic() - started < 30
    closing.join()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('goodput: the disk is full\\nleaked 15 types!')", "the disk is full."),
        ("os.kill(os.getpid(), 9)", "The report ended with exit code -9."),
        ("open(path, 'w').write('<main'); sys.exit('goodput: No space left')", "No space left."),
        (
            "open(path, 'w').write('x' * 9_000_000 + '</html>\\n')",
            "The report has 9.00 MB, and at most 8.39 MB are sent",
        ),
    ],
)
def test_a_command_that_fails_is_a_sentence(mirror: Path, tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(FleetError) as raised:
        FleetReports(str(mirror), argv=command(tmp_path, body)).report({})
    assert raised.value.sentence.startswith(said)


def test_names_of_jobs_are_no_markup_in_links() -> None:
    job = '"><script>alert(1)</script>'
    report = f'<main class="fleet-page">\n<span class="job">{escape(job)}</span>\n</main>'
    text = fleet_document("<main></main>", report, {job: job})
    assert "<script" not in text
    assert f'href="/runs/{quote(job, safe="")}"' in text


# --- In a browser --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@needs_browser
def test_the_header_leads_to_the_fleet_and_the_fleet_to_a_run(browser: Browser, server: Served, job: str) -> None:
    browser.forget()
    browser.open(f"http://{server.host}/")
    browser.wait_ready("runs")
    browser.value("document.querySelector('.top-nav a').click()")
    browser.wait_ready("fleet")
    assert browser.value("document.querySelector('h1').textContent") == "Fleet goodput"
    assert browser.value("document.querySelector('.top-nav [aria-current=page]').textContent") == "Fleet"
    browser.value("[...document.querySelectorAll('.fleet-controls a')].find((a) => a.textContent === 'Zone').click()")
    browser.wait_for("location.search === '?by=zone'")
    browser.wait_ready("fleet")
    assert browser.value("document.querySelector('.fleet').dataset.by") == "zone"
    browser.value("document.querySelector('a.job').click()")
    browser.wait_ready("overview")
    assert browser.value("location.pathname") == f"/runs/{job}"
    browser.value("history.back()")
    browser.wait_ready("fleet")
    assert browser.value("document.querySelectorAll('.fleet').length") == 1
    assert browser.foreign_requests(server.host) == []
    assert browser.complaints() == []


@needs_browser
def test_a_table_is_sorted_by_its_headers(browser: Browser, server: Served) -> None:
    browser.forget()
    browser.open(f"http://{server.host}/fleet?by=zone")
    browser.wait_ready("fleet")
    table = "[...document.querySelectorAll('.card')].find((each) => each.querySelector('h2').textContent.startsWith"
    table += "('Groups')).querySelector('table')"
    names = f"[...{table}.tBodies[0].rows].map((row) => row.cells[0].textContent)"
    press = f"{table}.querySelector('.sort').click()"
    found = browser.value(names)
    browser.value(press)
    assert browser.value(names) == sorted(found)
    browser.value(press)
    assert browser.value(names) == sorted(found, reverse=True)
    assert browser.value(f"{table}.querySelector('th').getAttribute('aria-sort')") == "descending"


@needs_browser
@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_window(browser: Browser, server: Served, width: int) -> None:
    browser.resize(width, 900)
    browser.open(f"http://{server.host}/fleet?by=team,zone")
    browser.wait_ready("fleet")
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []


@needs_browser
def test_the_file_shows_the_same_and_asks_for_nothing(
    browser: Browser, server: Served, report: str, tmp_path: Path
) -> None:
    cards = "[...document.querySelectorAll('.fleet .card, .fleet .tiles')].map((each) => each.innerText)"
    browser.resize(1400, 900)
    browser.forget()
    browser.open(f"http://{server.host}/fleet")
    browser.wait_ready("fleet")
    in_page = browser.value(cards)
    file = tmp_path / "fleet.html"
    file.write_text(report, encoding="utf-8")
    assert "unsafe-inline" not in report
    browser.forget()
    browser.open(file.as_uri())
    assert browser.value(cards) == in_page
    assert [url for url in browser.requests() if url != file.as_uri()] == []
    browser.value("document.querySelector('.fleet .sort').click()")
    browser.wait_for("document.querySelector('[aria-sort]')")
    assert browser.complaints() == []


@needs_browser
def test_a_choice_that_is_not_valid_has_a_way_back(browser: Browser, server: Served) -> None:
    browser.open(f"http://{server.host}/fleet?by=color")
    browser.wait_ready("fleet")
    assert "expected different groups of team" in browser.value("document.querySelector('.empty').textContent")
    browser.value("document.querySelector('.page-fleet a.button').click()")
    browser.wait_for("location.search === '' && document.querySelector('h1')")


@needs_browser
def test_a_choice_that_is_not_valid_can_be_corrected_where_it_was_made(browser: Browser, server: Served) -> None:
    browser.resize(1400, 900)
    browser.open(f"http://{server.host}/fleet?by=zone&cost=cheap")
    browser.wait_ready("fleet")
    price = "document.querySelector('.fleet-controls input[placeholder*=chip]')"
    assert browser.value(f"{price}.value") == "cheap"
    browser.value(f"{price}.value = '2/chip-hour'; {price}.dispatchEvent(new Event('change'))")
    browser.wait_for("location.search === '?by=zone&cost=2%2Fchip-hour' && document.querySelector('h1')")
    browser.wait_ready("fleet")
    assert browser.value("document.querySelector('.fleet').dataset.by") == "zone"
