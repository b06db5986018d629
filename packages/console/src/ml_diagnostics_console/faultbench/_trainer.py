"""A process of a job of faultbench: it trains with JAX and all libraries, and does to itself what its plan shows.

The bench copies this file into the folder of each job, so that its frames are those of a user's program. It imports
nothing of the console.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import ctypes
import json
import math
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from google_cloud_mldiagnostics import machinelearning_run, metrics
from ml_goodput_measurement import goodput

PLAN: dict[str, Any] = json.loads(os.environ["FAULTBENCH_PLAN"])
INDEX: int = PLAN["index"]
SLOT: int = PLAN["slot"]
FAULT: str = PLAN["fault"] if SLOT in PLAN["culprits"] else ""
FOLDER = Path(PLAN["folder"])
HOST_SECONDS = 0.04
"""The host's own work of a step: a sleep, so that jobs beside each other do not slow each other down."""
BATCH = 8
RANKS = "ranks"


# --- What the bench sees of this process -----------------------------------------------------------------


class Marks:
    """Reports to the bench, in files that no library reads."""

    def __init__(self) -> None:
        self._file = os.open(FOLDER / "marks" / f"status-{SLOT}", os.O_WRONLY | os.O_CREAT, 0o600)
        self.step = -1

    def status(self, phase: str, step: int = -1) -> None:
        """Report the step that runs."""
        self.step = step
        os.pwrite(self._file, f"{os.getpid():8d} {step:8d} {phase:<12.12}".encode(), 0)

    def note(self, what: str, **fields: Any) -> None:
        """Report one event, such as the fault, immediately before it happens."""
        event = {"what": what, "index": SLOT, "step": self.step, "monotonic_ns": time.monotonic_ns(), **fields}
        with (FOLDER / "marks" / "events").open("a") as file:
            file.write(json.dumps(event) + "\n")


marks = Marks()


# --- Faults in a step ------------------------------------------------------------------------------------


def inject(step: int) -> None:
    """Do what the plan shows, at its step."""
    if FAULT not in IN_STEP or step != PLAN["step"]:
        return
    marks.note("injected")
    IN_STEP[FAULT]()


def raise_error() -> None:
    raise ValueError(f"batch {marks.step} is empty: expected {BATCH} rows, got 0")


def fail_natively() -> None:
    ctypes.string_at(0)


def deadlock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def hold_gil() -> None:
    sleep = ctypes.PyDLL(None).sleep
    while True:  # A signal ends one sleep.
        sleep(1000)


def compute_for_ever() -> None:
    number = 1
    while True:
        number = number * 48271 % 2147483647


def allocate_too_much() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
    activations = [numpy.ones(2**25) for _ in range(4)]
    raise RuntimeError(f"{len(activations)} arrays fit into the limit of the address space")


def fill_control_group() -> None:
    """Use more than the memory of the control group in which the bench has started this process."""
    used = []
    while True:
        used.append(numpy.ones(2**21))


IN_STEP: dict[str, Callable[[], object]] = {
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": fail_natively,
    "sigabrt": os.abort,
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "os_exit_0": lambda: os._exit(0),
    "sys_exit_0": lambda: sys.exit(0),
    "sys_exit_3": lambda: sys.exit(3),
    "exception_late": raise_error,
    "exception_early_one": raise_error,
    "exception_early_all": raise_error,
    "restart_loop": raise_error,
    "clock_drift": raise_error,
    "deadlock": deadlock,
    "gil_held": hold_gil,
    "busy_loop": compute_for_ever,
    "memory_limit": allocate_too_much,
    "cgroup_memory": fill_control_group,
}


# --- Input -----------------------------------------------------------------------------------------------


class Prefetching:
    """Loads batches in a thread, as a data loader does."""

    def __init__(self) -> None:
        self._batches: queue.Queue[numpy.ndarray[Any, Any]] = queue.Queue(maxsize=2)
        threading.Thread(target=self._load, name="prefetch", daemon=True).start()

    def _load(self) -> None:
        step = PLAN["first_step"]
        while True:
            if step == PLAN["step"]:
                marks.note("injected")
                raise ValueError(f"record {step} is truncated")
            self._batches.put(load_batch(step))
            step += 1

    def next(self) -> numpy.ndarray[Any, Any]:
        return self._batches.get()


def load_batch(step: int) -> numpy.ndarray[Any, Any]:
    """Make a batch, unless the storage has a fault."""
    is_time = step == PLAN["step"]
    if FAULT == "slow_input" and step >= PLAN["step"]:
        if is_time:
            marks.note("injected")
        time.sleep(PLAN["size"] * HOST_SECONDS)
    elif FAULT == "input_stuck" and is_time:
        marks.note("injected")
        reading, _writing = os.pipe()
        os.read(reading, 1)
    elif FAULT == "input_pause" and is_time:
        marks.note("injected")
        time.sleep(PLAN["pause_seconds"])
    elif FAULT == "exception_in_input" and is_time:
        marks.note("injected")
        raise ValueError(f"cannot decode record {step * BATCH} of shard-00012.tfrecord")
    elif FAULT == "io_error" and is_time:
        marks.note("injected")
        with open("/proc/self/mem", "rb") as file:  # noqa: PTH123 (its first page: the kernel returns EIO)
            file.read(1)
    generator = numpy.random.default_rng(step * 64 + INDEX)
    return generator.standard_normal((1, BATCH, PLAN["width"]), dtype=numpy.float32)


# --- Training --------------------------------------------------------------------------------------------


class Model:
    """One layer, replicated, with gradients that are summed over all processes."""

    def __init__(self) -> None:
        self._mesh = jax.sharding.Mesh(numpy.array(jax.devices()), (RANKS,))
        self._by_rank = jax.sharding.PartitionSpec(RANKS)
        everywhere = jax.sharding.PartitionSpec()

        def train_step(weights: jax.Array, batch: jax.Array, stop: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def loss_of(weights: jax.Array) -> jax.Array:
                return jax.numpy.mean((batch @ weights - batch) ** 2)

            loss, gradient = jax.value_and_grad(loss_of)(weights)
            total = jax.lax.psum(gradient, RANKS)
            return weights - 0.05 * total, jax.lax.psum(loss, RANKS), jax.lax.psum(stop[0], RANKS)

        self.train_step = jax.jit(
            jax.shard_map(
                train_step,
                mesh=self._mesh,
                in_specs=(everywhere, self._by_rank, self._by_rank),
                out_specs=(everywhere, everywhere, everywhere),
            )
        )
        self.evaluate = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x * 2, RANKS), mesh=self._mesh, in_specs=self._by_rank, out_specs=everywhere
            )
        )
        width = PLAN["width"]
        self.weights: Any = numpy.zeros((width, width), numpy.float32)

    def sharded(self, part: numpy.ndarray[Any, Any]) -> jax.Array:
        """Return an array over all processes of which this one has a part."""
        shape = (PLAN["processes"], *part.shape[1:])
        sharding = jax.sharding.NamedSharding(self._mesh, self._by_rank)
        return jax.make_array_from_callback(shape, sharding, lambda _: part)


def compile_for_long() -> None:
    """Compile a program before the first step that is as large as this machine compiles in the wanted time."""
    marks.note("injected")
    small = 30
    seconds = _seconds_to_compile(small)
    layers = round(small * PLAN["pause_seconds"] / seconds)
    marks.note("compiled", layers=layers, seconds=_seconds_to_compile(layers))


def _seconds_to_compile(layers: int) -> float:
    def large(x: jax.Array) -> jax.Array:
        for number in range(layers):
            x = jax.numpy.tanh(x @ x + number) * jax.numpy.cumsum(x, 0)
        return x

    started = time.monotonic()
    jax.jit(large)(jax.numpy.ones((16, 16))).block_until_ready()
    return time.monotonic() - started


def save(step: int, weights: Any) -> None:
    """Write this process's part of a checkpoint."""
    is_time = step >= PLAN["step"] and not _done
    folder = FOLDER / "checkpoints"
    if FAULT == "exception_in_save" and is_time:
        marks.note("injected")
        raise RuntimeError(f"checkpoint {step}: shape of `layer/kernel` does not match its metadata")
    if FAULT == "disk_full" and is_time:
        marks.note("injected")
        folder = Path(PLAN["small_disk"])
    if FAULT == "slow_save":
        if is_time:
            marks.note("injected")
            _done.append(step)
        if step >= PLAN["step"]:
            time.sleep(PLAN["pause_seconds"])
    if FAULT == "save_pause" and is_time:
        marks.note("injected")
        _done.append(step)
        time.sleep(PLAN["pause_seconds"])
    copies = 64 if FAULT == "disk_full" and is_time else 1
    with (folder / f"step-{step}-{INDEX}.npy").open("wb") as file:
        for _ in range(copies):
            numpy.save(file, numpy.asarray(weights))
            file.write(b"\0" * 2**15 if copies > 1 else b"")


_done: list[int] = []
_stops: list[int] = []


def ask_to_stop(*_: object) -> None:
    """Handle SIGTERM: stop at the end of this step, on all processes together."""
    _stops.append(1)


def exit_at_once(*_: object) -> None:
    """Handle SIGTERM as many programs do."""
    sys.exit(0)


def train(recorder: goodput.GoodputRecorder) -> None:
    """Take all steps."""
    model = Model()
    prefetching = Prefetching() if FAULT == "exception_in_thread" else None
    recorder.record_training_preparation_end_time()
    if FAULT == "long_compile":
        compile_for_long()
    for step in range(PLAN["first_step"], PLAN["planned_steps"]):
        recorder.record_step_start_time(step)
        marks.status("step", step)
        if FAULT == "early_stop" and step == PLAN["step"]:
            marks.note("injected")
            return
        inject(step)
        recorder.record_data_loading_start_time()
        batch = prefetching.next() if prefetching is not None else load_batch(step)
        recorder.record_data_loading_end_time()
        take_step(model, step, batch)
        if _stops and _stops[0] == 2:
            save(step, model.weights)
            marks.note("saved")
            return
        if step % PLAN["save_every"] == PLAN["save_every"] - 1:
            recorder.record_checkpoint_progress(step)
            marks.status("save", step)
            with recorder.phase("checkpoint_save"):
                save(step, model.weights)
        if FAULT == "evaluation_pause" and step == PLAN["step"]:
            marks.note("injected")
            recorder.record_custom_badput_event_start_time(custom_badput_event_type="eval")
            time.sleep(PLAN["pause_seconds"])
            recorder.record_custom_badput_event_end_time(custom_badput_event_type="eval")
        if FAULT == "collection_pause" and step == PLAN["step"]:
            marks.note("injected")
            time.sleep(PLAN["pause_seconds"])  # As a collection of a large heap stops all of Python.


def take_step(model: Model, step: int, batch: numpy.ndarray[Any, Any]) -> None:
    """Prepare, dispatch and wait for one step."""
    is_on = FAULT and step >= PLAN["step"]
    seconds = HOST_SECONDS
    if is_on and FAULT == "slow_host":
        if step == PLAN["step"]:
            marks.note("injected")
        seconds += (PLAN["size"] - 1) * HOST_SECONDS
    time.sleep(seconds)
    if is_on and FAULT == "recompiling":
        if step == PLAN["step"]:
            marks.note("injected")
        rows = BATCH + step - PLAN["step"] + 1
        batch = numpy.resize(batch, (1, rows, PLAN["width"]))
    if is_on and FAULT == "nan_loss":
        if step == PLAN["step"]:
            marks.note("injected")
        batch = batch * numpy.float32("inf")
    if FAULT == "diverged_program" and step == PLAN["step"]:
        marks.note("injected")
        wait_for_evaluation(model)
    stop = numpy.full((1,), float(bool(_stops)), numpy.float32)
    weights, loss, stops = model.train_step(model.weights, model.sharded(batch), model.sharded(stop))
    diagnostic.heartbeat(step, phase="sync")
    jax.block_until_ready(loss)
    model.weights = numpy.asarray(weights)
    value = float(loss)
    if not math.isfinite(value) and "not_finite" not in _seen:
        _seen.append("not_finite")
        marks.note("not_finite")
    metrics.record("loss", value, step)
    metrics.record("learning_rate", 0.05, step)
    if float(stops) > 0:
        _stops[:] = [2]


_seen: list[str] = []


def wait_for_evaluation(model: Model) -> None:
    """Run a program that the other processes do not run."""
    jax.block_until_ready(model.evaluate(model.sharded(numpy.ones((1, 4096), numpy.float32))))


def hangs() -> HangConfig:
    return HangConfig(
        enabled=True,
        step_floor_seconds=PLAN["floor_seconds"],
        startup_floor_seconds=PLAN["startup_floor_seconds"],
        pause_floor_seconds=PLAN["floor_seconds"],
        snapshots=2,
        snapshot_interval_seconds=1.0,
    )


def main() -> None:
    if PLAN["sigterm"] == "before":
        signal.signal(signal.SIGTERM, exit_at_once)
    planned = {name: PLAN[name] for name in ("planned_steps", "expected_processes") if PLAN["is_planned"]}
    print(f"process {INDEX} of {PLAN['processes']} starts", flush=True)
    with diagnostic.diagnose(stack_traces=True, hangs=hangs(), directory=FOLDER / "traces"):
        recorder = goodput.GoodputRecorder(PLAN["job"], PLAN["goodput_log"], logging_enabled=INDEX == 0, **planned)
        recorder.record_job_start_time()
        recorder.record_tpu_init_start_time()
        marks.status("init")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            PLAN["coordinator"],
            num_processes=PLAN["processes"],
            process_id=INDEX,
            heartbeat_timeout_seconds=PLAN["heartbeat_seconds"],
            shutdown_timeout_seconds=PLAN["shutdown_seconds"],
            initialization_timeout=PLAN["initialization_seconds"],
        )
        if PLAN["sigterm"] == "after":
            signal.signal(signal.SIGTERM, exit_at_once)
        elif PLAN["sigterm"] == "save":
            signal.signal(signal.SIGTERM, ask_to_stop)
        jax.devices()
        recorder.record_tpu_init_end_time()
        recorder.record_training_preparation_start_time()
        run = machinelearning_run(
            PLAN["job"],
            configs=PLAN["configs"],
            gcs_path=str(FOLDER / "profiles"),
            run_workload_id=PLAN["job"],
            metrics_record_interval_sec=10.0,
            **planned,
        )
        marks.note("run", run=run.name)
        train(recorder)
        recorder.record_job_end_time()
        marks.status("ended", marks.step)
    print(f"process {INDEX} is done", flush=True)


if __name__ == "__main__":
    main()
