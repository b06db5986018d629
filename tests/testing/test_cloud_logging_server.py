"""The loopback Cloud Logging follows the real one's rules, and fails on demand."""

import concurrent.futures
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_logging._entries import format_timestamp, parse_timestamp
from ml_diagnostics_testing.faults import Skew, Status
from ml_diagnostics_testing.http_server import ApiError

NOON = 1_795_262_400.0  # 2026-11-21T12:00:00Z
LOG = "projects/test-project/logs/goodput"
RESOURCE = {"type": "global", "labels": {"project_id": "test-project"}}


class Rest:
    """The REST API, spoken without any client between."""

    def __init__(self, server: CloudLoggingServer) -> None:
        self.session = requests.Session()
        self.url = server.rest_url

    def post(self, verb: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = self.session.post(f"{self.url}/v2/entries:{verb}", data=data, timeout=10)
        return response.status_code, response.json()

    def write(self, *entries: Mapping[str, Any], **request: Any) -> tuple[int, Any]:
        body = {"logName": LOG, "resource": RESOURCE, "entries": entries, "partialSuccess": True, **request}
        return self.post("write", body)

    def page(self, **request: Any) -> tuple[int, Any]:
        return self.post("list", {"resourceNames": ["projects/test-project"], **request})

    def pages(self, **request: Any) -> Iterator[list[str]]:
        """The insertIds of each page."""
        token = ""
        while True:
            status, page = self.page(pageToken=token, **request)
            assert status == 200, page
            yield [entry["insertId"] for entry in page.get("entries", [])]
            if not (token := page.get("nextPageToken", "")):
                return

    def listed(self, **request: Any) -> list[str]:
        """The insertIds of all pages."""
        return [insert_id for page in self.pages(**request) for insert_id in page]


@pytest.fixture
def rest(cloud_logging_server: CloudLoggingServer) -> Iterator[Rest]:
    rest = Rest(cloud_logging_server)
    yield rest
    rest.session.close()


def entry(insert_id: str = "a", second: float = 0, **fields: Any) -> dict[str, Any]:
    timestamp = format_timestamp(int((NOON + second) * 1e9))
    return {"insertId": insert_id, "timestamp": timestamp, "jsonPayload": {"n": 1}, **fields}


class TestWriting:
    def test_what_the_entry_lacks_comes_from_the_request(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        own = {"type": "gce_instance", "labels": {}}
        status, _ = rest.write(
            entry("a", labels={"job": "J"}),
            entry("b", labels={"host": "mine"}, logName="projects/test-project/logs/other", resource=own),
            labels={"host": "theirs", "run": "r"},
        )
        assert status == 200
        first, second = cloud_logging_server.entries()
        assert (first["logName"], first["resource"]) == (LOG, RESOURCE)
        assert first["labels"] == {"job": "J", "host": "theirs", "run": "r"}
        assert (second["logName"], second["resource"]) == ("projects/test-project/logs/other", own)
        assert second["labels"] == {"host": "mine", "run": "r"}

    def test_the_server_assigns_times_and_insert_ids_in_order(self) -> None:
        with CloudLoggingServer(clock=lambda: NOON) as server:
            server.write([{"textPayload": text} for text in "abc"], log_id="goodput")
            stored = server.entries()
        assert [item["textPayload"] for item in stored] == ["a", "b", "c"]
        assert stored[0]["timestamp"] == stored[0]["receiveTimestamp"] == "2026-11-21T12:00:00Z"
        assert len({item["insertId"] for item in stored}) == 3

    def test_the_same_timestamp_and_insert_id_are_stored_once_a_log(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        for _ in range(2):
            rest.write(entry("a"), entry("a", second=1), entry("a", logName="projects/test-project/logs/other"))
        assert len(cloud_logging_server.entries()) == 3
        assert cloud_logging_server.duplicates == 3

    def test_numbers_are_doubles_as_in_the_real_service(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        rest.write(entry(jsonPayload={"exact": 2**53 - 1, "inexact": 2**53 + 1, "whole": 3.0, "part": 0.1}))
        payload = cloud_logging_server.entries()[0]["jsonPayload"]
        assert payload == {"exact": 2**53 - 1, "inexact": 2.0**53, "whole": 3, "part": 0.1}

    def test_severities_have_names_and_numbers(self, cloud_logging_server: CloudLoggingServer, rest: Rest) -> None:
        rest.write(entry("a", severity=200), entry("b", severity="error"))
        assert [item["severity"] for item in cloud_logging_server.entries()] == ["INFO", "ERROR"]

    @pytest.mark.parametrize(
        ("bad", "why"),
        [
            (entry(jsonPayload={"x": "y" * 262_144}), "exceeds maximum size of 256.0K"),
            (entry(logName="goodput"), "log_name 'goodput' is not"),
            (entry(logName="projects/p/logs/with space"), "URL-encoded"),
            (entry(resource={"labels": {}}), "monitored resource"),
            (entry(labels={"step": 1}), "labels.step must be a string"),
            (entry(timestamp="yesterday"), "RFC 3339"),
            (entry(severity="LOUD"), "not a severity"),
            (entry(textPayload="two"), "one payload"),
            (entry(job="J"), 'Unknown name "job"'),
            (entry(jsonPayload=[1]), "must be a JSON object"),
            (entry(jsonPayload={"x": "\ud800"}), "not valid UTF-8"),
            (entry(jsonPayload={"x": 10**400}), "beyond the range of a double"),
            ("text", "JSON object"),
        ],
    )
    def test_a_bad_entry_is_refused_alone(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest, bad: Any, why: str
    ) -> None:
        status, answer = rest.write(entry("good"), bad, partialSuccess=True)
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
        (details,) = answer["error"]["details"]
        assert details["@type"].endswith("WriteLogEntriesPartialErrors")
        assert list(details["logEntryErrors"]) == ["1"]
        assert why in details["logEntryErrors"]["1"]["message"]
        assert details["logEntryErrors"]["1"]["code"] == 3
        assert [item["insertId"] for item in cloud_logging_server.entries()] == ["good"]

    def test_without_partial_success_one_bad_entry_stops_all(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        status, answer = rest.write(entry("good"), entry(severity="LOUD"), partialSuccess=False)
        assert status == 400
        assert "details" not in answer["error"]
        assert cloud_logging_server.entries() == []

    def test_where_nothing_was_written_there_are_no_details(self, rest: Rest) -> None:
        status, answer = rest.write(entry(severity="LOUD"))
        assert status == 400
        assert "details" not in answer["error"]

    def test_an_entry_of_just_under_256_kib_is_taken(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        assert rest.write(entry(jsonPayload={"x": "y" * 261_000}))[0] == 200
        assert len(cloud_logging_server.entries()) == 1

    def test_a_request_of_more_than_10_mb_is_refused(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        big = [entry(str(index), jsonPayload={"x": "y" * 250_000}) for index in range(43)]
        status, answer = rest.write(*big)
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert "10485760 bytes" in answer["error"]["message"]
        assert cloud_logging_server.entries() == []

    def test_a_dry_run_stores_nothing(self, cloud_logging_server: CloudLoggingServer, rest: Rest) -> None:
        assert rest.write(entry(), dryRun=True)[0] == 200
        assert rest.write(entry(severity="LOUD"), dryRun=True)[0] == 400
        assert cloud_logging_server.entries() == []

    @pytest.mark.parametrize("body", [b"[]", b"{", b'{"entries": [NaN]}', b"[" * 100_000, b'{"entries": 1}'])
    def test_an_invalid_body_is_refused(self, rest: Rest, body: bytes) -> None:
        assert rest.post("write", body)[0] == 400

    def test_old_entries_are_accepted_and_never_listed(self) -> None:
        with CloudLoggingServer(clock=lambda: NOON, retention_seconds=3600) as server:
            server.write([entry("old", -3601), entry("fresh", -3599), entry("far", 86_401)], log_id="goodput")
            assert [item["insertId"] for item in server.entries()] == ["fresh"]

    def test_an_unknown_method_is_not_found(self, rest: Rest) -> None:
        assert rest.post("tail", {})[0] == 404


class TestListing:
    def test_pages_are_in_order_and_ties_by_insert_id(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        cloud_logging_server.write([entry("c", 1), entry("b", 1), entry("a", 2), entry("d", 0)], log_id="x")
        cloud_logging_server.write([entry("bb", 1)], log_id="another")
        assert list(rest.pages(pageSize=2)) == [["d", "b"], ["bb", "c"], ["a"]]
        assert list(rest.pages(orderBy="timestamp desc", pageSize=2)) == [["a", "c"], ["bb", "b"], ["d"]]
        assert list(rest.pages(pageSize=5)) == [["d", "b", "bb", "c", "a"]]

    def test_a_page_has_fifty_entries_by_default(self, cloud_logging_server: CloudLoggingServer, rest: Rest) -> None:
        cloud_logging_server.write([entry(f"{index:03}", index) for index in range(101)], log_id="x")
        assert [len(page) for page in rest.pages()] == [50, 50, 1]

    def test_a_filter_and_the_resource_names_choose(self, cloud_logging_server: CloudLoggingServer, rest: Rest) -> None:
        cloud_logging_server.write(
            [entry("a", severity="INFO"), entry("b", logName="projects/q/logs/x", severity="INFO"), entry("c")],
            log_id="x",
        )
        assert list(rest.pages(filter="severity=INFO")) == [["a"]]
        assert list(rest.pages(filter="severity=INFO", resourceNames=["projects/q"])) == [["b"]]
        assert list(rest.pages(resourceNames=["projects/test-project", "projects/q"])) == [["a", "b", "c"]]

    @pytest.mark.parametrize(
        ("request_", "why"),
        [
            ({"pageSize": 1001}, "between 0 and 1000"),
            ({"pageSize": -1}, "between 0 and 1000"),
            ({"orderBy": "insertId"}, "order_by"),
            ({"resourceNames": []}, "resource_names"),
            ({"filter": "thud=1"}, "Field not found"),
            ({"pageToken": "made-up"}, "page_token"),
            ({"limit": 1}, 'Unknown name "limit"'),
        ],
    )
    def test_a_bad_request_is_refused(self, rest: Rest, request_: dict[str, Any], why: str) -> None:
        status, answer = rest.page(**request_)
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert why in answer["error"]["message"]

    def test_a_token_belongs_to_its_filter(self, cloud_logging_server: CloudLoggingServer, rest: Rest) -> None:
        cloud_logging_server.write([entry("a"), entry("b")], log_id="x")
        token = rest.page(pageSize=1)[1]["nextPageToken"]
        status, answer = rest.page(pageSize=1, pageToken=token, filter="severity=INFO")
        assert status == 400
        assert "doesn't match" in answer["error"]["message"]

    def test_large_entries_make_short_pages(self, cloud_logging_server: CloudLoggingServer, rest: Rest) -> None:
        big = [entry(f"{index:02}", index, jsonPayload={"x": "y" * 250_000}) for index in range(20)]
        cloud_logging_server.write(big, log_id="x")
        pages = list(rest.pages(pageSize=1000))
        assert len(pages) == 2
        assert rest.listed(pageSize=1000) == [f"{index:02}" for index in range(20)]

    def test_a_scan_limit_answers_with_short_and_empty_pages(self) -> None:
        with CloudLoggingServer(scan_limit=2) as server:
            server.write([entry(str(i), i, severity="INFO" if i == 4 else "DEBUG") for i in range(6)], log_id="x")
            rest = Rest(server)
            assert list(rest.pages(filter="severity=INFO", pageSize=10)) == [[], [], ["4"]]
            rest.session.close()

    @pytest.mark.parametrize("order", ["timestamp asc", "timestamp desc"])
    def test_a_page_reads_its_own_entries_and_one_more(self, order: str) -> None:
        """Else listing a long log takes the square of its length."""
        with CloudLoggingServer(scan_limit=11) as server:
            server.write([entry(f"{second:03}", second) for second in range(100)], log_id="x")
            rest = Rest(server)
            assert [len(page) for page in rest.pages(pageSize=10, orderBy=order)] == [10] * 10
            late = server.entries('insertId="070"')[0]["timestamp"]
            asked = {"filter": f'timestamp>="{late}" AND log_id("x")', "orderBy": order, "pageSize": 10}
            assert [len(page) for page in rest.pages(**asked)] == [10] * 3
            rest.session.close()

    @settings(max_examples=25, deadline=None)
    @given(
        seconds=st.lists(st.integers(0, 5), max_size=30),
        page_size=st.integers(1, 7),
        descending=st.booleans(),
    )
    def test_pages_hold_every_entry_once(self, seconds: list[int], page_size: int, descending: bool) -> None:
        with CloudLoggingServer() as server:
            written = [entry(f"{index:02}", second) for index, second in enumerate(seconds)]
            for index, item in enumerate(written):
                server.write([item], log_id=f"log-{index % 2}")
            rest = Rest(server)
            order = "timestamp desc" if descending else "timestamp asc"
            listed = rest.listed(pageSize=page_size, orderBy=order)
            rest.session.close()
        ordered = sorted(written, key=lambda item: (item["timestamp"], item["insertId"]), reverse=descending)
        assert listed == [item["insertId"] for item in ordered]


class TestLateness:
    def test_held_entries_appear_on_release_where_they_belong(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        cloud_logging_server.hold('insertId="b"')
        rest.write(entry("a", 0), entry("b", 1), entry("c", 2))
        assert list(rest.pages()) == [["a", "c"]]
        rest.write(entry("b", 1))
        assert cloud_logging_server.duplicates == 1
        assert cloud_logging_server.release() == 1
        assert list(rest.pages()) == [["a", "b", "c"]]
        rest.write(entry("b", 3))
        assert list(rest.pages()) == [["a", "b", "c", "b"]]

    def test_delayed_entries_appear_after_their_delay(self) -> None:
        now = [NOON]
        with CloudLoggingServer(clock=lambda: now[0]) as server:
            server.ingestion_delay_seconds = 10
            server.write([entry("a")], log_id="x")
            now[0] += 9.9
            assert server.entries() == []
            now[0] += 0.2
            assert len(server.entries()) == 1


class TestFaultsAndTheLog:
    def test_faults_hit_the_operation_that_they_are_for(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        cloud_logging_server.faults.always(Status(503), on="write")
        assert rest.write(entry())[0] == 503
        assert rest.page()[0] == 200
        cloud_logging_server.faults.clear()
        assert rest.write(entry())[0] == 200

    def test_requests_are_counted_with_their_entries(
        self, cloud_logging_server: CloudLoggingServer, rest: Rest
    ) -> None:
        cloud_logging_server.faults.script([Status(429)], on="write")
        rest.write(entry("a"), entry("b"))
        rest.write(entry("a"), entry("b"))
        rest.page()
        refused, written = cloud_logging_server.requests_for("write")
        assert (refused.status, refused.fault, refused.entries) == (429, Status(429), None)
        assert (written.status, written.fault, written.entries) == (200, None, 2)
        (listed,) = cloud_logging_server.requests_for("list")
        assert (listed.method, listed.path, listed.entries) == ("POST", "/v2/entries:list", 2)

    def test_a_skewed_clock_is_the_one_that_entries_get(self, rest: Rest) -> None:
        with CloudLoggingServer(clock=lambda: NOON) as server:
            server.faults.always(Skew(-3600))
            skewed = Rest(server)
            skewed.write({"textPayload": "late"})
            skewed.session.close()
            (stored,) = server.entries()
        assert stored["timestamp"] == stored["receiveTimestamp"] == "2026-11-21T11:00:00Z"

    def test_many_clients_write_and_read_at_once(self, cloud_logging_server: CloudLoggingServer) -> None:
        def work(writer: int) -> int:
            rest = Rest(cloud_logging_server)
            for index in range(20):
                assert rest.write(entry(f"{writer}-{index:02}", 20 - index))[0] == 200
            listed = rest.listed(pageSize=7, filter=f'insertId:"{writer}-"')
            rest.session.close()
            return len(listed)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [20] * 8
        assert len(cloud_logging_server.entries()) == 160

    def test_clearing_forgets_entries_and_what_was_seen(self, cloud_logging_server: CloudLoggingServer) -> None:
        for _ in range(2):
            cloud_logging_server.write([entry()], log_id="x")
            assert len(cloud_logging_server.entries()) == 1
            cloud_logging_server.clear()
            assert cloud_logging_server.entries() == []

    def test_what_a_test_writes_wrongly_is_an_error_at_once(self, cloud_logging_server: CloudLoggingServer) -> None:
        with pytest.raises(ApiError, match="no log name"):
            cloud_logging_server.write([{"textPayload": "x"}])
        with pytest.raises(ApiError, match="not a severity"):
            cloud_logging_server.preload([{"textPayload": "x", "severity": "LOUD"}], log_id="x")


@given(st.integers(-62_135_596_800_000_000_000, 253_402_300_799_999_999_999))
def test_a_timestamp_survives_its_text(timestamp_ns: int) -> None:
    assert parse_timestamp(format_timestamp(timestamp_ns)) == timestamp_ns


def test_a_server_of_its_own_process_prints_its_address_and_ends_on_request(tmp_path: Path) -> None:
    entries = tmp_path / "entries.jsonl"
    entries.write_text("".join(json.dumps(entry(str(index))) + "\n" for index in range(3)), encoding="utf-8")
    command = [sys.executable, "-m", "ml_diagnostics_testing.cloud_logging"]
    command += ["--project", "p", "--preload", str(entries), "--log-id", "train"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip().removeprefix("export ") for _ in range(4)]
        environment = dict(line.split("=", 1) for line in lines)
        url = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"]
        body = {"resourceNames": ["projects/p"], "filter": 'log_id("train")'}
        answer = requests.post(f"{url}v2/entries:list", json=body, timeout=10).json()
        assert len(answer["entries"]) == 3
        process.terminate()
        assert process.wait(10) == 0
    assert environment["GOOGLE_CLOUD_PROJECT"] == "p"
