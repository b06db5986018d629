"""The tables of a fleet: events, and the four tables of rows. All numbers are integers; no column is a float."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa

__all__ = [
    "DICTIONARIES",
    "DIMENSIONS",
    "EVENTS",
    "GROUPS",
    "TABLES",
    "JobKey",
    "group_of",
]


class JobKey(NamedTuple):
    """Identifies a job of a fleet."""

    log: str
    """The logger's name."""
    job: str


GROUPS: Final = 256


def group_of(key: JobKey) -> str:
    """Return the group of a job: the first two hex digits of a hash of its key. A file of events has one group."""
    return hashlib.sha256(f"{key.log}\0{key.job}".encode(errors="surrogatepass")).hexdigest()[:2]


_text = pa.dictionary(pa.int32(), pa.string())

EVENTS: Final = pa.schema(
    [
        pa.field("log", _text, nullable=False),
        pa.field("job", _text, nullable=False),
        pa.field("process_index", pa.int32(), nullable=False),
        pa.field("writer", _text, nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("host", _text, nullable=False),
        pa.field("labels", _text, nullable=False),
        pa.field("t_ns", pa.int64(), nullable=False),
        pa.field("kind", _text, nullable=False),
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("step", pa.int64()),
        pa.field("duration_ns", pa.int64()),
        pa.field("label", _text),
        pa.field("active", pa.int32()),
        pa.field("total", pa.int32()),
        pa.field("available", pa.int32()),
        pa.field("payload", pa.string()),
    ]
)
"""An event is an entry of a log; `(writer, seq)` identifies it. `labels` is a JSON object: all other labels of its
writer, such as `attempt`, `pid`, `team` and `chips`. The columns from `kind` on are those of
`ml_goodput_measurement.reading.EventRow`."""

DICTIONARIES: Final = [field.name for field in EVENTS if pa.types.is_dictionary(field.type)]

_KEY: Final = [pa.field("log", pa.string(), nullable=False), pa.field("job", pa.string(), nullable=False)]


def _integers(names: str, *, nullable: bool = False) -> list[pa.Field]:
    return [pa.field(name, pa.int64(), nullable=nullable) for name in names.split()]


def _texts(names: str, *, nullable: bool = False) -> list[pa.Field]:
    return [pa.field(name, pa.string(), nullable=nullable) for name in names.split()]


TABLES: Final[Mapping[str, pa.Schema]] = {
    "ledger_rows": pa.schema(
        [
            *_KEY,
            pa.field("attempt", pa.int32(), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            *_texts("bucket label"),
            *_integers("ns as_of_ns"),
            *_texts("rules"),
        ]
    ),
    "jobs": pa.schema(
        [
            *_KEY,
            *_integers("start_ns end_ns", nullable=True),
            pa.field("running", pa.bool_(), nullable=False),
            *_integers("last_step steps_kept disruptions attempts estimated_ns data_loading_async_ns saves"),
            *_integers("entries skipped lost missing open_writers"),
            *_texts("labels"),
            *_integers("as_of_ns"),
            *_texts("rules"),
        ]
    ),
    "attempts": pa.schema(
        [
            *_KEY,
            pa.field("attempt", pa.int32(), nullable=False),
            *_integers("start_ns end_ns"),
            *_texts("ended"),
            *_integers("first_step last_step first_step_ns", nullable=True),
            *_integers("steps_kept steps_lost"),
            pa.field("hosts", pa.list_(pa.string()), nullable=False),
            *_integers("chips", nullable=True),
        ]
    ),
    "disruptions": pa.schema(
        [
            *_KEY,
            pa.field("number", pa.int32(), nullable=False),
            pa.field("attempt", pa.int32(), nullable=False),
            *_integers("last_event_ns resumed_ns"),
            *_integers("infrastructure_ns init_ns restore_ns data_loading_ns startup_ns recompute_ns"),
            *_integers("failed_attempts steps_lost"),
            *_texts("cause cause_host confidence", nullable=True),
        ]
    ),
}
"""Rows of a run over the fleet, by table.

`ledger_rows` is unique by all but `ns`, and sums over a job to its wall time. In `jobs`, times are null for a job of
which no time is known, `missing` counts entries that its writers numbered and that did not arrive, `open_writers` the
writers without a recorded end, `labels` is a JSON object, and `rules` is `error: ...` if the job's map failed.
"""

DIMENSIONS: Final[Mapping[str, pa.Schema]] = {
    "jobs": pa.schema(
        [
            *_KEY,
            *_integers("valid_from_ns valid_to_ns"),
            *_texts("team owner project region zone cluster accelerator topology", nullable=True),
            pa.field("chips", pa.int32()),
            pa.field("spot", pa.bool_()),
            *_texts("labels_json", nullable=True),
        ]
    ),
    "prices": pa.schema(
        [
            *_texts("accelerator zone"),
            pa.field("spot", pa.bool_(), nullable=False),
            *_integers("valid_from_ns valid_to_ns micro_per_chip_hour"),
            *_texts("currency"),
        ]
    ),
    "causes": pa.schema(
        [
            *_KEY,
            pa.field("number", pa.int32(), nullable=False),
            *_texts("cause"),
            *_texts("cause_host", nullable=True),
            *_texts("confidence"),
            *_integers("last_event_ns", nullable=True),
            *_texts("judged_by", nullable=True),
        ]
    ),
    "hosts": pa.schema(
        [
            *_KEY,
            pa.field("attempt", pa.int32(), nullable=False),
            *_integers("start_ns"),
            pa.field("hosts", pa.list_(pa.string()), nullable=False),
        ]
    ),
}
"""Tables that others write, `v1/dimensions/<table>.parquet`; each is optional.

Of `jobs` and `prices` the rows of one key have disjoint times, half-open. `causes` has the causes of disruptions, by
their numbers, and `hosts` the hosts of attempts that recorded no goodput themselves: an engine joins both to its rows.
`goodput fleet causes` writes these two. A row of it counts only while that number has the same `last_event_ns`, and
that attempt the same `start_ns`: late entries may change numbers. Rows without `judged_by` are of others.
"""
