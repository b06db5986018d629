"""Run on a target, as `python3 -c`: passes bytes between standard input and output and a port of that machine.

It is the way to a port where none can be forwarded. Python 3.6 is enough for it, and nothing needs to be installed.
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
    """Passes on what comes in."""
    for piece in iter(lambda: os.read(0, 65536), b""):
        server.sendall(piece)
    server.shutdown(socket.SHUT_WR)


threading.Thread(target=send, daemon=True).start()
for piece in iter(lambda: server.recv(65536), b""):
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
