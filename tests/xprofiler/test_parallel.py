"""Calls in parallel."""

from __future__ import annotations

from xprofiler.parallel import in_parallel


def test_results_of_parallel_calls_have_the_order_of_their_arguments() -> None:
    def halved(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number // 2

    found = in_parallel(halved, range(100))
    assert [one for one in found if not isinstance(one, Exception)] == list(range(50))
    assert [one.args[0] for one in found if isinstance(one, ValueError)] == list(range(1, 100, 2))
    assert in_parallel(halved, []) == []
