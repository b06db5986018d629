"""Generated lives of jobs, for tests of properties of any life."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from ml_goodput_measurement._ledger import Ledger
from ml_goodput_measurement._ledger.events import read_events
from ml_goodput_measurement._ledger.facts import SIZES, Sizes

from .histories import JOB, History, Payload

_SLOW_FACTOR = 30


def thorough(max_examples: int) -> settings:
    """Return the settings of a test of all lives: the same examples in each run, and 30 times as many new ones in
    `nox -s slow`.
    """
    factor = 1 if settings.default.derandomize else _SLOW_FACTOR
    unhurried = [HealthCheck.too_slow]
    return settings(max_examples=factor * max_examples, deadline=None, suppress_health_check=unhurried)


short = st.sampled_from([0, 0, 0.25, 1, 3])
length = st.sampled_from([0.5, 1, 1, 1, 1.25, 2, 7])


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Payload], float]:
    """Return the entries of a job's life, in order of recording, and the second of the query."""
    job = History()
    now, done = 0.0, 0
    for _ in range(draw(st.integers(1, 4))):
        now, done = live_one_attempt(draw, job, now, done)
    for _ in range(draw(st.integers(0, 4))):
        lay_over(draw, job, now)
    kept = [entry for entry in job.payloads if draw(st.integers(0, 29))]
    return kept, now + draw(st.sampled_from([0, 0.5, 20]))


def live_one_attempt(draw: st.DrawFn, job: History, now: float, done: int) -> tuple[float, int]:
    """Record one attempt from `now` on, after `done` steps; return its last moment and the steps done."""
    if draw(st.integers(0, 5)):
        job.start(now)
    for record in (job.init, job.prepare):
        if draw(st.booleans()):
            job_length = draw(length)
            record(now, now + job_length)
            now += job_length
    if done and draw(st.booleans()):
        job.restore(done, now, now + 1)
        now += 1
    now += draw(short)
    number = draw(st.sampled_from([done, done, max(0, done - 1), max(0, done - 3), 0]))
    loads = draw(st.booleans())
    ends = draw(st.integers(0, 3)) == 0
    waits = draw(st.booleans())
    pause = draw(st.sampled_from([0, 0, 0.25]))
    for _ in range(draw(st.integers(0, 7))):
        if loads:
            load_length = draw(st.sampled_from([0.25, 0.25, 1]))
            if waits:
                job.load_after(number - 1, now, now + load_length)
            else:
                now += pause
                job.load(now, now + load_length)
            now += load_length + pause
        job.step(number, now)
        step_length = draw(length)
        if draw(st.integers(0, 4)) == 0:
            for host in range(draw(st.integers(1, 3))):
                job.save(number, now + host * 0.25, now + draw(length), draw(st.sampled_from(["gs://b", "/local"])))
        now += step_length
        if ends or draw(st.integers(0, 9)) == 0:
            job.step_end(number, now - draw(st.sampled_from([0, 0.25])))
        number += draw(st.sampled_from([1, 1, 1, 1, 1, 2]))
    if draw(st.integers(0, 3)) == 0:
        job.end(now)
    return now + draw(st.sampled_from([0.25, 3, 40])), number


def lay_over(draw: st.DrawFn, job: History, now: float) -> None:
    """Record an activity at any time, which may overlap others."""
    first = draw(st.integers(0, int(now * 4))) / 4
    last = first + draw(st.sampled_from([0, 0.25, 1, 5, 30]))
    kind = draw(st.sampled_from(["eval", "Eval", "sdc", "slice_down", "scale_up", "reinit", "init", "load"]))
    if kind in ("slice_down", "scale_up"):
        job.wait(first, last, kind)
    elif kind == "reinit":
        job.reinitialize(first, last)
    elif kind == "init":
        job.init(first, last)
    elif kind == "load":
        job.load(first, last)
    else:
        job.custom(first, last, kind)


def columns_of(shapes: Iterable[Sequence[Any]], parts: Iterable[Any]) -> list[array[Any]]:
    """Return the columns of a state as another process reads them: it knows only their types and lengths."""
    data, columns = b"".join(parts), []
    for kind, length in shapes:
        columns.append(array(kind, data[: 8 * length]))
        data = data[8 * length :]
    assert not data
    return columns


def ledger_of(payloads: Iterable[Payload], sizes: Sizes = SIZES) -> Ledger:
    ledger = Ledger(sizes)
    deliver(ledger, payloads)
    return ledger


def deliver(ledger: Ledger, payloads: Iterable[Payload]) -> None:
    skipped: Counter[str] = Counter()
    ledger.add(read_events(payloads, JOB, skipped))
    assert not skipped
