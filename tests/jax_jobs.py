"""Real JAX programs on this machine that compute and can be profiled, as jobs are that know nothing of us."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from .waiting import free_port

may_crash = pytest.mark.xfail(
    sys.version_info < (3, 11),
    reason="jaxlib 0.6, the newest for Python 3.10, crashes in one of a hundred captures: decision 0029",
    strict=False,
)
"""Mark of tests that capture a real JAX program."""

_PROGRAM = """
import sys, threading
import jax

port = int(sys.argv[1])
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
def jax_jobs(count: int, environment: Mapping[str, str] | None = None) -> Iterator[list[int]]:
    """The ports of the profiler's servers of so many jobs, which end with the block, or with this process.

    Args:
        count: How many.
        environment: More variables for them.
    """
    jobs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(free_port())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})},
        )
        for _ in range(count)
    ]
    try:
        yield [int(job.stdout.readline()) for job in jobs if job.stdout is not None]
    finally:
        for job in jobs:  # Killed, since one that tries to reach a bucket does not end before it gives that up.
            job.kill()
            job.communicate()
