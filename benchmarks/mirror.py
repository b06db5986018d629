"""The mirror: what it costs a job, how large it is, how fast it is read, and what a poll of a running job costs.

Through Google's client, against a server on loopback in another process. The job has steps of a second, each with a
start and two marks of its data loading, written as recorders write them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import paired, process
from benchmarks.job import JOB, LOG
from benchmarks.results import Row, Table, seconds

_MIRROR = "gs://bucket/mirror"
_START_NS = 1_763_769_600_000_000_000
_STEP_NS = 1_003_141_593
_ENTRIES_A_SECOND = 10
_PACE_SECONDS = 30
_USUAL_PACE_SECONDS = 120
"""The pace of a job that is neither new nor watched."""
_PACKED_BYTES = 20
_REQUEST_SECONDS = 0.05


class _Job:
    """A job in a journal, on a clock that it moves itself."""

    def __init__(self) -> None:
        from ml_diagnostics_common.journal import Journal

        self.root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
        self.now_ns = _START_NS
        self.step = self.entries = 0
        labels = {"job": JOB, "process_index": "0"}
        self._journal = Journal(LOG, root=self.root, labels=labels, clock_ns=lambda: self.now_ns, segment_bytes=2**31)

    def run(self, entries: int) -> None:
        """Record some entries."""
        for _ in range(entries):
            self.now_ns += _STEP_NS // 3 + self.entries * 7_919 % 1_000_003
            now = str(self.now_ns)
            moment = f"{now[:-9]}.{now[-9:]}"
            kind = self.entries % 3
            text = f'"step_count":{self.step},"step_start_time"' if kind == 2 else _LOADS[kind]
            self._journal.append_text(now, f'{{"job_name":"{JOB}",{text}:{moment}}}')
            self.entries += 1
            self.step += kind == 2


_LOADS = ('"data_loading_start_time"', '"data_loading_end_time"')


def _round(job: _Job, mirror: str = _MIRROR) -> Any:
    from ml_diagnostics_common.guard import Counters
    from ml_diagnostics_common.journal import log_folder_name
    from ml_diagnostics_common.mirror._bucket import Bucket
    from ml_diagnostics_common.mirror._round import MirrorRound

    return MirrorRound(Bucket(mirror), job.root, {log_folder_name(LOG)}, Counters())


def written(mirror: str, objects: int, large_entries: int) -> dict[str, float]:
    """Write objects of each pace, and of 4 MB.

    Returns:
        CPU seconds: of an object by its pace in seconds, of the storage alone for one as large ("alone"), and of an
        entry in objects of 4 MB.
    """
    from ml_diagnostics_common.guard import Counters
    from ml_diagnostics_common.journal import JournalPosition, list_segments
    from ml_diagnostics_common.mirror._journal_lines import JournalLines
    from ml_diagnostics_common.mirror.segments import encode_segment

    job = _Job()
    mirror = mirror or str(job.root / "mirror")
    round_ = _round(job, mirror)
    job.run(1)
    round_.write_own(deadline=lambda: 1e18)  # Connects.
    costs: dict[str, float] = {}
    for pace in (_PACE_SECONDS, _USUAL_PACE_SECONDS):
        spent, alone = [], []
        for number in range(objects):
            job.run(_ENTRIES_A_SECOND * pace)
            spent.append(_cpu(lambda: round_.write_own(deadline=lambda: 1e18)))
            data = os.urandom(_PACKED_BYTES * _ENTRIES_A_SECOND * pace)
            alone.append(_cpu(functools.partial(_create, f"{mirror}/alone/{pace}-{number}", data)))
        costs |= {f"{pace}": statistics.median(spent), f"alone {pace}": statistics.median(alone)}
    job.run(large_entries)
    (segment,) = list_segments(job.root / "journal" / LOG)
    lines = JournalLines(segment.writer, job.root / "journal" / LOG, Counters())
    position, entries = JournalPosition(0, 0), 0
    started = time.process_time()
    while (found := lines.next([segment], position, most_bytes=4 * 10**6, ended=True)) is not None:
        encode_segment(found.header, found.text, 0)
        position, entries = found.end, entries + found.entries
    return {**costs, "entry": (time.process_time() - started) / entries}


def _create(path: str, data: bytes) -> None:
    from ml_diagnostics_common.storage import storage_for

    storage_for(path).write(path, data, if_generation=0)


def read(entries: int, ticks: int) -> dict[str, Any]:
    """Write a job with its hours rolled up; return sizes, and the cost of reading it, at first and again."""
    from ml_diagnostics_common.mirror.names import SegmentName, parse_name
    from ml_diagnostics_common.mirror.reader import MirrorReader
    from ml_diagnostics_common.reader import JournalReader
    from ml_diagnostics_common.storage import storage_for

    job = _Job()
    folder = str(job.root / "mirror")
    round_ = _round(job, folder)
    sizes: dict[int, list[float]] = {0: [], 1: []}
    while job.entries < entries:
        job.run(90)
        assert round_.write_own(deadline=lambda: 1e18)
        round_.maintain(deadline=lambda: 1e18, pause=lambda cpu_seconds: None)
    for path in Path(folder).rglob("*.gz"):
        name = parse_name(str(path))
        assert isinstance(name, SegmentName)
        sizes[name.level].append(path.stat().st_size / (name.last - name.first + 1))
        storage_for(_MIRROR).write(f"{_MIRROR}{str(path).removeprefix(folder)}", path.read_bytes())
    cold, slow = (_read_all(MirrorReader(LOG, mirror=_MIRROR, storage=storage)) for storage in (None, _Slow()))
    journal = _read_all(JournalReader(LOG, root=job.root))
    assert cold["entries"] == slow["entries"] == journal["entries"] == job.entries
    reader = MirrorReader(LOG, mirror=_MIRROR)
    for _ in reader.read_new():
        pass
    requests = _Slow()
    reader._bucket.storage = requests
    idle = _cpu(lambda: [list(reader.read_new()) for _ in range(ticks)]) / ticks
    idle_requests = requests.requests / ticks
    round_.release()
    round_ = _round(job)
    new = []
    for _ in range(ticks):
        job.run(90)
        round_.write_own(deadline=lambda: 1e18)
        new.append(_cpu(lambda: list(reader.read_new())))
    return {
        "sizes": {level: statistics.median(each) for level, each in sizes.items()},
        "objects": len(sizes[0]) + len(sizes[1]),
        "cold": cold,
        "slow": slow,
        "journal": journal,
        "idle": idle,
        "idle_requests": idle_requests,
        "new": statistics.median(new),
    }


class _Slow:
    """Cloud Storage with requests of 50 ms at least."""

    def __init__(self) -> None:
        from ml_diagnostics_common.storage import storage_for

        self.requests = 0
        self._storage = storage_for(_MIRROR)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.requests += 1
            time.sleep(_REQUEST_SECONDS)
            return method(*arguments, **options)

        return call


def _read_all(reader: Any) -> dict[str, float]:
    started, cpu_started = time.perf_counter(), time.process_time()
    entries = sum(map(len, reader.read_new()))
    return {
        "entries": entries,
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - cpu_started,
    }


def _cpu(call: Any) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def record(rounds: int, steps: int) -> dict[str, Any]:
    """Record in turns without the mirror's thread and beside it: see `paired.in_turns`."""
    from ml_diagnostics_common.mirror.writer import Mirror
    from ml_goodput_measurement import goodput

    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    folder = root / "mirror"

    @contextlib.contextmanager
    def mirrored() -> Iterator[None]:
        mirror = Mirror(str(folder), root=root, seconds=0.5, start_seconds=0.05)
        mirror.add(LOG)
        yield
        mirror.close(5.0)

    def size() -> int:
        return sum(1 for _ in folder.rglob("*.gz"))

    trainer = _Trainer(goodput.GoodputRecorder(JOB, LOG, logging_enabled=True))
    return paired.in_turns(trainer, mirrored, size, rounds=rounds, steps=steps)


class _Trainer(paired.Trainer):
    """Record a step after a pause."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._record = recorder.record_step_start_time
        recorder.record_job_start_time()

    def steps(self, count: int) -> list[paired.Times]:
        times = []
        for _ in range(count):
            time.sleep(0.001)
            times.append(self._one())
        return times

    def do(self, step: int) -> None:
        self._record(step)


def _rows_of_small_objects(where: str, cost: dict[str, float]) -> list[Row]:
    rows = []
    for pace in (_PACE_SECONDS, _USUAL_PACE_SECONDS):
        entry = cost[f"{pace}"] / (_ENTRIES_A_SECOND * pace)
        what = "a job that is neither new nor watched" if pace == _USUAL_PACE_SECONDS else "a new or watched job"
        rows += [
            Row(
                f"an object of {pace} s, in {where}",
                seconds(cost[f"{pace}"]),
                f"the storage alone {seconds(cost[f'alone {pace}'])}",
            ),
            Row(f"an entry of it: {what}", seconds(entry), "", "", "<= 3 µs", entry <= 3e-6),
        ]
    return rows


def measure(*, quick: bool) -> list[Table]:
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer

    entries = 100_000 if quick else 1_000_000
    with CloudStorageServer(buckets=["bucket"]) as server:
        environment = server.environment()
        count = 20 if quick else 200
        cost, folder = (
            process.ours(written, environment=environment, mirror=path, objects=count, large_entries=entries // 5)
            for path in ("gs://bucket/written", "")
        )
        found = process.ours(read, environment=environment, entries=entries, ticks=5 if quick else 20)
    turns = process.ours(record, rounds=3 if quick else 12, steps=300 if quick else 1_000)
    share = cost[f"{_PACE_SECONDS}"] / _PACE_SECONDS
    million = 1e6 / entries
    cold, slow, journal = found["cold"], found["slow"], found["journal"]
    note = (
        f"A mirror in a bucket on loopback, through Google's client; {entries:,} entries in {found['objects']} "
        "objects. The targets are those of a prototype without Google's client, in CPU seconds."
    )
    rows = [
        Row(
            "an entry, in objects of 4 MB",
            seconds(cost["entry"]),
            "prototype 0.5 to 1.9 µs",
            "",
            "<= 3 µs",
            cost["entry"] <= 3e-6,
        ),
        *_rows_of_small_objects("a bucket", cost),
        *_rows_of_small_objects("a folder", folder),
        Row(
            f"share of a core, at {_ENTRIES_A_SECOND} entries a second",
            f"{share:.4%}",
            "",
            "",
            "<= 0.1 %",
            share <= 0.001,
        ),
        Row(
            "bytes of an entry, in objects of 90",
            f"{found['sizes']['0']:.1f}",
            "prototype 20.8",
            "",
            "<= 24",
            found["sizes"]["0"] <= 24,
        ),
        Row(
            "bytes of an entry, in objects of an hour",
            f"{found['sizes']['1']:.1f}",
            "prototype 15.8",
            "",
            "<= 18",
            found["sizes"]["1"] <= 18,
        ),
        Row(
            "a million entries, read for the first time, CPU",
            seconds(cold["cpu"] * million),
            f"from the journal {seconds(journal['cpu'] * million)}",
            f"{cold['cpu'] / journal['cpu']:.1f} times the journal's",
            "<= 5 s",
            cold["cpu"] * million <= 5,
        ),
        Row(
            "the same with 50 ms a request, wall time",
            seconds(slow["wall"] * million),
            "",
            "",
            "<= 10 s",
            slow["wall"] * million <= 10,
        ),
        Row(
            "read again, nothing new, CPU",
            seconds(found["idle"]),
            f"requests: {found['idle_requests']:.0f}",
            "",
            "<= 10 ms and 2 requests",
            found["idle"] <= 0.01 and found["idle_requests"] <= 2,
        ),
        Row("read again, 90 new entries, CPU", seconds(found["new"]), "", "", "<= 20 ms", found["new"] <= 0.02),
    ]
    paired_note = "A recording call, by turns without a mirror and beside one that writes each half second."
    return [
        Table("Mirror", note, rows),
        Table("Recording beside a mirror", paired_note, paired.step_time_rows(turns["times"])),
    ]
