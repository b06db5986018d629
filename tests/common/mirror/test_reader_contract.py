"""The contract of an `EntryReader`, for each source that a log can be read from: they return the same entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.cloud_logging import CloudLoggingReader, PageReader, connect
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.rollup import roll_up
from ml_diagnostics_common.reader import EntryReader, JournalReader, UnionReader
from ml_diagnostics_common.shipper._delivery import Delivery
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

from ..journals import LOG, Clock, new_journal, numbers, read_all
from .mirrors import flat, identities, journal_lines, objects, put

START_NS = 1_763_710_310_000_000_000


class Source:
    """A source of entries: the journal itself, or what it is copied to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self) -> None:
        """Copy what is new in the journal to the source."""

    def reader(self, position: Mapping[str, Any] | None = None) -> EntryReader:
        return JournalReader(LOG, root=self.root, position=position)


class MirrorSource(Source):
    """A mirror with objects of seven entries, at one of the levels."""

    def __init__(self, root: Path, mirror: str, *, is_rolled_up: bool) -> None:
        super().__init__(root)
        self.mirror, self._is_rolled_up = mirror, is_rolled_up
        self._done: dict[str, int] = {}

    def publish(self) -> None:
        for writer, (header, lines) in journal_lines(self.root).items():
            new = lines[self._done.get(writer, 0) :]
            self._done[writer] = len(lines)
            for start in range(0, len(new), 7):
                put(self.mirror, writer, header, new[start : start + 7])
        if self._is_rolled_up:
            self._roll_up()

    def _roll_up(self) -> None:
        by_writer: dict[str, list[SegmentName]] = {}
        for name in objects(self.mirror):
            if name.level == 0:
                by_writer.setdefault(name.writer, []).append(name)
        for names in by_writer.values():
            if len(names) > 1:
                names.sort(key=lambda name: name.first)
                assert roll_up(Bucket(self.mirror), LogPaths.of(self.mirror, LOG), names)

    def reader(self, position: Mapping[str, Any] | None = None) -> EntryReader:
        return MirrorReader(LOG, mirror=self.mirror, position=position, full_listing_seconds=0)


class UnionSource(MirrorSource):
    """The journal and its mirror."""

    def reader(self, position: Mapping[str, Any] | None = None) -> EntryReader:
        positions = position["readers"] if position is not None else [None, None]
        readers = [Source.reader(self, positions[0]), MirrorSource.reader(self, positions[1])]
        return UnionReader(readers, position=position)


class CloudSource(Source):
    """Cloud Logging, with what a shipper sends there."""

    def __init__(self, root: Path, server: CloudLoggingServer) -> None:
        super().__init__(root)
        self._transport = connect(environ=server.environment())
        self._delivery = Delivery(root, LOG, self._transport, Counters())

    def publish(self) -> None:
        self._delivery.run_round()

    def reader(self, position: Mapping[str, Any] | None = None) -> EntryReader:
        return CloudLoggingReader(PageReader(self._transport), LOG, position=position)

    def close(self) -> None:
        self._delivery.close()
        self._transport.close()


@pytest.fixture(params=["journal", "mirror", "rolled up", "bucket", "union", "cloud"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    if request.param == "cloud":
        with CloudLoggingServer() as server:
            cloud = CloudSource(root, server)
            yield cloud
            cloud.close()
        return
    if request.param == "bucket":
        request.getfixturevalue("cloud_storage_server")
    sources: dict[str, Source] = {
        "journal": Source(root),
        "mirror": MirrorSource(root, mirror, is_rolled_up=False),
        "rolled up": MirrorSource(root, mirror, is_rolled_up=True),
        "bucket": MirrorSource(root, "gs://bucket/m", is_rolled_up=True),
        "union": UnionSource(root, mirror, is_rolled_up=True),
    }
    yield sources[request.param]


def essentials(entries: list[LogEntry]) -> list[tuple[Any, ...]]:
    """Return the fields that are the same in every source: Cloud Logging adds a resource and a name."""
    return [
        (each.timestamp_ns, each.insert_id, each.payload, each.severity, each.context.labels, each.context.log_id)
        for each in entries
    ]


def two_writers(root: Path, clock: Clock) -> tuple[Journal, Journal]:
    first, second = new_journal(root, clock_ns=clock), new_journal(root, clock_ns=clock)
    first.append({"n": 0})
    second.append({"n": 1})
    return first, second


def test_a_log_that_does_not_exist_is_empty_until_something_is_recorded(source: Source) -> None:
    reader = source.reader()
    assert flat(reader.read_new()) == []
    new_journal(source.root).append({"n": 0})
    source.publish()
    assert numbers(flat(reader.read_new())) == [0]


def test_the_entries_are_those_of_the_journal_in_its_order(source: Source) -> None:
    clock = Clock()
    first, second = two_writers(source.root, clock)
    for n in range(2, 60):
        (first if n % 3 else second).append({"n": n, "text": 'é "\\\n\0', "nested": [{"x": 1.5}]})
        clock.advance(0.25)
    source.publish()
    assert essentials(flat(source.reader().read_new())) == essentials(read_all(source.root))


def test_each_entry_is_returned_once_as_it_arrives(source: Source) -> None:
    clock = Clock()
    first, second = two_writers(source.root, clock)
    reader, found = source.reader(), []
    for n in range(2, 40):
        (first if n % 2 else second).append({"n": n})
        clock.advance(700)  # Hours and a day pass.
        if n % 5 == 0:
            source.publish()
            new = flat(reader.read_new())
            assert new
            found += new
            assert flat(reader.read_new()) == []
    source.publish()
    found += flat(reader.read_new())
    assert sorted(identities(found)) == sorted(identities(read_all(source.root)))


def test_another_reader_goes_on_from_a_position(source: Source) -> None:
    clock = Clock()
    first, second = two_writers(source.root, clock)
    position: dict[str, Any] | None = None
    found = []
    for n in range(2, 30):
        (first if n % 2 else second).append({"n": n})
        clock.advance(1)
        if n % 4 == 0:
            source.publish()
            reader = source.reader(position)
            found += flat(reader.read_new())
            position = reader.position()
            assert flat(source.reader(position).read_new()) == []
    source.publish()
    found += flat(source.reader(position).read_new())
    assert sorted(identities(found)) == sorted(identities(read_all(source.root)))


def test_an_entry_that_is_late_is_returned_by_the_next_call(source: Source) -> None:
    clock = Clock()
    first, second = two_writers(source.root, clock)
    clock.advance(1)
    first.append({"n": 2})
    source.publish()
    reader = source.reader()
    assert numbers(flat(reader.read_new())) == [0, 1, 2]
    second.append({"n": 3}, timestamp_ns=START_NS - 2 * 10**9)
    second.append({"n": 4}, timestamp_ns=START_NS - 3 * 10**9)
    source.publish()
    assert numbers(flat(reader.read_new())) == [4, 3]


def test_a_reading_that_is_broken_off_loses_nothing(source: Source) -> None:
    clock = Clock()
    first, second = two_writers(source.root, clock)
    for n in range(2, 100):
        (first if n % 9 else second).append({"n": n})
        clock.advance(1)
    source.publish()
    reader = source.reader()
    before = next(reader.read_new())
    after = flat(source.reader(reader.position()).read_new())
    assert {*identities(before), *identities(after)} == {*identities(read_all(source.root))}
    assert len(after) < 100
