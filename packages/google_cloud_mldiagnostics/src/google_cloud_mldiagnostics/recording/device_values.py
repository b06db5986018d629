"""Values that are still on a device: a worker records them when they are ready, the caller never waits.

The call only starts the copy to the host, which costs microseconds. At most 1,000 values are pending: more are refused.
A value that is deleted or donated before it was copied is lost, and so is one that is computed more than two seconds
after the program's end. One of PyTorch/XLA that no step computes is computed at the end of the run or of the process,
or lost.

The worker waits in Python, not in C++: a thread that returns from C++ while the interpreter is finalized is ended by
CPython inside C++, whose runtime then aborts the process.
"""

from __future__ import annotations

import itertools
import operator
import queue
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.process_hooks import ExitOrder, at_exit, at_exit_from_now, at_fork
from ml_diagnostics_common.worker import start

from google_cloud_mldiagnostics.exceptions import RecordingError
from google_cloud_mldiagnostics.recording.values import MOST_VALUES, check_shape, shown_type

__all__ = ["MOST_PENDING", "Fetch", "drain", "fetch_of", "later", "pending_count", "settle"]

MOST_PENDING = 1_000
_EXIT_SECONDS = 2.0
_LOOK_SECONDS = 0.002
_LONGEST_LOOK_SECONDS = 0.05
_STOP_SECONDS = 1.0
_LONGEST_STEP_SECONDS = 3600.0

Fetch: TypeAlias = Callable[[], Any]
"""Waits for a value, and returns it as the host has it; raises RecordingError. Called once, in the worker."""


def fetch_of(value: Any) -> Fetch | None:
    """Begins to copy a value to the host.

    Args:
        value: Anything.

    Returns:
        What waits for the copy; None for a value that is no device's.

    Raises:
        RecordingError: It cannot be had, now or later.
    """
    if isinstance(value, (list, tuple)) and len(value) <= MOST_VALUES:
        return _fetch_of_list(value)
    jax_array = getattr(sys.modules.get("jax"), "Array", None)
    if jax_array is not None and isinstance(value, jax_array):
        return _fetch_of_jax(value)
    torch_tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if torch_tensor is not None and isinstance(value, torch_tensor):
        return _fetch_of_torch(value)
    if type(value).__module__.partition(".")[0] == "tensorflow" and hasattr(value, "numpy"):
        return lambda: value.numpy()
    return None


def later(deliver: Callable[[], None]) -> None:
    """Has the worker call a function that waits for a device, behind all those that it was given before.

    Raises:
        RecordingError: Too many are pending.
    """
    _worker_of_this_process.add(deliver)


def drain(timeout_seconds: float) -> bool:
    """Waits until all that is pending now is recorded; True if it is, within that time."""
    return _worker_of_this_process.drain(timeout_seconds)


def settle(*, may_compute: bool) -> None:
    """Compute the values of PyTorch/XLA that are left after the last step, in the caller's thread; else lose them.

    For the end of a run, in a thread of the user's: without it they would wait for a step that never ends.

    Args:
        may_compute: False if the job has failed, so that its devices may be the reason. Then, and where there are
            several processes, which could wait for each other, what is computed already is taken, and the rest lost.
            Of several processes, one that has failed takes nothing.
    """
    _worker_of_this_process.settle(may_compute=may_compute)


def pending_count() -> int:
    """How many values wait for their devices."""
    return _worker_of_this_process.pending_count()


# --- The worker -----------------------------------------------------------------------------------------


class _Worker:
    """One thread, begun with the first value, that takes values in the order in which they came."""

    def __init__(self) -> None:
        # One whose put may interrupt itself: in a signal handler.
        self._queue: queue.SimpleQueue[tuple[int, Callable[[], None]]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._pending: dict[int, None] = {}
        self._is_started = False
        self._starting = threading.Lock()  # Never waited for.
        self._thread_id = 0
        self._has_given_up = False
        self._delivering = threading.Lock()
        self._of_steps: dict[int, _StepValue] = {}

    def await_step(self, value: _StepValue) -> None:
        """Keep a value until its step has been computed."""
        self._of_steps[id(value)] = value

    def is_awaited(self, value: _StepValue) -> bool:
        """Return True once for a value that was kept, and forget it."""
        return self._of_steps.pop(id(value), None) is not None

    def settle(self, *, may_compute: bool) -> None:
        values = list(self._of_steps.values())
        if not values or threading.current_thread() is not threading.main_thread():
            return  # Beside a thread that trains, torch_xla computes nothing safely; the next step has the values.
        is_alone = _is_single_process_of_xla()
        if may_compute or is_alone:
            if not (may_compute and is_alone):
                values = [value for value in values if value.is_computed()]
            try:  # All in one graph, since each would be compiled for otherwise.
                import_module("torch_xla.core.xla_model").unlazy([value.tensor for value in values])
            except Exception:
                pass  # One of them cannot be computed; `put` finds out which.
            for value in values:
                value.put(value.tensor)
        for value in list(self._of_steps.values()):
            value.give_up()

    def add(self, deliver: Callable[[], None]) -> None:
        if len(self._pending) >= MOST_PENDING:
            raise RecordingError(f"more than {MOST_PENDING:,} values of devices wait to be ready")
        number = next(self._numbers)
        self._pending[number] = None
        if not self._is_started and not self._start():
            del self._pending[number]
            raise RecordingError("there can be no thread that waits for a device")
        self._queue.put((number, deliver))

    def _start(self) -> bool:
        """Starts the thread; or leaves that to who does it at this moment, perhaps below us on this very stack."""
        if not self._starting.acquire(blocking=False):
            return True
        try:
            if not self._is_started and start(self._run, "mldiagnostics-device-values") is not None:
                self._is_started = True
                # Not at import: JAX is loaded by now and drops all arrays at exit; what comes last is called first.
                at_exit_from_now(lambda: self.give_up(_EXIT_SECONDS))
            return self._is_started
        finally:
            self._starting.release()

    def pending_count(self) -> int:
        return len(self._pending)

    def drain(self, timeout_seconds: float) -> bool:
        return self._await_deliveries(0.0 if self._has_given_up else timeout_seconds)

    def _await_deliveries(self, timeout_seconds: float) -> bool:
        last = max(list(self._pending), default=-1)
        deadline = time.monotonic() + timeout_seconds
        while any(number <= last for number in list(self._pending)):
            if time.monotonic() >= deadline or threading.get_ident() == self._thread_id:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def await_ready(self, is_ready: Callable[[], bool]) -> None:
        """Wait in Python until a device has computed a value; in the worker's thread.

        Raises:
            RecordingError: The process ends before that.
        """
        pause_seconds = _LOOK_SECONDS
        while not is_ready():
            if self._has_given_up:
                raise RecordingError("a value that its device had not computed when the process ended")
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_LOOK_SECONDS)

    def give_up(self, timeout_seconds: float) -> None:
        """Wait once, at the end of the process, so that no later call waits again."""
        self.settle(may_compute=getattr(sys, "last_value", None) is None)
        if not self.drain(timeout_seconds):
            self._has_given_up = True
            self._await_deliveries(4 * _LONGEST_LOOK_SECONDS)  # The worker counts the rest as lost.

    def stop(self, timeout_seconds: float) -> None:
        """Keep the worker out of the libraries that have the values, from now on; for the very end of the process."""
        self._has_given_up = True
        self._delivering.acquire(timeout=timeout_seconds)  # And never released: the worker waits for it in C.

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        while True:
            number, deliver = self._queue.get()
            with self._delivering:
                try:
                    deliver()
                except Exception as error:
                    LOSSES.add(f"device values: {type(error).__name__}")
                finally:
                    del deliver  # Else the last array would stay on its device. It may be freed here, in C++.
                    del self._pending[number]


_worker_of_this_process = _Worker()


def _start_clean_in_child() -> None:
    global _worker_of_this_process
    _worker_of_this_process = _Worker()


at_exit(lambda: _worker_of_this_process.stop(_STOP_SECONDS), ExitOrder.DEVICES)
at_fork(_start_clean_in_child)


# --- Kinds of values --------------------------------------------------------------------------------------


def _fetch_of_list(values: Any) -> Fetch | None:
    """Of a list with a value a chip, some of them on devices."""
    if all(type(value) in (float, int) for value in values):
        return None
    fetches = [None if isinstance(value, (list, tuple)) else fetch_of(value) for value in values]
    if not any(fetches):
        return None
    return lambda: [value if fetch is None else fetch() for value, fetch in zip(values, fetches, strict=True)]


def _fetch_of_jax(array: Any) -> Fetch:
    jax = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise RecordingError(
            "inside jax.jit a value is not known yet: return it from the function, or record it with jax.debug.callback"
        )
    check_shape(array.ndim, array.size)
    try:
        if not array.is_fully_addressable:
            if not array.is_fully_replicated:
                raise RecordingError("an array is spread over several hosts: reduce it, or record each host's part")
            array = array.addressable_data(0)
        array.copy_to_host_async()
        if jax.default_backend() != "cpu":
            # Asked in the caller's thread first: older clients of TPUs build the future behind it then, without a
            # lock, which the worker must not do at the moment at which the caller waits for the same array.
            _is_ready_or_deleted(array)
    except RecordingError:
        raise
    except Exception as error:
        raise _jax_error(array, error) from error

    def fetch() -> Any:
        import numpy

        _worker_of_this_process.await_ready(lambda: _is_ready_or_deleted(array))
        try:
            return numpy.asarray(array)
        except Exception as error:  # Also TypeError: keys of random numbers have no values.
            raise _jax_error(array, error) from error

    return fetch


_call = operator.methodcaller("__call__")


def _is_ready_or_deleted(array: Any) -> bool:
    """Return True if what JAX does with an array next, be it an error, takes no wait for a computation."""
    try:
        # JAX crashes if it is asked whether a deleted array is ready. No other thread can delete it in between: from
        # one function in C to the next, `any` does not release the GIL.
        return any(map(_call, (array.is_deleted, array.is_ready)))
    except Exception:  # It was donated; or it has no `is_ready`, like keys of random numbers.
        return True


def _jax_error(array: Any, error: Exception) -> RecordingError:
    if array.is_deleted():
        return RecordingError("an array was deleted or donated before it was copied from its device")
    return RecordingError(f"an array could not be had from its device ({type(error).__name__})")


def _fetch_of_torch(tensor: Any) -> Fetch | None:
    device = tensor.device.type
    if device == "cpu":
        return None
    if device == "meta":
        raise RecordingError("a tensor on the device meta has no value")
    check_shape(tensor.dim(), tensor.numel())
    if tensor.is_complex():
        raise RecordingError(f"a {shown_type(tensor)} of {tensor.dtype} is no number")
    tensor = tensor.detach()
    if device == "cuda":
        return _fetch_of_cuda(tensor)
    if device == "xla":
        return _fetch_of_xla(tensor)
    copy = tensor.clone()  # It may be changed in its place.
    return lambda: copy.tolist()


def _fetch_of_cuda(tensor: Any) -> Fetch:
    """A copy into pinned memory, the only one that does not wait, and an event behind it in the device's queue."""
    torch = sys.modules["torch"]
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    with torch.cuda.device(tensor.device):
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

    def fetch() -> Any:
        _worker_of_this_process.await_ready(copied.query)
        return host.tolist()

    return fetch


def _fetch_of_xla(tensor: Any) -> Fetch:
    """The value once PyTorch/XLA has computed it, at the end of the step: asked for earlier, it would cut the step."""
    tensor = tensor.clone()  # It may be changed in its place. No memory is copied: both share it until then.
    xla_model = import_module("torch_xla.core.xla_model")  # It is loaded, or there would be no such tensor.
    value = _StepValue(tensor)
    xla_model.add_step_closure(value.put, args=(tensor,), run_async=True)
    _worker_of_this_process.await_step(value)
    return value.fetch


class _StepValue:
    """A tensor of PyTorch/XLA whose value is known when its step has been computed.

    Attributes:
        tensor: The tensor.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self._worker = _worker_of_this_process
        self._found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, computed: Any) -> None:
        """Take the value; in a thread of torch_xla, after the step, or in the main one, at the end of the process."""
        if not self._worker.is_awaited(self):
            return
        self.tensor = None  # Its device may have the memory again.
        try:
            self._found.put(_list_of_xla(computed))
        except RecordingError as error:  # It would be raised into the next step.
            self._found.put(error)

    def is_computed(self) -> bool:
        """Return True if the tensor needs no further step."""
        bindings = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
        needs_step = getattr(bindings, "_check_tensor_need_materialization", None)
        try:
            return needs_step is not None and not any(needs_step([self.tensor]))
        except Exception:  # Also if `put` has taken it just now.
            return False

    def give_up(self) -> None:
        """Lose the value, unless it was taken."""
        if self._worker.is_awaited(self):
            self._found.put(RecordingError("a tensor of PyTorch/XLA after which torch_xla.sync() was not called"))

    def fetch(self) -> Any:
        """See `Fetch`."""
        try:
            numbers = self._found.get(timeout=_LONGEST_STEP_SECONDS)
        except queue.Empty:
            raise RecordingError("a step of PyTorch/XLA did not end, so that its values were not computed") from None
        if isinstance(numbers, RecordingError):
            raise numbers
        return numbers


def _list_of_xla(tensor: Any) -> Any:
    try:
        return tensor.tolist()
    except Exception as error:
        raise RecordingError(f"a tensor could not be had from its device ({type(error).__name__})") from error


def _is_single_process_of_xla() -> bool:
    try:
        runtime = import_module("torch_xla.runtime")
        return max(int(runtime.world_size()), int(runtime.process_count())) == 1
    except Exception:
        return False
