"""Copy bytes between standard input and output and a local port; runs on a target, as `python3 -c`.

Used if no port can be forwarded. It runs on Python 3.6 and later, and needs no packages.
"""

import os
import socket
import sys
import threading

try:
    server = socket.create_connection(("localhost", int(sys.argv[1])), 10)
except OSError as error:
    sys.exit(f"nothing answers at port {sys.argv[1]} there: {error}")
server.settimeout(None)


def send() -> None:
    """Copy standard input to the server."""
    for piece in iter(lambda: os.read(0, 65536), b""):
        server.sendall(piece)
    server.shutdown(socket.SHUT_WR)


threading.Thread(target=send, daemon=True).start()
for piece in iter(lambda: server.recv(65536), b""):
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
