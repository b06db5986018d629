from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.entry import SeenSequences


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30))))
def test_an_entry_is_new_once_in_any_order_of_arrival(entries: list[tuple[str, int]]) -> None:
    seen, expected = SeenSequences(), set()
    for writer, sequence in entries:
        assert ((writer, sequence) in seen) == ((writer, sequence) in expected)
        assert seen.add(writer, sequence) == ((writer, sequence) not in expected)
        expected.add((writer, sequence))
    restored = SeenSequences.from_json(json.loads(json.dumps(seen.to_json())))
    for each in (seen, restored):
        missing = {
            (writer, number)
            for writer, gaps in each.gaps().items()
            for first, last in gaps
            for number in range(first, last + 1)
        }
        for writer in "ab":
            numbers = [number for name, number in expected if name == writer]
            if numbers:
                between = {(writer, number) for number in range(min(numbers), max(numbers))}
                assert {entry for entry in missing if entry[0] == writer} == between - expected
    assert restored.to_json() == seen.to_json()


def test_memory_does_not_grow_with_the_number_of_entries() -> None:
    seen = SeenSequences()
    for number in range(10_000):
        seen.add("w", number ^ 1)  # Neighbours swapped, as threads do.
    assert seen.to_json() == {"w": [[0, 9_999]]}
    assert seen.gaps() == {}
