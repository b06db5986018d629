"""Small tables as bytes of Parquet, read and written in the calling thread.

Arrow's threads must not hold objects of Python when it ends: one that waits for the interpreter then ends the process
with "terminate called without an active exception". It happened in one of 25 runs.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["decoded", "encoded"]


def encoded(table: pa.Table) -> bytes:
    """Return a table as Parquet."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decoded(data: bytes) -> pa.Table:
    """Return the table that Parquet has.

    Raises:
        pa.ArrowException: It is not Parquet, or not what was written.
        OSError: The same.
    """
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, page_checksum_verification=True) as file:
        table = file.read(use_threads=False)
    table.validate(full=True)
    return table
