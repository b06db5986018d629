"""Processes that compute and can be profiled, as jobs are that know nothing of this library."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_PROGRAM = """
import socket, sys, threading
import jax

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
step = jax.jit(lambda x: x @ x / 100)
x = jax.numpy.ones((100, 100))
step(x).block_until_ready()
jax.profiler.start_server(port)
print(port, flush=True)
is_over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
while not is_over.wait(0.01):
    step(x).block_until_ready()
"""


@contextlib.contextmanager
def targets(count: int) -> Iterator[list[int]]:
    """The ports of so many processes, which end with the block."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for _ in range(count)
    ]
    try:
        yield [int(job.stdout.readline()) for job in jobs]
    finally:
        for job in jobs:
            job.communicate()
