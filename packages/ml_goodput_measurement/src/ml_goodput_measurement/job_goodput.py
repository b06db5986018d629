"""The answer of `get_job_goodput`: a tuple that also behaves as its percentage."""

from __future__ import annotations

from typing import NamedTuple

from ml_goodput_measurement.metric_details import UnproductiveTimeDict

__all__ = ["JobGoodput"]


class JobGoodput(NamedTuple):
    """Goodput in percent, badput in percent by kind, and the last step.

    Both documented ways of using it work: `goodput, badput, step = calculator.get_job_goodput()`, and
    `f"{calculator.get_job_goodput():.2f}%"`. It converts, formats, rounds and compares with numbers as its goodput.
    """

    goodput: float
    badput_breakdown: UnproductiveTimeDict
    last_step: int

    def __float__(self) -> float:
        return self.goodput

    def __format__(self, spec: str) -> str:
        return format(self.goodput, spec) if spec else str(self)

    def __round__(self, digits: int | None = None) -> float:
        return round(self.goodput, digits)

    def __eq__(self, other: object) -> bool:
        return self.goodput == other if _is_number(other) else tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return self.goodput < other if _is_number(other) else tuple.__lt__(self, other)  # type: ignore[operator]

    def __le__(self, other: object) -> bool:
        return self.goodput <= other if _is_number(other) else tuple.__le__(self, other)  # type: ignore[operator]

    def __gt__(self, other: object) -> bool:
        return self.goodput > other if _is_number(other) else tuple.__gt__(self, other)  # type: ignore[operator]

    def __ge__(self, other: object) -> bool:
        return self.goodput >= other if _is_number(other) else tuple.__ge__(self, other)  # type: ignore[operator]

    def __hash__(self) -> int:
        return hash(self.goodput)


# With this numpy's numbers leave comparisons to the class; the body of a named tuple has no place for it.
JobGoodput.__array_ufunc__ = None  # type: ignore[attr-defined]


def _is_number(value: object) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, tuple)
