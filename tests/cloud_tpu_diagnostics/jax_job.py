"""A process of a JAX job: `python jax_job.py FOLDER PORT RANK`. At step 3 rank 2 waits for data, the others for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics._collect import trace_file
from cloud_tpu_diagnostics.configuration import (
    debug_configuration,
    diagnostic_configuration,
    hang_configuration,
    stack_trace_configuration,
)

shard_map: Callable[..., Any]
try:
    shard_map = jax.shard_map
except AttributeError:  # JAX 0.6.0.
    from jax.experimental.shard_map import shard_map

RANKS = 4
ODD_RANK = 2
STUCK_STEP = 3
NO_GLOO = 77
"""Exit status of a process with a JAX that cannot do collectives on CPUs."""


def main(port: str, rank: int) -> None:
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    except (AttributeError, ValueError):
        sys.exit(NO_GLOO)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=RANKS, process_id=rank)
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()), ("ranks",))
    ranks = jax.sharding.PartitionSpec("ranks")  # type: ignore[no-untyped-call]
    add_up = jax.jit(
        shard_map(
            lambda part: jax.lax.psum(part, "ranks"),  # type: ignore[no-untyped-call]
            mesh=mesh,
            in_specs=ranks,
            out_specs=jax.sharding.PartitionSpec(),  # type: ignore[no-untyped-call]
        )
    )
    gradients = jax.make_array_from_callback(
        (RANKS,), jax.sharding.NamedSharding(mesh, ranks), lambda _: numpy.ones(1, numpy.float32)
    )
    for step in range(STUCK_STEP + 1):
        diagnostic.heartbeat(step)
        if (rank, step) == (ODD_RANK, STUCK_STEP):
            wait_for_missing_data()
        if step == STUCK_STEP:
            print("stuck", flush=True)
        train_step(add_up, gradients)


def train_step(add_up: Callable[[jax.Array], jax.Array], gradients: jax.Array) -> None:
    assert float(jax.block_until_ready(add_up(gradients))[0]) == RANKS  # type: ignore[no-untyped-call]


def wait_for_missing_data() -> None:
    print("stuck", flush=True)
    time.sleep(1_000)


if __name__ == "__main__":
    folder, port, rank = sys.argv[1:]
    trace_file.FOLDER = Path(folder)
    traces = stack_trace_configuration.StackTraceConfig(
        collect_stack_trace=True, stack_trace_to_cloud=True, stack_trace_interval_seconds=1
    )
    hangs = hang_configuration.HangConfig(enabled=True)
    config = diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(traces, hangs))
    with diagnostic.diagnose(config):
        main(port, int(rank))
