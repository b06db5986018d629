"""Observers beside JAX's events: step annotations and devices of JAX, optimizers of PyTorch, iterators of data.

Each function is called after the program has imported a module, and puts a call of ours around a method or a function
of it, which keeps its name, its arguments and its result.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, Protocol

from ml_diagnostics_common.clock import now_seconds
from ml_diagnostics_common.guard import guarded_as

from ml_diagnostics._inference.imports import after_import

__all__ = ["Observed", "observe_all"]

_DEVICES_SECONDS: Final = 0.001
_RECORDER: Final = "ml_goodput_measurement._record.recorder"


class Observed(Protocol):
    """Receives what was observed; all times are seconds since 1970."""

    def annotated(self, name: str, number: Any, time: float) -> None:
        """Note that a `StepTraceAnnotation` was entered."""
        ...

    def left_annotation(self, name: str) -> None:
        """Note that a `StepTraceAnnotation` was left."""
        ...

    def initialized_devices(self, start: float, end: float) -> None:
        """Note that JAX searched for the devices."""
        ...

    def loaded(self, source: str, start: float, end: float) -> None:
        """Note that a batch was waited for."""
        ...

    def fetched(self, time: float) -> None:
        """Note that a result of the device was read, or waited for."""
        ...

    def optimized(self, optimizer: Any, start: float, end: float) -> None:
        """Note that an optimizer of PyTorch made a step."""
        ...

    def changed_mode(self, module: Any, time: float, *, is_training: bool) -> None:
        """Note that a module of PyTorch was set to training or to evaluation."""
        ...

    def used_file(self, kind: str, start: float, end: float) -> None:
        """Note that PyTorch wrote a file, a `save`, or read one, a `restore`."""
        ...

    def records_itself(self, recorder: Any) -> None:
        """Note that a recorder of goodput records the start of a job."""
        ...


def observe_all(observed: Observed) -> None:
    """Observe each framework when the program imports it.

    Args:
        observed: Receives what happens in the main thread.
    """
    after_import("jax.profiler", lambda module: _observe_annotations(module, observed))
    after_import("jax._src.xla_bridge", lambda module: _observe_devices(module, observed))
    after_import("jax._src.array", lambda module: _observe_results(module, observed))
    after_import(_RECORDER, lambda module: _observe_recorders(module, observed))
    after_import("torch.optim.optimizer", lambda module: _observe_optimizers(module, observed))
    after_import("torch.nn.modules.module", lambda module: _observe_modes(module, observed))
    after_import("torch.serialization", lambda module: _observe_torch_files(module, observed))
    after_import("torch.utils.data.dataloader", lambda module: _observe_loader(module, observed))
    after_import("grain._src.python.data_loader", lambda module: _observe_grain_loader(module, observed))
    after_import("grain._src.python.dataset.dataset", lambda module: _observe_grain(module, observed))
    after_import("tensorflow.python.data.ops.iterator_ops", lambda module: _observe_tf(module, observed))
    after_import("tensorflow.python.data.ops.dataset_ops", lambda module: _observe_tf(module, observed))


_guarded = guarded_as("observe data loading")
"""For what is called within the program's own calls."""


_MAIN: Final = threading.main_thread()


def _is_main() -> bool:
    return threading.get_ident() == _MAIN.ident


def _observe_annotations(profiler: ModuleType, observed: Observed) -> None:
    kind: Any = profiler.StepTraceAnnotation
    init, enter, leave = kind.__init__, kind.__enter__, kind.__exit__

    @functools.wraps(init)
    def init_and_note(self: Any, name: Any, **options: Any) -> None:
        init(self, name, **options)
        self._ml_diagnostics_step = (name, options.get("step_num"))

    @functools.wraps(enter)
    def note_and_enter(self: Any) -> Any:
        if _is_main():
            name, number = getattr(self, "_ml_diagnostics_step", ("", None))
            observed.annotated(str(name), number, now_seconds())
        return enter(self)

    @functools.wraps(leave)
    def leave_and_note(self: Any, *raised: Any) -> Any:
        left = leave(self, *raised)
        if _is_main():
            observed.left_annotation(str(getattr(self, "_ml_diagnostics_step", ("",))[0]))
        return left

    kind.__init__, kind.__enter__, kind.__exit__ = init_and_note, note_and_enter, leave_and_note


def _observe_devices(bridge: ModuleType, observed: Observed) -> None:
    """Time the first call that initializes the devices; later ones are JAX's own again."""
    backends: Callable[[], Any] = bridge.backends

    @functools.wraps(backends)
    def timed_backends() -> Any:
        start = now_seconds()
        found = backends()
        if getattr(bridge, "backends", None) is timed_backends:
            bridge.backends = backends  # type: ignore[attr-defined]
            if _is_main() and now_seconds() - start >= _DEVICES_SECONDS:
                observed.initialized_devices(start, now_seconds())
        return found

    bridge.backends = timed_backends  # type: ignore[attr-defined]


def _observe_results(module: ModuleType, observed: Observed) -> None:
    """Note when values are read by `float(loss)` and the like; numpy reads them without a call that is seen."""
    kind: Any = module.ArrayImpl
    value, wait = kind._value, kind.block_until_ready

    def noted_value(array: Any) -> Any:
        found = value.fget(array)
        if _is_main():
            observed.fetched(now_seconds())
        return found

    def wait_and_note(array: Any) -> Any:
        waited = wait(array)
        if _is_main():
            observed.fetched(now_seconds())
        return waited

    # `functools.wraps` fails with a method that is written in C++.
    wait_and_note.__name__, wait_and_note.__doc__ = "block_until_ready", getattr(wait, "__doc__", None)
    kind._value, kind.block_until_ready = property(noted_value, doc=value.__doc__), wait_and_note


def _observe_recorders(module: ModuleType, observed: Observed) -> None:
    kind: Any = module.GoodputRecorder
    start = kind.record_job_start_time

    @functools.wraps(start)
    def note_and_start(self: Any, *time: Any, **named: Any) -> Any:
        if getattr(self, "_enabled", False):
            observed.records_itself(self)
        return start(self, *time, **named)

    kind.record_job_start_time = note_and_start


def _observe_optimizers(module: ModuleType, observed: Observed) -> None:
    started = [0.0]

    def before(*_: Any) -> None:
        started[0] = now_seconds()

    def after(optimizer: Any, *_: Any) -> None:
        if _is_main():
            observed.optimized(optimizer, started[0], now_seconds())

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _observe_modes(module: ModuleType, observed: Observed) -> None:
    kind: Any = module.Module
    train = kind.train
    depth = [0]

    @functools.wraps(train)
    def train_and_note(self: Any, mode: bool = True) -> Any:
        if not _is_main():
            return train(self, mode)
        depth[0] += 1  # A module sets those in it by the same method.
        try:
            return train(self, mode)
        finally:
            depth[0] -= 1
            if not depth[0]:
                observed.changed_mode(self, now_seconds(), is_training=bool(mode))

    kind.train = train_and_note


def _observe_torch_files(module: ModuleType, observed: Observed) -> None:
    for name, kind in (("save", "save"), ("load", "restore")):
        function = getattr(module, name)
        timed = _timed(function, kind, observed)
        for holder in (module, sys.modules.get("torch")):
            if holder is not None and getattr(holder, name, function) is function:
                setattr(holder, name, timed)


def _timed(function: Callable[..., Any], kind: str, observed: Observed) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **options: Any) -> Any:
        start = now_seconds()
        result = function(*args, **options)
        if _is_main():
            observed.used_file(kind, start, now_seconds())
        return result

    return timed


class _Loads:
    """Times the outermost `__next__` of iterators that may be within each other."""

    is_within = False
    """True while the main thread is within one of any kind: a loader may be made of data sets."""

    def __init__(self, observed: Observed, source: str) -> None:
        self._observed = observed
        self._source = source
        self._pid = os.getpid()

    def time(self, kind: Any) -> None:
        """Time `__next__` of a class of iterators, once."""
        following = kind.__dict__.get("__next__")
        if following is None or hasattr(following, "_ml_diagnostics"):
            return

        @functools.wraps(following)
        def timed_next(iterator: Any) -> Any:
            if not _is_main() or _Loads.is_within or os.getpid() != self._pid:
                return following(iterator)
            _Loads.is_within = True
            start = now_seconds()
            try:
                return following(iterator)
            finally:
                _Loads.is_within = False
                self._observed.loaded(self._source, start, now_seconds())

        timed_next._ml_diagnostics = True  # type: ignore[attr-defined]
        kind.__next__ = timed_next

    @_guarded
    def time_iterators_of(self, kind: Any, package: str) -> None:
        """Time the iterators that a class of data sets returns, if their classes are of its package, or derived.

        Args:
            kind: The class of data sets.
            package: The name of the package. Other iterators, such as generators, and their bases are not of data only.
        """
        iterate = kind.__dict__.get("__iter__")
        if iterate is None:
            return

        @functools.wraps(iterate)
        def iterate_timed(data: Any) -> Any:
            iterator = iterate(data)
            self._time_classes_of(iterator, package)
            return iterator

        kind.__iter__ = iterate_timed

    @_guarded
    def _time_classes_of(self, iterator: Any, package: str) -> None:
        for each in type(iterator).__mro__:
            if any(base.__module__.partition(".")[0] == package for base in each.__mro__):
                self.time(each)


def _observe_loader(module: ModuleType, observed: Observed) -> None:
    _Loads(observed, "torch's DataLoader").time(module._BaseDataLoaderIter)


def _observe_grain_loader(module: ModuleType, observed: Observed) -> None:
    _Loads(observed, "grain").time_iterators_of(module.DataLoader, "grain")


def _observe_grain(module: ModuleType, observed: Observed) -> None:
    loads = _Loads(observed, "grain")
    for name in ("MapDataset", "IterDataset"):
        _observe_subclasses(getattr(module, name), loads)


def _observe_subclasses(kind: Any, loads: _Loads) -> None:
    loads.time_iterators_of(kind, "grain")
    former = kind.__dict__.get("__init_subclass__")

    def init_subclass(cls: Any, /, **options: Any) -> None:
        super(kind, cls).__init_subclass__(**options) if former is None else former.__get__(None, cls)(**options)
        loads.time_iterators_of(cls, "grain")

    kind.__init_subclass__ = classmethod(init_subclass)


def _observe_tf(module: ModuleType, observed: Observed) -> None:
    loads = _Loads(observed, "tf.data")
    for name in ("OwnedIterator", "NumpyIterator", "_NumpyIterator"):
        if hasattr(module, name):
            loads.time(getattr(module, name))
