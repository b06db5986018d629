"""The buckets for people: their names, order, keys and colors, and their shares in the columns of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ml_goodput_measurement.partition import Bucket, Piece

__all__ = ["BUCKET_KEYS", "BUCKET_NAMES", "COLORS", "TimeByBucket", "column_shares"]

BUCKET_NAMES = {
    Bucket.PRODUCTIVE: "productive",
    Bucket.WASTED_PROGRESS: "wasted progress",
    Bucket.INFRASTRUCTURE_RECOVERY: "infrastructure recovery",
    Bucket.TPU_INITIALIZATION: "device initialization",
    Bucket.TRAINING_PREP: "training preparation",
    Bucket.DATA_LOADING_SYNC: "data loading",
    Bucket.PROGRAM_STARTUP: "program startup",
    Bucket.CHECKPOINT_RESTORE: "checkpoint restore",
    Bucket.CHECKPOINT_SAVE: "checkpoint save",
    Bucket.ELASTIC_SLICE_DOWN: "elastic: slice down",
    Bucket.ELASTIC_SCALE_UP: "elastic: scale up",
    Bucket.ELASTIC_REINITIALIZATION: "elastic: reinitialization",
    Bucket.CUSTOM: "custom events",
    Bucket.IN_FLIGHT: "step in flight",
    Bucket.UNKNOWN: "unknown",
    Bucket.EXCLUDED: "excluded",
}
"""The names of the buckets for people, in the order of their rows: first good time, last time that does not count."""

BUCKET_KEYS = {bucket: bucket.name.lower() for bucket in BUCKET_NAMES}
"""Short names for programs, such as pages and style sheets: `productive`, `wasted_progress`; in the same order."""

COLORS = {
    Bucket.PRODUCTIVE: "#44aa99",
    Bucket.WASTED_PROGRESS: "#882255",
    Bucket.INFRASTRUCTURE_RECOVERY: "#cc6677",
    Bucket.TPU_INITIALIZATION: "#aa4499",
    Bucket.TRAINING_PREP: "#999933",
    Bucket.DATA_LOADING_SYNC: "#117733",
    Bucket.PROGRAM_STARTUP: "#ddcc77",
    Bucket.CHECKPOINT_RESTORE: "#332288",
    Bucket.CHECKPOINT_SAVE: "#88ccee",
    Bucket.ELASTIC_SLICE_DOWN: "#271b14",
    Bucket.ELASTIC_SCALE_UP: "#9f3514",
    Bucket.ELASTIC_REINITIALIZATION: "#c9a27f",
    Bucket.CUSTOM: "#f9a81f",
    Bucket.EXCLUDED: "#ffffff",  # hatched
    Bucket.IN_FLIGHT: "#b5f0c8",
    Bucket.UNKNOWN: "#dddddd",
}
"""After Paul Tol's "muted" scheme; people with any kind of color vision can distinguish them."""


class TimeByBucket(Protocol):
    """A job's time, or a part of it, by bucket."""

    @property
    def wall_ns(self) -> int:
        """The wall time."""
        ...

    @property
    def counted_ns(self) -> int:
        """The wall time without excluded time."""
        ...

    @property
    def buckets(self) -> Mapping[Bucket, int]:
        """Nanoseconds by bucket."""
        ...

    @property
    def custom(self) -> Mapping[str, int]:
        """Nanoseconds by type of custom event."""
        ...


def column_shares(pieces: Sequence[Piece], start_ns: int, end_ns: int, columns: int) -> list[dict[Bucket, float]]:
    """Cut time into columns of one width; return each column's shares by bucket, which sum to 1.

    So the colored areas are exact for jobs of seconds and of months, with any number of pieces.
    """
    shares: list[dict[Bucket, float]] = [{} for _ in range(columns)]
    per_ns = columns / (end_ns - start_ns) if end_ns > start_ns else 0.0
    for piece in pieces:
        left, right = (piece.start_ns - start_ns) * per_ns, (piece.end_ns - start_ns) * per_ns
        for column in range(max(0, int(left)), min(columns, int(right) + 1)):
            overlap = min(right, column + 1) - max(left, column)
            if overlap > 0:
                shares[column][piece.bucket] = shares[column].get(piece.bucket, 0.0) + overlap
    return shares
