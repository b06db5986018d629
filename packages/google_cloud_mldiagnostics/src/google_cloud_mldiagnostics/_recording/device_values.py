"""Record values that are still on a device, in a worker, when they are ready; the caller never waits.

The call only starts the copy to the host, which costs tens of microseconds. At most 1,000 values are pending; further
ones are refused. A value is lost if it is deleted or donated before it was copied, or if it is computed more than two
seconds after the program's end. A tensor of PyTorch/XLA that no step computes is computed at the end of the run or of
the process, or lost.

The worker waits in Python, not in C++: a thread that returns from C++ while the interpreter is finalized is ended by
CPython inside C++, and the C++ runtime then aborts the process. Neither JAX nor CUDA can wake a Python thread, so it
polls: two or three times in a step of 7 ms, of about 40 us each, which the trainer's thread does not notice.
"""

from __future__ import annotations

import operator
import queue
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeAlias

from ml_diagnostics_common.process_hooks import ExitOrder, at_exit, at_exit_from_now, at_fork
from ml_diagnostics_common.worker import Worker

from google_cloud_mldiagnostics._recording.values import MOST_VALUES, check_shape, shown_type
from google_cloud_mldiagnostics.exceptions import RecordingError

__all__ = ["MOST_PENDING", "Fetch", "drain", "fetch_of", "later", "pending_count", "settle"]

MOST_PENDING = 1_000
_EXIT_SECONDS: Final = 2.0
_FIRST_PAUSE_SECONDS = 0.004
_LONGEST_PAUSE_SECONDS = 0.05
_STOP_SECONDS = 1.0
_LONGEST_STEP_SECONDS = 3600.0

Fetch: TypeAlias = Callable[[], Any]
"""Wait for a value, and return it from the host's memory, or raise RecordingError. Called once, in the worker."""


def fetch_of(value: Any) -> Fetch | None:
    """Start to copy a value to the host.

    Args:
        value: A value of any type.

    Returns:
        A function that waits for the copy; None for a value that is not on a device.

    Raises:
        RecordingError: The value cannot be copied, now or later.
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
    """Queue a function that waits for a device; the worker calls queued functions in order.

    Raises:
        RecordingError: Too many are pending.
    """
    # Not at import: JAX is loaded by now, and drops all arrays when its own exit function is called.
    at_exit_from_now(_drain_at_exit)
    if _worker.pending_count() >= MOST_PENDING:
        raise RecordingError(f"more than {MOST_PENDING:,} values of devices wait to be ready")
    if not _worker.put(deliver):
        raise RecordingError("there can be no thread that waits for a device")


def drain(timeout_seconds: float) -> bool:
    """Wait until all pending values are recorded; return False if that takes longer."""
    return _worker.drain(0.0 if _values_of_this_process.are_given_up else timeout_seconds)


def settle(*, may_compute: bool) -> None:
    """Compute the pending values of PyTorch/XLA after the last step, in the caller's thread; else count them as lost.

    Called at the end of a run in the user's thread: the values would wait for a step that never ends.

    Args:
        may_compute: False if the job has failed, perhaps because of its devices. Then, and if there are several
            processes, which could wait for each other, only computed values are recorded. A failed process of
            several records none.
    """
    values = list(_values_of_this_process.of_steps.values())
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
    for value in list(_values_of_this_process.of_steps.values()):
        value.give_up()


def pending_count() -> int:
    """Return how many values wait for their devices."""
    return _worker.pending_count()


# --- The worker, and the end of the process ---------------------------------------------------------------


class _Values:
    """The state of the pending values that the worker does not have.

    Attributes:
        exit_seconds: The longest that the end of the process waits for devices.
        are_given_up: True if the process exits and has stopped to wait.
        of_steps: Values of PyTorch/XLA in a step that is not computed yet, by identity.
    """

    def __init__(self, *, exit_seconds: float = _EXIT_SECONDS) -> None:
        self.exit_seconds = exit_seconds
        self.are_given_up = False
        self.of_steps: dict[int, _StepValue] = {}


# State of the process.
_worker = Worker("mldiagnostics-device-values")
_values_of_this_process = _Values()


def _await_ready(is_ready: Callable[[], bool]) -> None:
    """Wait in Python until a device has computed a value; in the worker's thread.

    Raises:
        RecordingError: The process ends before that.
    """
    pause_seconds = _FIRST_PAUSE_SECONDS
    while not is_ready():
        if _values_of_this_process.are_given_up:
            raise RecordingError("a value that its device had not computed when the process ended")
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def _drain_at_exit() -> None:
    """Wait once, so that no later call waits again."""
    settle(may_compute=getattr(sys, "last_value", None) is None)
    if not drain(_values_of_this_process.exit_seconds):
        _values_of_this_process.are_given_up = True
        _worker.drain(4 * _LONGEST_PAUSE_SECONDS)  # The worker counts the rest as lost.


def _stop_at_exit() -> None:
    """Keep the worker out of the libraries of the values, at the end of the process."""
    _values_of_this_process.are_given_up = True
    _worker.stop()
    _worker.wait(_STOP_SECONDS)


def _start_clean_in_child() -> None:
    global _values_of_this_process
    _values_of_this_process = _Values()


at_exit(_stop_at_exit, ExitOrder.DEVICES)
at_fork(_start_clean_in_child)


# --- Kinds of values --------------------------------------------------------------------------------------


def _fetch_of_list(values: Any) -> Fetch | None:
    """Start to copy a list with a value for each chip, some of them on devices."""
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

        _await_ready(lambda: _is_ready_or_deleted(array))
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
    return RecordingError(f"an array could not be copied from its device ({type(error).__name__})")


def _fetch_of_torch(tensor: Any) -> Fetch | None:
    device = tensor.device.type
    if device == "cpu":
        return None
    if device == "meta":
        raise RecordingError("a tensor on the device meta has no value")
    check_shape(tensor.dim(), tensor.numel())
    if tensor.is_complex():
        raise RecordingError(f"a {shown_type(tensor)} of {tensor.dtype} is not a valid number")
    tensor = tensor.detach()
    if device == "cuda":
        return _fetch_of_cuda(tensor)
    if device == "xla":
        return _fetch_of_xla(tensor)
    copy = tensor.clone()  # The job may change it in place.
    return lambda: copy.tolist()


def _fetch_of_cuda(tensor: Any) -> Fetch:
    """Copy into pinned memory, which alone does not wait, and put an event behind that in the device's queue."""
    torch = sys.modules["torch"]
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    with torch.cuda.device(tensor.device):
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

    def fetch() -> Any:
        _await_ready(copied.query)
        return host.tolist()

    return fetch


def _fetch_of_xla(tensor: Any) -> Fetch:
    """Wait for the end of the step, when PyTorch/XLA has computed the value: read earlier, it would cut the step."""
    tensor = tensor.clone()  # The job may change it in place. No memory is copied: both share it until then.
    xla_model = import_module("torch_xla.core.xla_model")  # It is loaded, or there would be no such tensor.
    value = _StepValue(tensor)
    xla_model.add_step_closure(value.put, args=(tensor,), run_async=True)
    _values_of_this_process.of_steps[id(value)] = value
    return value.fetch


class _StepValue:
    """A tensor of PyTorch/XLA; its value is known once its step has been computed.

    Attributes:
        tensor: The tensor.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self._values = _values_of_this_process
        self._found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, computed: Any) -> None:
        """Take the value; in a thread of torch_xla, after the step, or in the main one, at the end of the process."""
        if not self._is_awaited():
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
        """Count the value as lost, unless it was taken."""
        if self._is_awaited():
            self._found.put(RecordingError("a tensor of PyTorch/XLA after which torch_xla.sync() was not called"))

    def _is_awaited(self) -> bool:
        """Return True to the first caller, which then takes the value or counts it as lost."""
        return self._values.of_steps.pop(id(self), None) is not None

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
        raise RecordingError(f"a tensor could not be copied from its device ({type(error).__name__})") from error


def _is_single_process_of_xla() -> bool:
    try:
        runtime = import_module("torch_xla.runtime")
        return max(int(runtime.world_size()), int(runtime.process_count())) == 1
    except Exception:
        return False
