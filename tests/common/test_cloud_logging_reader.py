"""The reader of Cloud Logging: everything once, however late, however much, within a quota."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.backoff import RequestBudget
from ml_diagnostics_common.cloud_logging import (
    CloudLoggingReader,
    LoggingTransport,
    PageReader,
    TransportError,
    connect,
    make_transport,
)
from ml_diagnostics_common.cloud_logging._reader import GapSchedule
from ml_diagnostics_common.credentials import CloudEnvironment
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response, json_response

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
NOW = 1_795_000_000 * SECOND


class Clock:
    """Wall and monotonic time that only sleeping moves."""

    def __init__(self) -> None:
        self.now_ns = NOW
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)

    def seconds(self) -> float:
        return self.now_ns / SECOND


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[CloudLoggingServer]:
    with CloudLoggingServer(clock=clock.seconds) as server:
        yield server


@pytest.fixture
def transport(server: CloudLoggingServer) -> Iterator[LoggingTransport]:
    transport = connect(environ=server.environment())
    yield transport
    transport.close()


def reader(
    transport: LoggingTransport,
    clock: Clock,
    *,
    requests_per_minute: int = 50,
    budget: RequestBudget | None = None,
    timeout_seconds: float = 30.0,
    patience_seconds: float = 300.0,
    **arguments: Any,
) -> CloudLoggingReader:
    pages = PageReader(
        transport,
        budget=budget or RequestBudget(requests_per_minute, clock=clock.seconds, sleep=clock.sleep),
        timeout_seconds=timeout_seconds,
        patience_seconds=patience_seconds,
        clock=clock.seconds,
        sleep=clock.sleep,
    )
    times = {"clock_ns": lambda: clock.now_ns, "clock": clock.seconds}
    return CloudLoggingReader(pages, "log", **{"job_name": "job", **times, **arguments})


def ours(number: int, at_ns: int, *, writer: str = "host-1-2-0", job: str = "job") -> dict[str, Any]:
    sequence = str(10**11 + number)
    return {
        "timestamp": format_timestamp(at_ns),
        "severity": "INFO",
        "insertId": f"{writer}.{sequence}",
        "labels": {"job": job, "writer": writer, "seq": sequence},
        "jsonPayload": {"job_name": job, "step_count": number},
    }


def foreign(number: int, at_ns: int, job: str = "job") -> dict[str, Any]:
    """Return an entry as the reference and Orbax write it: no insertId, no labels of ours."""
    return {
        "timestamp": format_timestamp(at_ns),
        "severity": "INFO",
        "jsonPayload": {"job_name": job, "step_count": number},
    }


def steps(reader: CloudLoggingReader) -> list[int]:
    return [int(entry.payload["step_count"]) for batch in reader.read_new() for entry in batch]


def lists(server: CloudLoggingServer) -> int:
    return sum(request.operation == "list" for request in server.requests)


def test_a_long_history_is_read_once_and_in_order(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    """Ten thousand entries over 100 days: no window of 7 days or 24 hours cuts them off."""
    server.write([ours(n, NOW - 100 * DAY + n * 800 * SECOND) for n in range(10_000)], log_id="log")
    subject = reader(transport, clock)
    assert steps(subject) == list(range(10_000))
    assert lists(server) <= 11
    assert steps(subject) == []
    assert lists(server) <= 12


def test_only_what_is_new_is_read_again(server: CloudLoggingServer, transport: LoggingTransport, clock: Clock) -> None:
    subject = reader(transport, clock)
    for round_ in range(5):
        server.write([ours(round_ * 100 + n, clock.now_ns + n * SECOND) for n in range(100)], log_id="log")
        clock.advance(100)
        assert steps(subject) == [round_ * 100 + n for n in range(100)]
    assert max(request.entries or 0 for request in server.requests if request.operation == "list") <= 161


def test_what_the_reference_wrote_is_read_once(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    server.write([foreign(n, NOW - 50 * SECOND + n) for n in range(10)], log_id="log")
    subject = reader(transport, clock)
    assert steps(subject) == list(range(10))
    server.write([foreign(10, NOW - 20 * SECOND)], log_id="log")
    assert steps(subject) == [10]
    for _ in range(4):
        clock.advance(200)
        assert steps(subject) == []


def test_a_late_entry_is_found_in_the_overlap(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    subject = reader(transport, clock)
    server.write([foreign(2, NOW)], log_id="log")
    assert steps(subject) == [2]
    server.write([foreign(1, NOW - 30 * SECOND)], log_id="log")
    assert steps(subject) == [1]


def test_a_gap_in_a_writers_sequence_is_asked_for_by_name(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    """The missing entries are older than the overlap, and arrive before the next sweep."""
    history = [ours(n, NOW - (1000 - n) * SECOND) for n in range(1000)]
    missing = [*range(100, 110), 500]
    server.write([entry for n, entry in enumerate(history) if n not in missing], log_id="log")
    subject = reader(transport, clock)
    assert len(steps(subject)) == 989
    server.write([history[n] for n in missing], log_id="log")
    clock.advance(11)
    before = lists(server)
    assert steps(subject) == missing
    assert lists(server) - before == 2
    clock.advance(100)
    assert steps(subject) == []


def test_a_gap_that_is_never_filled_costs_ever_fewer_requests(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    server.write([ours(n, NOW - 10 * SECOND) for n in range(100) if n != 50], log_id="log")
    subject = reader(transport, clock, sweep_seconds=1e9)
    costs = []
    for _ in range(360):
        before = lists(server)
        steps(subject)
        costs.append(lists(server) - before - 1)
        clock.advance(10)
    assert sum(costs[:60]) <= 8
    assert 3 <= sum(costs[180:]) <= 5  # Half an hour: it is never given up.


def test_the_rest_of_a_killed_job_is_found_a_week_later(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    """No overlap reaches it, and no gap shows it: it is the tail of a writer, and another one's all."""
    server.write([ours(n, NOW - 7 * DAY + n) for n in range(10)] + [foreign(99, NOW)], log_id="log")
    subject = reader(transport, clock)
    assert len(steps(subject)) == 11
    late = [ours(n, NOW - 7 * DAY + n) for n in range(10, 20)]
    late += [ours(n, NOW - 6 * DAY, writer="other-1-2-0") for n in range(100, 102)]
    server.write([*late, foreign(50, NOW - 5 * DAY)], log_id="log")
    clock.advance(301)
    assert sorted(steps(subject)) == [*range(10, 20), 50, 100, 101]
    for _ in range(3):
        clock.advance(301)
        assert steps(subject) == []


def test_entries_held_back_at_random_are_all_found_once(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    dice = random.Random(4)
    subject, found = reader(transport, clock), []
    late: list[dict[str, Any]] = []
    for n in range(300):
        entry = ours(n, clock.now_ns) if n % 3 else foreign(n, clock.now_ns)
        if dice.random() < 0.2:
            late.append(entry)
        else:
            server.write([entry], log_id="log")
        clock.advance(dice.random() * 20)
        if late and dice.random() < 0.1:
            server.write(late, log_id="log")
            late.clear()
        if n % 10 == 0:
            found += steps(subject)
    server.write(late, log_id="log")
    for _ in range(3):
        clock.advance(301)
        found += steps(subject)
    assert sorted(found) == list(range(300))


def test_another_process_resumes_from_a_position(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    server.write([ours(n, NOW + n) for n in range(1500)] + [foreign(2000, NOW + 1)], log_id="log")
    first = reader(transport, clock)
    batches = first.read_new()
    started = [int(entry.payload["step_count"]) for entry in next(batches)]
    position = json.loads(json.dumps(first.position()))
    second = reader(transport, clock, position=position)
    assert sorted(started + steps(second)) == [*range(1500), 2000]
    third = reader(transport, clock, position=json.loads(json.dumps(second.position())))
    server.write([ours(1500, NOW + 1500), foreign(2001, NOW + 2)], log_id="log")
    assert sorted(steps(third)) == [1500, 2001]


def test_jobs_of_one_log_are_distinguished_also_by_case(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    """Filters compare without regard to case; and the gap in a writer's numbers is an entry of another job."""
    server.write([ours(n, NOW, job=("job", "JOB")[n % 2]) for n in range(4)], log_id="log")
    server.write([foreign(9, NOW)], log_id="LOG")
    subject = reader(transport, clock)
    assert steps(subject) == [0, 2]
    assert subject.skipped.as_dict() == {"other_job": 3}
    assert sorted(steps(reader(transport, clock, job_name=None))) == [0, 1, 2, 3]


def test_a_job_name_that_no_filter_can_hold_is_sorted_out_here(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    name = '"' * 10_000
    server.write([ours(0, NOW, job=name), ours(1, NOW)], log_id="log")
    assert steps(reader(transport, clock, job_name=name)) == [0]


def test_start_time_is_a_limit(server: CloudLoggingServer, transport: LoggingTransport, clock: Clock) -> None:
    server.write([ours(n, NOW + n * SECOND) for n in range(4)], log_id="log")
    assert steps(reader(transport, clock, start_time_ns=NOW + SECOND)) == [2, 3]


def test_a_writer_with_a_fast_clock_hides_no_other(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    server.write([ours(0, NOW + 1800 * SECOND)], log_id="log")
    subject = reader(transport, clock)
    assert steps(subject) == [0]
    clock.advance(10)
    server.write([ours(0, clock.now_ns, writer="other-1-2-0"), foreign(5, clock.now_ns)], log_id="log")
    assert sorted(steps(subject)) == [0, 5]


@pytest.mark.parametrize("fault", [Status(503), Status(429), Reset(), Truncate()])
def test_a_read_survives_a_server_that_fails_half_of_the_time(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock, fault: Any
) -> None:
    server.write([ours(n, NOW + n) for n in range(8000)], log_id="log")
    server.faults.sometimes(fault, probability=0.5, on="list", seed=3)
    assert steps(reader(transport, clock)) == list(range(8000))
    assert lists(server) <= 40


def test_retry_after_is_honoured(server: CloudLoggingServer, transport: LoggingTransport, clock: Clock) -> None:
    server.write([ours(1, NOW)], log_id="log")
    server.faults.script([Status(429, retry_after=17)], on="list")
    assert steps(reader(transport, clock)) == [1]
    [slept] = clock.slept
    assert 17 <= slept < 18


def test_waits_grow_and_patience_ends(server: CloudLoggingServer, transport: LoggingTransport, clock: Clock) -> None:
    server.faults.always(Status(503), on="list")
    subject = reader(transport, clock)
    with pytest.raises(TransportError, match="UNAVAILABLE"):
        steps(subject)
    assert 5 <= len(clock.slept) <= 12
    assert 60 < sum(clock.slept) <= 300
    server.faults.clear()
    server.write([ours(1, NOW)], log_id="log")
    assert steps(subject) == [1]


def test_a_refusal_is_raised_at_once(server: CloudLoggingServer, transport: LoggingTransport, clock: Clock) -> None:
    server.faults.always(Status(403), on="list")
    with pytest.raises(TransportError, match="PERMISSION_DENIED"):
        steps(reader(transport, clock))
    assert lists(server) == 1
    assert clock.slept == []


def test_a_failure_between_pages_loses_and_repeats_nothing(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    server.write([foreign(n, NOW + n) for n in range(2500)], log_id="log")
    subject, found = reader(transport, clock), []
    server.faults.script([None, Status(403)], on="list")
    batches = subject.read_new()
    found += [int(entry.payload["step_count"]) for entry in next(batches)]
    with pytest.raises(TransportError):
        next(batches)
    assert len(found) == 1000
    assert sorted(found + steps(subject)) == list(range(2500))


def test_the_quota_is_kept(server: CloudLoggingServer, transport: LoggingTransport, clock: Clock) -> None:
    server.write([ours(n, NOW + n) for n in range(12_000)], log_id="log")
    budget = RequestBudget(5, clock=clock.seconds, sleep=clock.sleep)
    first, second = (reader(transport, clock, budget=budget) for _ in range(2))
    assert len(steps(first)) == len(steps(second)) == 12_000
    times = [request.time for request in server.requests if request.operation == "list"]
    assert all(later - earlier >= 60 for earlier, later in zip(times, times[5:], strict=False))


def test_a_wait_for_the_quota_does_not_use_up_the_patience(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    server.write([ours(n, NOW + n) for n in range(1500)], log_id="log")
    server.faults.script([None, Status(503)], on="list")
    assert steps(reader(transport, clock, requests_per_minute=1, patience_seconds=30)) == list(range(1500))
    assert sum(clock.slept) > 60


def test_a_page_with_nothing_in_it_is_not_the_end(transport: LoggingTransport, clock: Clock) -> None:
    """The service answers empty pages with a token while it searches."""
    with CloudLoggingServer(clock=clock.seconds, scan_limit=100) as slow:
        slow.write([ours(n, NOW + n, job=("other", "job")[n > 950]) for n in range(1000)], log_id="log")
        other = connect(environ=slow.environment())
        assert steps(reader(other, clock)) == list(range(951, 1000))
        other.close()


class Refusing:
    """A transport that cannot search more than some days at once, as the service in busy projects."""

    def __init__(self, transport: LoggingTransport, error: TransportError, widest_ns: int) -> None:
        self.project, self.principal, self.close = transport.project, transport.principal, transport.close
        self.write = transport.write
        self._transport, self._error, self._widest_ns = transport, error, widest_ns

    def list_page(self, filter_: str, **arguments: Any) -> Any:
        from ml_diagnostics_common.entry import parse_timestamp

        until, after = (filter_.split(f'timestamp{sign}"')[1].split('"')[0] for sign in ("<=", ">"))
        if parse_timestamp(until) - parse_timestamp(after) > self._widest_ns:
            raise self._error
        return self._transport.list_page(filter_, **arguments)


@pytest.mark.parametrize(
    "error",
    [TransportError("INVALID_ARGUMENT", "timeout"), TransportError("DEADLINE_EXCEEDED", "no answer in 30 s")],
)
def test_a_query_that_is_too_wide_is_cut_into_slices(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock, error: TransportError
) -> None:
    server.write([ours(n, NOW - (60 - n) * DAY) for n in range(60)], log_id="log")
    refusing = Refusing(transport, error, 30 * DAY)
    assert steps(reader(refusing, clock, requests_per_minute=10**6)) == list(range(60))


def test_a_hanging_server_is_given_up_at_last(
    server: CloudLoggingServer, transport: LoggingTransport, clock: Clock
) -> None:
    server.faults.always(Hang(), on="list")
    with pytest.raises(TransportError, match="DEADLINE_EXCEEDED"):
        steps(reader(transport, clock, timeout_seconds=0.02, patience_seconds=20, start_time_ns=NOW))
    server.faults.clear()


@settings(max_examples=50)
@given(st.lists(st.sets(st.integers(0, 60), min_size=1), min_size=1, max_size=12))
def test_the_schedule_asks_for_every_gap_sooner_or_later(missing: list[set[int]]) -> None:
    gaps = {f"w{index}": [(n, n) for n in sorted(numbers)] for index, numbers in enumerate(missing)}
    schedule, asked, now = GapSchedule(), set(), 0.0
    for _ in range(400):
        due = schedule.due(gaps, now)
        assert sum(map(len, due.values())) <= 20
        asked |= {(writer, stretch) for writer, stretches in due.items() for stretch in stretches}
        now += 60
    assert asked == {(writer, stretch) for writer, stretches in gaps.items() for stretch in stretches}


class Endless(LoopbackServer):
    """Sends page after page, as the test specifies."""

    def __init__(self, page: Callable[[int], dict[str, Any]]) -> None:
        self.page = page
        super().__init__()

    def handle(self, request: Request) -> Response:
        return json_response(self.page(len(self.requests)))


ENDLESS_PAGES: dict[str, Callable[[int], dict[str, Any]]] = {
    "one token": lambda number: {"entries": [ours(number, NOW + number)], "nextPageToken": "again"},
    "no entries": lambda number: {"nextPageToken": f"page {number}"},
    "the same entries": lambda number: {"entries": [ours(1, NOW)], "nextPageToken": f"page {number % 2}"},
}


def through(url: str) -> LoggingTransport:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": url}
    return make_transport(CloudEnvironment("test-project", AnonymousCredentials(), None, ""), environ)


@pytest.mark.parametrize("page", ENDLESS_PAGES.values(), ids=ENDLESS_PAGES.keys())
def test_pages_that_never_end_end_the_read(clock: Clock, page: Callable[[int], dict[str, Any]]) -> None:
    with Endless(page) as endless:
        transport = through(endless.url)
        with pytest.raises(TransportError, match=r"repeats|100 pages in a row had nothing new") as caught:
            list(reader(transport, clock, requests_per_minute=10**6, patience_seconds=0).read_new())
        transport.close()
        assert caught.value.code == "UNAVAILABLE"
        assert len(endless.requests) <= 102


def test_an_entry_that_cannot_be_decoded_is_counted_once(clock: Clock) -> None:
    page = {"entries": [ours(1, NOW), {**ours(2, NOW), "jsonPayload": None}, ours(3, NOW)]}
    with Endless(lambda number: page) as server:
        transport = through(server.url)
        lenient = reader(transport, clock)
        for entry in page["entries"]:
            entry["logName"] = "projects/test-project/logs/log"
        assert steps(lenient) == [1, 3]
        assert steps(lenient) == []
        transport.close()
    assert lenient.skipped.as_dict() == {"undecodable_entry": 1}
