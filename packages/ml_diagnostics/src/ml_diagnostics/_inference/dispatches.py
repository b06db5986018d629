"""Calls of jitted functions, and which of them is the training step.

JAX calls a function of ours after each call of a compiled function, in the fast path that is written in C++; the types
of jitted functions stay JAX's. A training step is fed its own results: the arrays that it returned are among its next
arguments. Of several such functions, the step is the one that is fed the most bytes: the parameters, and not a metric.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

from ml_diagnostics_common.clock import now_seconds

from ml_diagnostics._inference.dispatch_times import DispatchTimes
from ml_diagnostics._inference.rhythm import Moment, Rhythm

__all__ = ["Dispatches"]

_INTERNAL: Final = ("jax", "jaxlib", "orbax")
"""Packages with functions that are parts of others: sums, conversions, random keys."""
_ANALYSED_CALLS: Final = 256
_ANALYSED_FED_CALLS: Final = 64
_ANALYSED_UNFED_CALLS: Final = 16
_FED_CALLS: Final = 2
_DOUBTED_CALLS: Final = 200
"""After so many calls a function that is fed in most of them is taken for the step, if none is fed in all."""
_UNFED_CALLS: Final = 8
"""After so many calls a function that is not fed is taken for the step, if none is fed."""
_MOST_LEAVES: Final = 1024
_CHECKED_CALLS: Final = 16
_CHECK_EVERY: Final = 16
_MOST_FUNCTIONS: Final = 4096
_CALLS_OF_NEXT_STEP: Final = 4


class _Function:
    """A jitted function of the program."""

    __slots__ = (
        "analysed",
        "calls",
        "calls_in_gap",
        "fed_bytes",
        "fed_calls",
        "gap",
        "is_internal",
        "label",
        "link",
        "name",
        "outs",
        "ref",
        "unfed_calls",
    )

    def __init__(self, function: Any) -> None:
        wrapped: Any = getattr(function, "__wrapped__", None)
        module = str(getattr(wrapped, "__module__", None) or "")
        self.ref = weakref.ref(function)
        self.name = str(getattr(function, "__name__", "") or "compiled function")
        self.label = self.name
        while hasattr(wrapped, "__wrapped__"):
            wrapped = wrapped.__wrapped__  # As of `jax.jit(jax.grad(f))`.
        if self.name == "<lambda>" and hasattr(wrapped, "__code__"):
            self.label = f"the lambda in line {wrapped.__code__.co_firstlineno}"
        self.is_internal = module.partition(".")[0] in _INTERNAL
        self.calls: list[tuple[float, bool]] = []
        """The calls before it was known to be the step."""
        self.calls_in_gap = 0
        self.gap = 0
        """The number of steps before its last call."""
        self.analysed = 0
        self.fed_calls = 0
        self.unfed_calls = 0
        """Calls, after the first, without a result of the last one: as of a sum that starts again in each step."""
        self.fed_bytes = 0
        self.outs: list[tuple[int, weakref.ref[Any]]] = []
        """The arrays that the last call returned, with their indices among all leaves of the result."""
        self.link: tuple[int, int] | None = None
        """The index of a result that was an argument of the next call, and the index of that argument."""

    @property
    def is_analysed(self) -> bool:
        """True while calls are checked for results of the last one."""
        if not self.fed_calls:
            return self.analysed < _ANALYSED_UNFED_CALLS
        return self.analysed < (_ANALYSED_CALLS if self.unfed_calls else _ANALYSED_FED_CALLS)


class Dispatches:
    """Observes calls of jitted functions in the main thread."""

    def __init__(self, rhythm: Rhythm, is_relevant: Callable[[], bool], chosen: Callable[[str, bool], None]) -> None:
        """Observe nothing yet.

        Args:
            rhythm: Receives the calls.
            is_relevant: Returns False while steps are known from elsewhere, and only evaluations are searched for.
            chosen: Called with the name of the function that is taken for the step, and with True if it is fed its
                results.
        """
        self._rhythm = rhythm
        self._is_relevant = is_relevant
        self._chosen = chosen
        self._main = threading.main_thread().ident
        self._times = DispatchTimes()
        self._functions: dict[int, _Function] = {}
        self._step: _Function | None = None
        self._step_calls = 0
        self._gap = 0
        self._is_done = False
        self._compiled: dict[str, list[tuple[float, float]]] = {}
        """The compilations of each function before the step is known."""
        self._leaves: Callable[[Any], list[Any]] = list
        self._get_hook: Callable[[], Any] = lambda: None
        self._set_hook: Callable[[Any], None] | None = None

    def open(self, jax: ModuleType) -> None:
        """Observe from now on, if this version of JAX can be observed."""
        self._leaves = jax.tree_util.tree_leaves
        state = getattr(sys.modules.get("jax._src.api"), "_post_hook_state", None)
        if state is not None:
            self._get_hook, self._set_hook = lambda: state.value, state.set_global
        else:  # Older versions of JAX.
            jax_jit = sys.modules.get("jaxlib.xla_extension.jax_jit") or sys.modules.get("jaxlib._jax.jax_jit")
            if jax_jit is None or not hasattr(jax_jit, "global_state"):
                return
            former = jax_jit.global_state()
            self._get_hook = lambda: former.post_hook
            self._set_hook = lambda hook: setattr(former, "post_hook", hook)
        if self._get_hook() is None:  # Else the program searches for NaNs, by the same hook.
            self._set_hook(self._on_call)

    def close(self) -> None:
        """Observe no longer."""
        self._times.close()
        if self._set_hook is not None and self._get_hook() == self._on_call:
            self._set_hook(None)

    def result_read(self) -> None:
        """Note that the main thread of the program has read a result."""
        if self._set_hook is not None:
            self._times.result_read()

    def compiled(self, name: str, start: float, end: float) -> None:
        """Note a compilation: the first call of a function, which the hook does not see."""
        same = [function for function in self._functions.values() if function.name == name]
        if len(same) == 1:
            same[0].outs = []  # The results of this call are not seen, so the next call shows nothing.
        step = self._step
        if step is not None and step.name == name and self._is_relevant():
            self._rhythm.dispatched(end, is_done=False, start=start)
            self._gap += 1
            return
        if step is None and len(self._compiled) < _MOST_FUNCTIONS:
            self._compiled.setdefault(name, []).append((start, end))
        self._rhythm.compiled(name, start, end)

    def finish(self) -> None:
        """Note the end of the program: take the best function for the step, if it ended before one was known."""
        if self._step is None and self._is_relevant():
            called = [one for one in self._functions.values() if not one.is_internal]
            likely = [one for one in called if one.fed_calls or len(one.calls) >= _CALLS_OF_NEXT_STEP]
            if likely:
                self._choose(max(likely, key=lambda one: (one.fed_bytes, len(one.calls))))

    def _on_call(self, function: Any, args: Any, kwargs: Any, out: Any) -> None:
        try:
            if threading.get_ident() != self._main:
                return
            known = self._functions.get(id(function))
            if known is None or known.ref() is not function:
                known = self._learn(function)
            if known.is_internal:
                return
            if self._times.is_measuring:
                self._times.dispatched()
                self._rhythm.dispatch_seconds = self._times.usual_seconds
            time = now_seconds()
            if known is self._step:
                self._on_step(known, time, args, kwargs, out)
            else:
                self._on_other(known, time, args, kwargs, out)
        except Exception as error:
            from ml_diagnostics_common.guard import report_loss

            report_loss("ml_diagnostics", error, "observe a call of JAX")

    def _learn(self, function: Any) -> _Function:
        if len(self._functions) >= _MOST_FUNCTIONS:
            self._functions = {key: one for key, one in self._functions.items() if one.ref() is not None}
            if len(self._functions) >= _MOST_FUNCTIONS:
                self._functions.clear()
        known = _Function(function)
        step = self._step
        if step is not None and step.ref() is None and step.name == known.name:
            # A program that makes its function again for each call has one function.
            step.ref = known.ref
            known = step
        self._functions[id(function)] = known
        return known

    def _on_step(self, step: _Function, time: float, args: Any, kwargs: Any, out: Any) -> None:
        if not self._is_relevant():
            return
        self._step_calls += 1
        if step.is_analysed:
            self._analyse(step, args, kwargs, out)
            if step.unfed_calls and step.fed_calls and self._is_doubted(step):
                self._step = None
                self._on_other(step, time, args, kwargs, out, is_analysed=True)
                return
        if self._step_calls < _CHECKED_CALLS or not self._step_calls % _CHECK_EVERY:
            self._is_done = self._is_ready(out)
        self._rhythm.dispatched(time, is_done=self._is_done)
        self._gap += 1

    def _on_other(
        self, other: _Function, time: float, args: Any, kwargs: Any, out: Any, *, is_analysed: bool = False
    ) -> None:
        is_done = self._is_ready(out)
        if not is_analysed and other.is_analysed and self._is_relevant():
            self._analyse(other, args, kwargs, out)
        if other.gap != self._gap:
            other.gap, other.calls_in_gap = self._gap, 0
        other.calls_in_gap += 1
        if self._is_relevant() and self._is_next_step(other):
            self._step = other
            self._rhythm.start_again()
            self._chosen(other.label, True)
        if self._step is None and len(other.calls) < _ANALYSED_CALLS:
            other.calls.append((time, is_done))
            if self._is_relevant() and self._is_step(other):
                self._choose(other)
                return
        self._rhythm.called(Moment(other.label, time, is_done))

    def _analyse(self, function: _Function, args: Any, kwargs: Any, out: Any) -> None:
        """Count the bytes of the arguments that the function returned itself the last time."""
        function.analysed += 1
        if function.link is not None:
            self._follow(function, function.link, args, kwargs, out)
            return
        returned = {id(array): index for index, ref in function.outs if (array := ref()) is not None}
        if function.outs:
            arguments = enumerate(self._leaves((args, kwargs)))
            fed = [(returned[id(leaf)], index, leaf) for index, leaf in arguments if id(leaf) in returned]
            if fed:
                function.fed_calls += 1
                sizes = (int(getattr(leaf, "nbytes", 0)) for _, _, leaf in fed)
                function.fed_bytes = max(function.fed_bytes, sum(sizes))
            else:
                function.unfed_calls += 1
            if function.fed_calls >= _FED_CALLS and fed:
                function.link = fed[0][:2]
        function.outs = []
        if function.is_analysed:
            results = enumerate(self._leaves(out)[:_MOST_LEAVES])
            function.outs = [(index, weakref.ref(leaf)) for index, leaf in results if hasattr(leaf, "is_ready")]

    def _follow(self, function: _Function, link: tuple[int, int], args: Any, kwargs: Any, out: Any) -> None:
        """Count whether one result is the same argument again, which costs a tenth of searching all."""
        result, argument = link
        if function.outs:
            leaves = self._leaves((args, kwargs))
            is_fed = argument < len(leaves) and leaves[argument] is function.outs[0][1]()
            function.fed_calls += is_fed
            function.unfed_calls += not is_fed
        results = self._leaves(out)
        is_array = result < len(results) and hasattr(results[result], "is_ready")
        function.outs = [(result, weakref.ref(results[result]))] if is_array else []

    def _is_step(self, function: _Function) -> bool:
        if function.fed_calls >= _FED_CALLS:
            return not self._is_doubted(function)
        is_any_fed = any(one.fed_calls for one in self._functions.values())
        return len(function.calls) >= _UNFED_CALLS and not is_any_fed

    def _is_doubted(self, function: _Function) -> bool:
        """Return True while a function that is not fed in each call may be a part of a step."""
        if not function.unfed_calls:
            return False
        others = any(one.fed_calls and not one.unfed_calls for one in self._functions.values())
        return others or function.analysed < _DOUBTED_CALLS

    def _is_next_step(self, function: _Function) -> bool:
        """Return True if the program trains by another function from now on, or did so all the time."""
        step = self._step
        if step is None or function.fed_calls < _FED_CALLS or function.unfed_calls:
            return False
        if function.fed_bytes > 2 * step.fed_bytes:
            return True
        return function.calls_in_gap >= _CALLS_OF_NEXT_STEP and function.fed_bytes > step.fed_bytes // 4

    def _choose(self, step: _Function) -> None:
        """Take a function for the step, and note the calls that it had."""
        self._step = step
        self._rhythm.start_again()
        self._chosen(step.label, step.fed_calls > 0)
        calls, step.calls = step.calls, []
        self._is_done = bool(calls) and calls[-1][1]
        times = [time for time, _ in calls]
        intervals = sorted(after - before for before, after in pairwise(times))
        usual = intervals[len(intervals) // 2] if intervals else None
        if usual is not None:
            self._rhythm.expect_interval(usual)
        # The hook sees no call that compiles, and not the first one of a function that was compiled before.
        first = times[0] if times else float("inf")
        compiled = [one for one in self._compiled.get(step.name, []) if one[1] <= first]
        if sum(one.name == step.name for one in self._functions.values()) > 1:
            compiled = compiled[-1:]  # The others may be those of another function with this name.
        for start, end in compiled:
            self._rhythm.dispatched(end, is_done=False, start=start)
        if usual is not None and not compiled:
            self._rhythm.dispatched(first - usual, is_done=False)
        if usual is not None and compiled and self._is_done:
            self._rhythm.dispatched(first, is_done=True, start=max(compiled[-1][1], first - usual))
            calls = calls[1:]
        for time, is_done in calls:
            self._rhythm.dispatched(time, is_done=is_done)
        self._rhythm.start_again()  # The calls of other functions between these are not known.
        self._compiled.clear()
        self._gap += 1

    def _is_ready(self, out: Any) -> bool:
        while isinstance(out, (tuple, list)) and out:
            out = out[-1]  # Mostly a loss or a metric: to flatten a thousand parameters would take 0.1 ms.
        if hasattr(out, "is_ready"):
            return bool(out.is_ready())
        for leaf in reversed(self._leaves(out)):
            is_ready = getattr(leaf, "is_ready", None)
            if is_ready is not None:
                return bool(is_ready())
        return True
