"""By how much each step's time differs from the ideal one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

__all__ = ["StepDeviations"]


class StepDeviations(Mapping[int, float]):
    """Absolute deviation from the ideal step time, in seconds, by step.

    It is worked out when it is first checked, from what the calculator knows by then: it costs time and memory in
    proportion to the steps, and most who ask for a job's details never look.
    """

    def __init__(self, step_seconds: Callable[[], Mapping[int, float]], ideal_seconds: float | None) -> None:
        """Take where the step times are found, and the ideal step time; None where there is none."""
        self._step_seconds = step_seconds
        self._ideal_seconds = ideal_seconds
        self._deviations: dict[int, float] | None = None

    def __getitem__(self, step: int) -> float:
        return self._worked_out()[step]

    def __iter__(self) -> Iterator[int]:
        return iter(self._worked_out())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._worked_out())

    def __len__(self) -> int:
        return len(self._worked_out())

    def __repr__(self) -> str:
        return repr(self._worked_out())

    def __reduce__(self) -> tuple[type[dict[int, float]], tuple[dict[int, float]]]:
        return dict, (self._worked_out(),)  # A copy, in this process or another, needs no ledger.

    def _worked_out(self) -> dict[int, float]:
        if self._deviations is None:
            ideal = self._ideal_seconds
            steps = {} if ideal is None else self._step_seconds()
            self._deviations = {step: abs(seconds - (ideal or 0.0)) for step, seconds in steps.items()}
        return self._deviations
