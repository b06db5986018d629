"""Where goodput goes: an exporter is one function of a snapshot, and the monitor knows nothing else of it.

An exporter may raise: whoever calls it catches, waits and calls again. It may have `flush(timeout_seconds)`, which
brings out what it still holds, and `close()`, which ends what it has open.
"""
