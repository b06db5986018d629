"""Profiles to read: made by hand for TPUs, and by real JAX programs on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .xspaces import tpu_host

SESSION = "session_2026_11_21_10_00_00"
_TRAINER = """
import sys
import jax, jax.numpy as jnp

step = jax.jit(lambda x: jnp.tanh(x @ x) / 8)
x = step(jnp.ones((256, 256)))
jax.profiler.start_trace(sys.argv[1])
for number in range(8):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(x).block_until_ready()
jax.profiler.stop_trace()
"""


def tpu_session(logs: Path, session: str = SESSION) -> Path:
    """Two hosts of four chips: in step 5 the second waits 300 us longer for its input. Return the session's folder."""
    folder = logs / "tensorboard" / "plugins" / "profile" / session
    folder.mkdir(parents=True)
    (folder / "host-a.xplane.pb").write_bytes(tpu_host(host="host-a"))
    (folder / "host-b.xplane.pb").write_bytes(tpu_host(host="host-b", first_device=4, extra_us={5: 300}))
    return folder


def cpu_session(logs: Path, *hosts: str) -> Path:
    """Profile a real JAX program on the CPU, copy its file for each host, and return the session's folder."""
    ended = subprocess.run(
        [sys.executable, "-c", _TRAINER, str(logs)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    (file,) = logs.glob("plugins/profile/*/*.xplane.pb")
    for host in hosts:
        file.with_name(f"{host}.xplane.pb").write_bytes(file.read_bytes())
    if hosts:
        file.unlink()
    return file.parent
