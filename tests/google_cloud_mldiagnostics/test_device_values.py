"""Values of devices: recorded when they are ready, by a worker; the caller does not wait."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from google_cloud_mldiagnostics._recording import device_values
from google_cloud_mldiagnostics.core.global_manager import ActiveRun
from google_cloud_mldiagnostics.exceptions import RecordingError
from google_cloud_mldiagnostics.metrics import record
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.worker import Worker

from ..waiting import run_program, wait_until
from .kept_entries import kept_entries
from .recorded_runs import active, metrics_of

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ActiveRun]:
    with active(tmp_path) as run:
        yield run


@pytest.fixture
def slow() -> Iterator[threading.Event]:
    """Make every device wait until the event is set."""
    ready = threading.Event()
    started = threading.Event()

    def wait() -> None:
        started.set()
        ready.wait(30)

    device_values.later(wait)
    started.wait(10)
    yield ready
    ready.set()
    device_values.drain(10)


def recorded(root: Path) -> list[Any]:
    assert device_values.drain(20)
    return [payload["values"] for _, payload in metrics_of(root)]


def test_an_array_of_jax_is_recorded(tmp_path: Path, run: ActiveRun) -> None:
    record("loss", jnp.float32(1.5), step=3)
    record("loss", jnp.array([1.0, 2.0]), step=4)
    record("loss", jnp.bfloat16(2.5), step=5)
    record("loss", jnp.array(True), step=6)
    record("loss", [jnp.float32(1), 2.0, jnp.int32(3)], step=7)
    assert recorded(tmp_path) == [[1.5], [1.0, 2.0], [2.5], [1.0], [1.0, 2.0, 3.0]]
    assert [payload["step_index"] for _, payload in metrics_of(tmp_path)] == [3, 4, 5, 6, 7]
    assert run.log.averages.as_dict()["loss"]["count"] == 5


def test_nan_on_a_device_is_marked(tmp_path: Path, run: ActiveRun) -> None:
    record("loss", jnp.float32("nan"))
    assert recorded(tmp_path) == [["NaN"]]
    assert metrics_of(tmp_path)[0][1]["not_finite"] is True


def test_a_step_on_a_device_is_a_step(tmp_path: Path, run: ActiveRun) -> None:
    record("loss", 1.0, step=jnp.int32(7))
    record("loss", 2.0, step=jnp.float32(7.5))
    recorded(tmp_path)
    assert [payload.get("step_index") for _, payload in metrics_of(tmp_path)] == [7, None]


@pytest.mark.timing
def test_the_caller_does_not_wait_for_a_device(tmp_path: Path, run: ActiveRun) -> None:
    """`record` returns before a long computation is done, and the value is still recorded."""

    @jax.jit  # type: ignore[untyped-decorator]
    def long(x: Any) -> Any:
        return jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y), x).sum()

    x = jnp.ones((500, 500))
    long(x).block_until_ready()
    started_at = time.perf_counter()
    value = long(x)
    record("loss", value, step=1)
    called = time.perf_counter() - started_at
    assert metrics_of(tmp_path) == []
    value.block_until_ready()
    computed = time.perf_counter() - started_at
    assert called < computed / 2
    assert len(recorded(tmp_path)) == 1


def test_an_entry_has_the_time_of_the_call(tmp_path: Path, run: ActiveRun, slow: threading.Event) -> None:
    record("loss", jnp.float32(1))
    record("other", 1.0)
    slow.set()
    recorded(tmp_path)
    assert [entry.resource_label("namespace") for entry in kept_entries(root=tmp_path)] == ["loss", "other"]


def test_at_most_a_thousand_values_are_pending_and_the_rest_is_counted(
    tmp_path: Path, run: ActiveRun, slow: threading.Event
) -> None:
    value = jnp.float32(1)
    for step in range(1200):
        record("loss", value, step)
    assert device_values.pending_count() == device_values.MOST_PENDING
    slow.set()
    written = len(recorded(tmp_path))
    assert written == 999  # The slow one is pending too.
    assert written + run.log.lost_values.total() == 1200


def test_a_deleted_array_is_counted(tmp_path: Path, run: ActiveRun, slow: threading.Event) -> None:
    before, after = jnp.float32(1) + 0, jnp.float32(2) + 0
    before.delete()
    record("loss", before)
    record("loss", after)
    after.delete()
    slow.set()
    assert recorded(tmp_path) == []
    [(reason, count)] = run.log.lost_values.items()
    assert "deleted or donated" in reason
    assert count == 2


def test_inside_jit_a_value_is_refused_and_the_function_still_traces(
    tmp_path: Path, run: ActiveRun, caplog: pytest.LogCaptureFixture
) -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        record("loss", x)
        return x + 1

    assert step(1.0) == 2.0
    assert recorded(tmp_path) == []
    assert "jax.jit" in caplog.text


@pytest.mark.parametrize(
    "make", [lambda: jnp.ones((2, 2)), lambda: jnp.ones(10_001), lambda: jax.random.key(0), lambda: jnp.complex64(1)]
)
def test_a_value_of_the_wrong_type_is_counted(tmp_path: Path, run: ActiveRun, make: Any) -> None:
    record("loss", make())
    assert recorded(tmp_path) == []
    assert run.log.lost_values.total() == 1


def test_a_recorded_value_does_not_keep_the_memory_of_its_device(tmp_path: Path, run: ActiveRun) -> None:
    import weakref

    value = jnp.float32(1) + 0
    reference = weakref.ref(value)
    record("loss", value)
    del value
    recorded(tmp_path)
    wait_until(lambda: reference() is None)


def test_a_flush_waits_for_devices_within_its_time(tmp_path: Path, run: ActiveRun, slow: threading.Event) -> None:
    record("loss", jnp.float32(1))
    assert not run.log.flush(0.05)
    slow.set()
    assert run.log.flush(20)
    assert len(metrics_of(tmp_path)) == 1


END = """
import os, sys, signal
from pathlib import Path
import jax, jax.numpy as jnp
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics._recording.run_log import RunLog
from google_cloud_mldiagnostics.metrics import record

root = Path(sys.argv[1])
log = RunLog("run", location="here", project="", labels={}, is_shipped=False, root=root)
set_active_run(ActiveRun(MLRun("run"), log, root, "h", 0, 1, os.getpid(), True))

@jax.jit
def long(x):
    return jax.lax.fori_loop(0, 30, lambda _, y: jnp.tanh(y @ y), x).sum()

x = jnp.ones((300, 300))
"""
# Of values that are awaited at the end: the usual two seconds are few on a busy machine.
PATIENT = """
from google_cloud_mldiagnostics._recording import device_values
device_values._values_of_this_process = device_values._Values(exit_seconds=60.0)
"""


def test_an_array_sharded_over_devices_of_this_host_is_recorded(tmp_path: Path) -> None:
    program = END.replace("root = Path", "jax.config.update('jax_num_cpu_devices', 4)\nroot = Path")
    program += PATIENT
    program += """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), "x")
record("loss", jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x"))), 1)
record("loss", jax.device_put(jnp.float32(7), NamedSharding(mesh, P())), 2)
"""
    run_program(program, tmp_path)
    assert [payload["values"] for _, payload in metrics_of(tmp_path, "run")] == [[*range(8)], [7.0]]


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise ValueError"])
def test_values_in_computation_are_recorded_at_exit(tmp_path: Path, end: str) -> None:
    program = f"{END}{PATIENT}\nfor step in range(5): record('loss', long(x), step)\n{end}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ("Traceback" in done.stderr) == ("raise" in end), done.stderr
    assert len(metrics_of(tmp_path, "run")) == 5


ENDS_DURING_FINALIZATION = """
import time
from google_cloud_mldiagnostics._recording import device_values

class Lasting:
    def __del__(self, print=print, sleep=time.sleep):  # The interpreter clears modules: it is being finalized.
        print("finalized", flush=True)
        sleep(1.5)

lasting = Lasting()
repeated = jax.jit(lambda x, count: jax.lax.fori_loop(0, count, lambda _, y: jnp.tanh(y @ y), x).sum())
repeated(x, 1).block_until_ready()
started_at = time.perf_counter()
repeated(x, 100).block_until_ready()
each = (time.perf_counter() - started_at) / 100
device_values._values_of_this_process = device_values._Values(exit_seconds=0.1)
record("loss", repeated(x, int(float(sys.argv[2]) / each)), 1)
"""


def end_before_the_device(root: Path, seconds: float) -> None:
    """End a process normally, `seconds` before its device has computed the value that it recorded."""
    assert run_program(END + ENDS_DURING_FINALIZATION, root, seconds) == "finalized\n"


@pytest.mark.parametrize("seconds", [0.8, 1.2])
def test_a_value_that_is_computed_while_the_interpreter_is_finalized_does_not_abort_the_job(
    tmp_path: Path, seconds: float
) -> None:
    end_before_the_device(tmp_path, seconds)


@pytest.fixture
def own_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a worker and a state that a test may end; the end waits 10 ms for devices."""
    monkeypatch.setattr(device_values, "_worker", Worker("test"))
    monkeypatch.setattr(device_values, "_values_of_this_process", device_values._Values(exit_seconds=0.01))


def test_a_value_not_computed_before_the_process_ends_is_counted_as_dropped_and_delays_it_once(
    own_worker: None,
) -> None:
    lost: list[str] = []

    def deliver() -> None:
        try:
            device_values._await_ready(lambda: False)
        except RecordingError as error:
            lost.append(str(error))

    for _ in range(50):
        device_values.later(deliver)
    device_values._drain_at_exit()
    assert device_values.pending_count() == 0
    assert len(lost) == 50
    assert "had not computed" in lost[0]


def test_an_array_that_cannot_report_whether_it_is_ready_is_read_at_once(tmp_path: Path, run: ActiveRun) -> None:
    assert not hasattr(jax.random.key(0), "is_ready")
    record("loss", jax.random.key(0))
    record("loss", jnp.float32(1))
    assert recorded(tmp_path) == [[1.0]]


def test_an_array_that_is_deleted_while_it_is_computed_is_counted_and_crashes_nothing(
    tmp_path: Path, run: ActiveRun
) -> None:
    """JAX crashes if it is asked whether a deleted array is ready."""
    computed = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: jnp.tanh(y @ y), x).sum())
    x = jnp.ones((300, 300))
    for step in range(20):
        value = computed(x)
        record("loss", value, step)
        time.sleep(0.0005 * step)
        value.delete()
    written = len(recorded(tmp_path))
    assert written + run.log.lost_values.total() == 20


def test_at_the_very_end_of_the_process_the_worker_reads_no_device(own_worker: None) -> None:
    read: list[int] = []
    device_values.later(lambda: read.append(1))
    assert device_values.drain(10)
    device_values._stop_at_exit()
    with pytest.raises(RecordingError, match="no thread"):
        device_values.later(lambda: read.append(2))
    time.sleep(0.1)
    assert read == [1]


def test_a_value_that_is_ready_is_taken_without_a_pause(monkeypatch: pytest.MonkeyPatch, run: ActiveRun) -> None:
    values = [jax.block_until_ready(jnp.float32(step) + 0) for step in range(20)]
    pauses: list[float] = []
    fetches = [device_values.fetch_of(value) for value in values]
    monkeypatch.setattr(device_values.time, "sleep", pauses.append)  # type: ignore[attr-defined]
    assert [float(fetch()) for fetch in fetches if fetch is not None] == list(range(20))
    assert pauses == []


@pytest.mark.slow
def test_a_value_that_is_computed_at_any_moment_of_the_jobs_end_does_not_abort_it(tmp_path: Path) -> None:
    for number in range(30):
        end_before_the_device(tmp_path / str(number), number / 15)


def test_the_averages_of_a_run_include_values_on_the_device_at_its_end(tmp_path: Path) -> None:
    program = """
import os, sys
import jax, jax.numpy as jnp
from google_cloud_mldiagnostics import machinelearning_run, metrics

@jax.jit
def long(x):
    return jax.lax.fori_loop(0, 30, lambda _, y: jnp.tanh(y @ y), x).sum()

run = machinelearning_run("train", log_system_metrics=False)
for step in range(4):
    metrics.record("loss", 0 * long(jnp.ones((300, 300))) + step, step)
END
"""
    for end in ("run.finish()", "sys.exit(1)"):
        root = tmp_path / end
        subprocess.run(
            [sys.executable, "-c", program.replace("END", end)],
            env={**os.environ, "ML_DIAGNOSTICS_DIR": str(root)},
            timeout=60,
            check=False,
        )
        [kept] = root.glob("runs/*/run.json")
        assert json.loads(kept.read_text())["metrics"]["loss"] == {
            "count": 4,
            "mean": 1.5,
            "min": 0,
            "max": 3,
            "last": 3,
        }


def test_a_forked_child_has_a_worker_of_its_own(tmp_path: Path) -> None:
    program = f"""
import warnings; warnings.simplefilter("ignore")
{END}
{PATIENT}
for step in range(5): record('loss', long(x), step)
child = os.fork()
if child == 0:
    assert device_values.pending_count() == 0 and device_values.drain(0)
    record("loss", 7.0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    run_program(program, tmp_path)
    assert len(metrics_of(tmp_path, "run")) == 6


def test_recording_initialises_no_backend(tmp_path: Path) -> None:
    program = END.partition("@jax.jit")[0].replace("import jax, jax.numpy as jnp", "import jax")
    program += """
import numpy
for value in (1.0, numpy.float32(1), [1.0], None):
    record("loss", value, 1)
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
    run_program(program, tmp_path)


# --- PyTorch ------------------------------------------------------------------------------------------


class XlaTensor:
    """A tensor of PyTorch/XLA at protocol level: the methods that we call, and those that would cut its step."""

    class _Device:
        type = "xla"

    device, shape, dtype = _Device(), (), "float32"

    def __init__(self, value: float) -> None:
        self._value = value
        self.is_computed = False

    def dim(self) -> int:
        return 0

    def numel(self) -> int:
        return 1

    def is_complex(self) -> bool:
        return False

    def detach(self) -> XlaTensor:
        return self

    clone = detach

    def tolist(self) -> float:
        assert self.is_computed, "asked for before the end of the step"
        return self._value


def test_pytorch_xla_is_asked_at_the_end_of_the_step(
    tmp_path: Path, run: ActiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At protocol level: torch_xla's public add_step_closure, which runs a closure once its tensors are computed."""
    closures: list[Any] = []
    torch, xla_model = ModuleType("torch"), ModuleType("torch_xla.core.xla_model")
    torch.Tensor = XlaTensor  # type: ignore[attr-defined]

    def add_step_closure(closure: Any, args: tuple[Any, ...] = (), run_async: bool = False) -> None:
        assert run_async
        closures.append((closure, args))

    xla_model.add_step_closure = add_step_closure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch_xla.core.xla_model", xla_model)
    record("loss", XlaTensor(1.5), step=2)
    assert metrics_of(tmp_path) == []
    [(closure, (tensor,))] = closures
    tensor.is_computed = True
    closure(tensor)
    assert recorded(tmp_path) == [[1.5]]
    record("loss", XlaTensor(1.5), step=3)
    closures[1][0](closures[1][1][0])  # The value is not computed: reading it fails, and the step must not fail.
    assert recorded(tmp_path) == [[1.5]]
    assert run.log.lost_values.total() == 1


@pytest.fixture
def torch_xla(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """torch_xla at protocol level, in which no step ends."""
    torch, package = ModuleType("torch"), ModuleType("torch_xla")
    xla_model, runtime = ModuleType("torch_xla.core.xla_model"), ModuleType("torch_xla.runtime")
    torch.Tensor = XlaTensor  # type: ignore[attr-defined]

    def unlazy(tensors: list[XlaTensor]) -> None:
        for tensor in tensors:
            tensor.is_computed = True

    def need_step(tensors: list[XlaTensor]) -> list[bool]:
        return [not tensor.is_computed for tensor in tensors]

    package._XLAC = SimpleNamespace(_check_tensor_need_materialization=need_step)  # type: ignore[attr-defined]
    xla_model.add_step_closure = lambda closure, args, run_async: None  # type: ignore[attr-defined]
    xla_model.unlazy = unlazy  # type: ignore[attr-defined]
    runtime.world_size = runtime.process_count = lambda: 1  # type: ignore[attr-defined]
    for module in (torch, package, xla_model, runtime):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return runtime


@pytest.mark.parametrize(
    ("may_compute", "processes", "expected"),
    [(True, 1, [[1.0], [2.0]]), (False, 1, [[1.0]]), (True, 2, [[1.0]]), (False, 2, [])],
)
def test_a_value_that_no_step_computes_is_read_at_the_end_or_counted_as_dropped(
    tmp_path: Path,
    run: ActiveRun,
    torch_xla: ModuleType,
    may_compute: bool,
    processes: int,
    expected: list[list[float]],
) -> None:
    torch_xla.world_size = lambda: processes  # type: ignore[attr-defined]
    computed = XlaTensor(1.0)
    computed.is_computed = True
    record("loss", computed, step=1)
    record("loss", XlaTensor(2.0), step=2)
    device_values.settle(may_compute=may_compute)
    assert recorded(tmp_path) == expected
    assert run.log.lost_values.total() == 2 - len(expected)
    assert device_values.drain(1.0)


class CudaTensor(XlaTensor):
    """A tensor of CUDA at protocol level. Its value is in the device's queue; `events` has the order."""

    class _Device:
        type = "cuda"

    device = _Device()  # type: ignore[assignment]

    def tolist(self) -> float:
        raise AssertionError("read in the caller's thread")


def test_a_cuda_tensor_is_copied_after_its_computation(
    tmp_path: Path, run: ActiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At protocol level: a copy into pinned memory and an event behind it, neither of which the caller waits for."""
    asked: list[str] = []

    class Pinned:
        def copy_(self, tensor: CudaTensor, non_blocking: bool) -> None:
            assert non_blocking
            asked.append("copy")
            self.value = tensor._value

        def tolist(self) -> float:
            asked.append("read")
            return self.value

    class Event:
        def record(self) -> None:
            asked.append("event")

        def query(self) -> bool:
            asked.append("wait")
            waits_in.append(threading.get_ident())
            return asked.count("wait") == 2

        def synchronize(self) -> None:
            raise AssertionError("a wait in C++, during which the interpreter may be finalized")

    waits_in: list[int] = []
    torch, cuda = ModuleType("torch"), ModuleType("torch.cuda")

    def empty(shape: Any, *, dtype: Any, device: str, pin_memory: bool) -> Pinned:
        assert device == "cpu"
        assert pin_memory
        return Pinned()

    for name, value in {"Tensor": CudaTensor, "empty": empty, "cuda": cuda}.items():
        setattr(torch, name, value)
    for name, value in {"Event": Event, "device": lambda _: contextlib.nullcontext()}.items():
        setattr(cuda, name, value)
    monkeypatch.setitem(sys.modules, "torch", torch)
    record("loss", CudaTensor(1.5), step=2)
    assert recorded(tmp_path) == [[1.5]]
    assert asked == ["copy", "event", "wait", "wait", "read"]
    assert waits_in != [threading.get_ident()]


def test_tensors_of_pytorch_are_recorded(tmp_path: Path, run: ActiveRun) -> None:
    torch = pytest.importorskip("torch")
    value = torch.tensor(1.5, requires_grad=True)
    record("loss", value)
    record("loss", torch.tensor([1, 2]))
    in_place = torch.zeros(())
    record("loss", in_place)
    in_place += 7
    assert recorded(tmp_path) == [[1.5], [1.0, 2.0], [0.0]]
    for refused in (torch.zeros(2, 2), torch.tensor(1j), torch.tensor(1.0, device="meta")):
        record("loss", refused)
    assert run.log.lost_values.total() == 3


def test_a_failure_of_the_worker_is_counted(tmp_path: Path, run: ActiveRun) -> None:
    def fails() -> None:
        raise OSError("no")

    device_values.later(fails)
    record("loss", jnp.float32(1))
    assert recorded(tmp_path) == [[1.0]]
    assert LOSSES["mldiagnostics-device-values: OSError"] == 1
