"""A synthetic job: its attempts, failures and events, from a seed and an index.

It is the same as a table of events and as segments of a mirror.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ml_diagnostics_fleet.schemas import EVENTS, JobKey

__all__ = ["HOUR_US", "SECOND_US", "Failure", "SyntheticJob", "job_name"]

SECOND_US: Final = 1_000_000
HOUR_US: Final = 3600 * SECOND_US
"""Times are in microseconds here, which is what a payload can hold."""
_FIRST_SEQUENCE = 100_000_000_000
_LEMON_FACTOR = 8
_EVALUATE_EVERY = 1000
_MOST_ATTEMPTS = 100
_NEVER = 2**60

_KINDS = (
    "load_start",
    "load_end",
    "step_start",
    "job_start",
    "job_end",
    "init_start",
    "init_end",
    "prep_start",
    "prep_end",
    "custom_start",
    "custom_end",
    "save",
    "restore",
)
_CODE = {kind: code for code, kind in enumerate(_KINDS)}
_LABELS = ("EVAL", "persistent")
_NONE = -1

_Integers = npt.NDArray[np.int64]


class Failure(NamedTuple):
    """The end of an attempt."""

    attempt: int
    """Number of the attempt, from 1."""
    disruption: int
    """Number of the disruption, from 1; 0 for an attempt without a step, which is part of the one before."""
    host: str
    """The host that failed."""


class _Columns(NamedTuple):
    """Events as columns; -1 is null."""

    at: _Integers
    kind: _Integers
    step: _Integers
    duration: _Integers
    label: _Integers
    process: _Integers

    @classmethod
    def of(cls, rows: Sequence[tuple[int, str, int, int, str]], process: int = 0) -> _Columns:
        """Return the columns of a few events: time, kind, step, duration, label."""
        at = [row[0] for row in rows]
        kind = [_CODE[row[1]] for row in rows]
        label = [_LABELS.index(row[4]) if row[4] else _NONE for row in rows]
        columns = (at, kind, [row[2] for row in rows], [row[3] for row in rows], label, [process] * len(rows))
        return cls(*(np.array(column, np.int64) for column in columns))


def _joined(parts: Sequence[_Columns]) -> _Columns:
    return _Columns(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def job_name(index: int) -> str:
    """Return the name of a job by its index."""
    return f"run-{index:05d}"


@dataclass(frozen=True, slots=True)
class SyntheticJob:
    """A job of a synthetic fleet; its events are made when they are asked for."""

    index: int
    seed: int
    team: str
    owner: str
    region: str
    zone: str
    accelerator: str
    topology: str
    chips: int
    spot: bool
    hosts: tuple[str, ...]
    lemon: str
    """The host that fails often, wherever it is."""
    events: int
    """About as many events."""
    step_us: int
    save_every: int
    save_us: int
    host_rate: float
    """Failures of a host in an hour."""
    end: str
    """`ended`, `running` or `killed`."""
    end_us: int
    """The time of its last event."""
    all_hosts: bool
    """True if every host reports the saves, as with Orbax."""

    @property
    def key(self) -> JobKey:
        """The job's key."""
        return JobKey(f"goodput_{job_name(self.index)}", job_name(self.index))

    def table(self) -> pa.Table:
        """Return its events, in order."""
        return self._made()[0]

    def failures(self) -> list[Failure]:
        """Return the ends of its attempts that were failures."""
        return self._made()[1]

    def labels(self, process: int, attempt: int) -> dict[str, str]:
        """Return the labels of a writer's entries but for job, host and process index."""
        name = job_name(self.index)
        known = {"attempt": str(attempt), "chips": str(self.chips), "pid": str(100 + process), "run": name}
        return {**known, "team": self.team}

    def writer(self, process: int, attempt: int) -> str:
        """Return the name of a writer."""
        return f"{self.hosts[process]}-{100 + process}-{self.index:05d}{attempt:04d}"

    def _made(self) -> tuple[pa.Table, list[Failure]]:
        random = np.random.default_rng([self.seed, self.index])
        attempts, failures = self._attempts(random)
        shift = self.end_us - max(int((one.at + np.maximum(one.duration, 0)).max()) for one in attempts)
        columns = _joined([one._replace(at=one.at + shift) for one in attempts])
        number = np.repeat(np.arange(len(attempts)), [len(one.at) for one in attempts])
        return self._as_table(columns, number, random), failures

    def _attempts(self, random: np.random.Generator) -> tuple[list[_Columns], list[Failure]]:
        rates = np.array([self.host_rate * (_LEMON_FACTOR if host == self.lemon else 1) for host in self.hosts])
        made, failures = list[_Columns](), list[Failure]()
        now = step = count = disruptions = 0
        while True:
            lasts = int(random.exponential(1 / rates.sum()) * HOUR_US) if len(made) < _MOST_ATTEMPTS else _NEVER
            head, ready = self._start(random, now, step)
            wanted = max(1, (self.events - count) // 3)
            body, saved, fails = self._steps(random, ready, step, wanted, now + lasts)
            columns = [head, body]
            last = int(body.at.max()) if len(body.at) else ready
            if not fails and self.end == "ended":
                last += int(random.integers(SECOND_US, 5 * SECOND_US))
                columns.append(_Columns.of([(last, "job_end", _NONE, _NONE, "")]))
            attempt = _joined(columns)
            made.append(self._on_all_hosts(random, attempt) if self.all_hosts else attempt)
            count += len(attempt.at)
            if not fails:
                return made, failures
            has_steps = bool((body.kind == _CODE["step_start"]).any())
            disruptions += has_steps
            host = self.hosts[int(random.choice(len(rates), p=rates / rates.sum()))]
            failures.append(Failure(len(made), disruptions if has_steps else 0, host))
            step = saved
            now = max(now + lasts, last) + int(random.uniform(60, 400) * SECOND_US)

    def _start(self, random: np.random.Generator, now: int, step: int) -> tuple[_Columns, int]:
        """Return the events before the first step of an attempt, and when they are over."""
        lengths = [int(seconds * SECOND_US) for seconds in random.uniform((15, 8, 10), (60, 30, 40))]
        rows = [(now, "job_start", _NONE, _NONE, "")]
        moment = now + SECOND_US
        for kind, length in zip(("init", "prep"), lengths, strict=False):
            rows += [(moment, f"{kind}_start", _NONE, _NONE, ""), (moment + length, f"{kind}_end", _NONE, _NONE, "")]
            moment += length + 1000
        if step:
            rows.append((moment, "restore", step - 1, lengths[2], "persistent"))
            moment += lengths[2]
        return _Columns.of(rows), moment + 1000

    def _steps(
        self, random: np.random.Generator, ready: int, first: int, wanted: int, fails_at: int
    ) -> tuple[_Columns, int, bool]:
        """Return the events of an attempt's steps, the step at which the next one resumes, and True if it fails."""
        count = min(wanted, max(1, (fails_at - ready) // (self.step_us * 9 // 10) + 2))
        length = (self.step_us * np.clip(random.normal(1, 0.02, count), 0.9, 2)).astype(np.int64)
        length[0] *= int(random.integers(5, 20))  # It compiles.
        load = (self.step_us * random.uniform(0.005, 0.02, count)).astype(np.int64)
        numbers = first + np.arange(count)
        saves, evaluates = (numbers + 1) % self.save_every == 0, (numbers + 1) % _EVALUATE_EVERY == 0
        save = (saves * self.save_us * random.uniform(0.8, 1.3, count)).astype(np.int64)
        evaluation = evaluates * 20 * self.step_us
        period = load + length + save + evaluation + 100
        starts = ready + np.cumsum(period) - period
        step_starts = starts + load + 50
        step_ends = step_starts + length
        each = np.full(count, _NONE)
        zero = np.zeros(count, np.int64)
        parts = [
            _Columns(starts, zero + _CODE["load_start"], each, each, each, zero),
            _Columns(starts + load, zero + _CODE["load_end"], each, each, each, zero),
            _Columns(step_starts, zero + _CODE["step_start"], numbers, each, each, zero),
        ]
        rare = [
            (int(step_ends[index]), "save", int(numbers[index]), int(save[index]), "persistent")
            for index in np.flatnonzero(saves)
        ]
        for index in np.flatnonzero(evaluates):
            since = int(step_ends[index] + save[index])
            rare.append((since, "custom_start", _NONE, _NONE, "EVAL"))
            rare.append((since + int(evaluation[index]), "custom_end", _NONE, _NONE, "EVAL"))
        columns = _joined([*parts, _Columns.of(rare)])
        fails = int(step_ends[-1]) > fails_at
        if fails:
            over = columns.at + np.maximum(columns.duration, 0) <= fails_at
            columns = _Columns(*(column[over] for column in columns))
        done = columns.step[columns.kind == _CODE["save"]]
        return columns, int(done.max()) + 1 if len(done) else first, fails

    def _on_all_hosts(self, random: np.random.Generator, columns: _Columns) -> _Columns:
        """Add the saves and restores of the other hosts."""
        mine = np.isin(columns.kind, [_CODE["save"], _CODE["restore"]])
        parts = [columns]
        for process in range(1, len(self.hosts)):
            others = _Columns(*(column[mine] for column in columns))
            late = random.integers(0, 20_000, len(others.at))
            shorter = others.duration * 99 // 100
            parts.append(others._replace(at=others.at + late, duration=shorter, process=others.process + process))
        return _joined(parts)

    def _as_table(self, columns: _Columns, attempt: _Integers, random: np.random.Generator) -> pa.Table:
        recorded = (columns.at + np.maximum(columns.duration, 0)) * 1000
        recorded += random.integers(2_000, 30_000, len(recorded))  # A call takes microseconds.
        writer = attempt * len(self.hosts) + columns.process
        order = np.lexsort((columns.kind, recorded, writer))
        ordered = writer[order]
        firsts = np.searchsorted(ordered, ordered)
        sequence = np.empty(len(order), np.int64)
        sequence[order] = _FIRST_SEQUENCE + np.arange(len(order)) - firsts
        identities = [
            self.writer(number % len(self.hosts), number // len(self.hosts)) for number in range(writer.max() + 1)
        ]
        ranks = np.argsort(np.argsort(identities))
        order = np.lexsort((sequence, ranks[writer], recorded))
        columns = _Columns(*(column[order] for column in columns))
        writer, process = writer[order], columns.process
        texts = [
            json.dumps(dict(sorted(self.labels(number % len(self.hosts), number // len(self.hosts)).items())))
            for number in range(len(identities))
        ]
        log, job = self.key
        count = len(order)
        zeros = np.zeros(count, np.int32)
        values = {
            "log": _dictionary(zeros, [log]),
            "job": _dictionary(zeros, [job]),
            "process_index": pa.array(process.astype(np.int32)),
            "writer": _dictionary(writer, identities),
            "seq": pa.array(sequence[order]),
            "host": _dictionary(process, list(self.hosts)),
            "labels": _dictionary(writer, texts),
            "t_ns": pa.array(recorded[order]),
            "kind": _dictionary(columns.kind, list(_KINDS)),
            "at_ns": pa.array(columns.at * 1000),
            "step": pa.array(columns.step, mask=columns.step < 0),
            "duration_ns": pa.array(columns.duration * 1000, mask=columns.duration < 0),
            "label": _dictionary(columns.label, list(_LABELS), mask=columns.label < 0),
        }
        nothing = {name: pa.nulls(count, EVENTS.field(name).type) for name in EVENTS.names if name not in values}
        values |= nothing
        return pa.table([values[name] for name in EVENTS.names], schema=EVENTS)


def _dictionary(codes: npt.NDArray[Any], texts: list[str], mask: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    indices = pa.array(codes.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))
