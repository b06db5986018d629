"""Convert values to the numbers of an entry, without waiting for a device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex, cast

from google_cloud_mldiagnostics._entries import mean_of_finite, not_finite_text
from google_cloud_mldiagnostics.exceptions import RecordingError

__all__ = [
    "LARGEST_STEP",
    "MOST_VALUES",
    "Numbers",
    "check_shape",
    "exact_step",
    "host_numbers",
    "shown_type",
]

MOST_VALUES = 10_000
"""The most values of one entry: with more, it would be larger than Cloud Logging accepts."""

LARGEST_STEP = 2**63
"""The limit of a step's absolute value, not included."""

_LONGEST_STEP = 100  # As text.
_TOO_LARGE = "expected a step of at most 64 bits, got a larger one"
_NOT_NUMBERS = frozenset("cSUMm")
"""Kinds of numpy's dtypes: complex, bytes, text, moments, durations."""


class Numbers(NamedTuple):
    """The value of an entry.

    Attributes:
        json: The numbers as a JSON array; numbers that are not finite as the texts NaN, Infinity and -Infinity.
        mean: The mean of the finite numbers; the last number if none is finite.
        is_finite: True if all are finite.
    """

    json: str
    mean: float
    is_finite: bool


def host_numbers(value: Any) -> Numbers:
    """Return the numbers of a value that is in this host's memory.

    Args:
        value: A number of Python, numpy or another library, a 0-D array, or a list, tuple or 1-D array with a number
            per chip.

    Raises:
        RecordingError: The value has another type, which the message names.
    """
    numbers = [_number(item) for item in _items(value)]
    if not numbers:
        raise RecordingError("expected at least one value, got an empty list")
    return Numbers(f"[{','.join(map(_json, numbers))}]", mean_of_finite(numbers), all(map(math.isfinite, numbers)))


def exact_step(step: Any) -> int:
    """Return a step as an integer.

    Args:
        step: Any value that `int` accepts without changing it.

    Raises:
        RecordingError: The step is not a whole number, or too large.
    """
    try:
        # Before `int`, which takes minutes for Decimal("1E+999999").
        if len(step) > _LONGEST_STEP if isinstance(step, str) else step >= LARGEST_STEP or step <= -LARGEST_STEP:
            raise RecordingError(_TOO_LARGE)
        number = int(step)
        is_exact = isinstance(step, str) or bool(number == step)
    except RecordingError:
        raise
    except Exception as error:
        given = "text that is not a number" if isinstance(step, str) else shown_type(step)
        raise RecordingError(f"step must be a whole number, got {given}") from error
    if not is_exact:
        raise RecordingError("step must be a whole number, got a number with a fraction")
    if not -LARGEST_STEP < number < LARGEST_STEP:
        raise RecordingError(_TOO_LARGE)
    return number


def shown_type(value: object) -> str:
    """Return the name of a value's type, as users import it."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _items(value: Any) -> Iterable[Any]:
    """Return the values of a list or 1-D array, at most one for each chip; else the value alone."""
    if isinstance(value, (list, tuple)):
        check_shape(1, len(value))
        return value
    dimensions = getattr(value, "ndim", None)
    if not isinstance(dimensions, int) or not hasattr(value, "dtype"):
        return (value,)
    if getattr(value.dtype, "kind", "") in _NOT_NUMBERS:
        raise RecordingError(f"expected numbers, got a {shown_type(value)} of {value.dtype}")
    _refuse_masked(value)
    if dimensions == 0:
        return (value.item(),)
    check_shape(dimensions, len(value))
    return cast("Iterable[Any]", value.tolist())


def check_shape(dimensions: int, count: int) -> None:
    """Raise an error for an array that is not a list of values, one per chip.

    Raises:
        RecordingError: The array has more than one dimension, or too many values.
    """
    if dimensions > 1:
        raise RecordingError(f"expected a scalar or 1-D array, got an array of {dimensions} dimensions")
    if count > MOST_VALUES:
        raise RecordingError(f"expected at most {MOST_VALUES:,} values, got more")


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    # float() also accepts a datetime64, and an array with one element.
    is_number = hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    if not is_number or getattr(getattr(value, "dtype", None), "kind", "") in _NOT_NUMBERS or _is_array(value):
        raise RecordingError(f"expected a number, got a {shown_type(value)}")
    _refuse_masked(value)
    try:
        # The method of float itself, since that of a subclass may return anything.
        return float.__float__(float(cast("SupportsFloat | SupportsIndex", value)))
    except Exception as error:
        raise RecordingError(f"expected a number, got a {shown_type(value)} that float() does not accept") from error


def _refuse_masked(value: Any) -> None:
    """Refuse a masked value of numpy, which `item` and `float` would convert to a number.

    Raises:
        RecordingError: The value, or an element of the array, is masked.
    """
    mask: Any = getattr(value, "mask", None)
    if hasattr(mask, "any") and bool(mask.any()):
        raise RecordingError("expected a number, got a value that is masked (numpy.ma)")


def _is_array(value: Any) -> bool:
    dimensions = getattr(value, "ndim", 0)
    return isinstance(dimensions, int) and dimensions > 0


def _json(number: float) -> str:
    return repr(number) if math.isfinite(number) else f'"{not_finite_text(number)}"'
