"""Processes that compiled other programs than most: they run another program, or other shapes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from ml_diagnostics_console._facts.facts import ProcessFacts
from ml_diagnostics_console.verdict import Ref

__all__ = ["LEAST_PROCESSES", "Compiled", "compiled_differently"]

LEAST_PROCESSES: Final = 3
"""With two processes, nothing shows which of them is different."""


class Compiled(NamedTuple):
    """Processes that compiled other programs than most."""

    processes: tuple[ProcessFacts, ...]
    text: str
    refs: tuple[Ref, ...]


def compiled_differently(processes: Sequence[ProcessFacts]) -> Compiled | None:
    """Return the processes that compiled another number of programs than most: they run another program, or shapes.

    Only if most processes compiled the same: otherwise nothing shows which of them is different.
    """
    counts = [
        (process, sum((Counter(batch.functions) for batch in process.compiles), Counter[str]()))
        for process in processes
        if process.compiles
    ]
    if len(counts) < len(processes) or len(processes) < LEAST_PROCESSES:
        return None
    forms = Counter(tuple(sorted(count.items())) for _, count in counts)
    form, many = forms.most_common(1)[0]
    usual = Counter(dict(form))
    odd = [(process, count) for process, count in counts if count != usual]
    if not odd or many * 2 <= len(processes):
        return None
    first, own = odd[0]
    difference = (own - usual) or (usual - own)
    function = max(difference, key=lambda name: difference[name])
    text = f"it compiled {function} {own[function]} times, the others {usual[function]}"
    return Compiled(tuple(process for process, _ in odd), text, (first.compiles[-1].ref,))
