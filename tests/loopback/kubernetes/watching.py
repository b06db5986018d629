"""`kubectl get --watch` and `kubectl wait`: a stream of changes, one line of JSON each."""

import contextlib
import json
import socket
import threading
import time
from io import BufferedIOBase
from typing import Final

from ml_diagnostics_testing.http_server import Request, Response

from .kinds import Kind
from .store import ObjectStore
from .tables import table, wants_table

_POLL_SECONDS: Final = 0.5
_LONGEST_SECONDS: Final = 3600.0


def watch_response(store: ObjectStore, kind: Kind, namespace: str, request: Request) -> Response:
    """Stream the changes since a resourceVersion as they happen."""
    query = request.query
    seconds = float(query.get("timeoutSeconds", _LONGEST_SECONDS))
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    as_table = wants_table(request)

    def takes_over(reader: BufferedIOBase, connection: socket.socket) -> None:
        is_gone = threading.Event()
        threading.Thread(target=_await_end, args=(reader, is_gone), daemon=True).start()
        end = time.monotonic() + seconds
        after = int(query.get("resourceVersion") or 0)
        with contextlib.suppress(OSError):  # the client has disconnected
            while not is_gone.is_set() and time.monotonic() < end:
                for change in store.changes(kind, namespace, labels, fields, after, wait_seconds=_POLL_SECONDS):
                    after = change.version
                    shown = change.resource
                    if as_table:
                        shown = table(kind.plural, [shown], str(after), request.time)
                    _send_chunk(connection, json.dumps({"type": change.kind, "object": shown}).encode() + b"\n")
            connection.sendall(b"0\r\n\r\n")

    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    return Response(200, headers=headers, takes_over=takes_over)


def _send_chunk(connection: socket.socket, data: bytes) -> None:
    connection.sendall(b"%x\r\n%b\r\n" % (len(data), data))


def _await_end(reader: BufferedIOBase, is_gone: threading.Event) -> None:
    with contextlib.suppress(OSError, ValueError):  # broken; closed
        while reader.read1(1024):
            pass
    is_gone.set()
