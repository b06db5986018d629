"""One thread refreshes the store: often while a page is open, rarely when none is, and never fails for good."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from ml_diagnostics_console._web.event_stream import MOST_TABS, EventStream, event_text
from ml_diagnostics_console._web.refreshing import Refreshing

from ...waiting import LONG_SECONDS


class _Store:
    """A store that counts reads, and changes on demand.

    Attributes:
        reads: The number of reads.
        failure: The error of the next reads.
    """

    def __init__(self) -> None:
        self.reads = self.version = 0
        self.failure: Exception | None = None
        self.is_changing = False
        self.asked: list[str] = []

    @property
    def cursor(self) -> str:
        return str(self.version)

    def refresh(self) -> None:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        self.version += self.is_changing

    def changes_since(self, cursor: str) -> Mapping[str, Any] | None:
        self.asked.append(cursor)
        if not cursor.isdecimal() or int(cursor) > self.version:
            return None
        return {"cursor": self.cursor, "changed": {"rows": [{"id": "a", "step": self.version}]}, "log": {"id": "a"}}


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_it_reads_at_once_and_then_again() -> None:
    store, notes = _Store(), list[str]()
    refreshing = Refreshing(store, notes.append, interval_seconds=0.01)
    refreshing.start()
    _wait(lambda: store.reads > 3)
    refreshing.stop(LONG_SECONDS)
    reads = store.reads
    time.sleep(0.05)
    assert (store.reads, notes) == (reads, [])


@pytest.mark.timing
def test_without_a_viewer_it_reads_rarely_and_at_once_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ml_diagnostics_console._web.refreshing._IDLE_AFTER_SECONDS", 0.0)
    store = _Store()
    refreshing = Refreshing(store, print, interval_seconds=0.01, idle_seconds=3600)
    refreshing.start()
    _wait(lambda: refreshing._read_at > float("-inf"))
    time.sleep(0.1)
    assert store.reads == 1
    started = time.monotonic()
    refreshing.freshen()
    assert store.reads >= 2
    assert time.monotonic() - started < 2
    refreshing.watch(1)
    before = store.reads
    _wait(lambda: store.reads > before + 3)
    refreshing.watch(-1)
    refreshing.stop()


def test_a_failure_is_reported_once_and_reading_goes_on() -> None:
    store, notes = _Store(), list[str]()
    store.failure = OSError("the folder is gone")
    refreshing = Refreshing(store, notes.append, interval_seconds=0.005)
    refreshing.start()
    _wait(lambda: store.reads > 5)
    assert notes == ["the runs could not be read: OSError: the folder is gone"]
    store.failure = None
    store.is_changing = True
    _wait(lambda: store.version > 2)
    refreshing.stop()
    assert len(notes) == 1


def test_listeners_are_called_after_changes_alone() -> None:
    store = _Store()
    called = threading.Event()
    refreshing = Refreshing(store, print, interval_seconds=0.005)
    refreshing.on_change(called.set)
    refreshing.start()
    _wait(lambda: store.reads > 3)
    assert not called.is_set()
    store.is_changing = True
    assert called.wait(LONG_SECONDS)
    refreshing.stop()


@pytest.mark.timing
def test_a_request_does_not_wait_for_a_read_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ml_diagnostics_console._web.refreshing._FIRST_WAIT_SECONDS", 0.05)
    hanging = threading.Event()
    store = _Store()
    monkeypatch.setattr(store, "refresh", lambda: hanging.wait(LONG_SECONDS) and None)
    refreshing = Refreshing(store, print, interval_seconds=0.01)
    refreshing.start()
    started = time.monotonic()
    refreshing.freshen()
    assert time.monotonic() - started < 1
    hanging.set()
    refreshing.stop()


def _parsed(chunk: bytes) -> list[tuple[str, Any, str]]:
    events = []
    for text in chunk.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in text.split("\n"))
        events.append((fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return events


def test_a_page_gets_what_changed_since_its_version() -> None:
    async def follow() -> list[list[tuple[str, Any, str]]]:
        store = _Store()
        stream = EventStream(store, lambda _: None)
        events = stream.events("0")
        found = [_parsed(await anext(events))]
        store.version = 3
        stream.wake()
        found.append(_parsed(await anext(events)))
        await events.aclose()
        return found

    hello, changed = asyncio.run(follow())
    assert [name for name, _, _ in hello] == ["hello"]
    assert [(name, identity) for name, _, identity in changed] == [("changed", ""), ("log", "3")]
    assert changed[0][1] == {"rows": [{"id": "a", "step": 3}]}


def test_an_unknown_version_is_a_reset() -> None:
    async def follow() -> list[tuple[str, Any, str]]:
        events = EventStream(_Store(), lambda _: None).events("unknown")
        found = _parsed(await anext(events))
        await events.aclose()
        return found

    assert [name for name, _, _ in asyncio.run(follow())] == ["hello", "reset"]


def test_a_quiet_stream_has_comments_and_ends_when_it_is_closed() -> None:
    watched: list[int] = []

    async def follow() -> list[bytes]:
        stream = EventStream(_Store(), watched.append, quiet_seconds=0.01)
        found = []
        async for chunk in stream.events(""):
            found.append(chunk)
            if len(found) == 3:
                stream.close()
        assert stream.open_pages == 0
        return found

    found = asyncio.run(follow())
    assert found[1:3] == [b": quiet\n\n"] * 2
    assert watched == [1, -1]


def test_pages_that_were_let_in_at_once_are_no_more_than_the_most() -> None:
    watched: list[int] = []

    async def follow() -> None:
        stream = EventStream(_Store(), watched.append)
        assert stream.has_capacity()
        pages = [stream.events("") for _ in range(3 * MOST_TABS)]  # Each was asked for before another one started.
        started = [await anext(page, b"") for page in pages]
        assert sum(text != b"" for text in started) == stream.open_pages == MOST_TABS
        for page in pages:
            await page.aclose()

    asyncio.run(follow())
    assert sum(watched) == 0


def test_pages_at_one_version_share_the_work() -> None:
    async def follow() -> int:
        store = _Store()
        stream = EventStream(store, lambda _: None)
        pages = [stream.events("0") for _ in range(MOST_TABS)]
        for page in pages:
            await anext(page)
        assert not stream.has_capacity()
        store.version = 1
        stream.wake()
        for page in pages:
            await anext(page)
        for page in pages:
            await page.aclose()
        assert stream.has_capacity()
        return len(store.asked)

    assert asyncio.run(follow()) == 1


def test_text_in_an_event_cannot_end_it() -> None:
    text = event_text("changed", {"name": "a\n\nevent: gone\ndata: {}\r\u2028"}, "1").decode()
    assert text.count("\n\n") == 1
    assert text.endswith("\n\n")
    assert "\r" not in text
