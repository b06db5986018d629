"""Exporters of goodput: an exporter is a function of a snapshot.

An exporter may raise: its caller catches the error, waits and calls it again. It may have `flush(timeout_seconds)`,
which writes pending data, and `close()`.
"""
