"""What is not ours on the command line: a slip of the pen, or an option for gcloud."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["nearest_flag", "split_arguments"]

_MOST_EDITS = 2


def split_arguments(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits what was typed at the first `--`, which is dropped."""
    words = list(typed)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def nearest_flag(option: str, flags: Iterable[str]) -> str | None:
    """Returns the flag that was probably meant; None where none is near.

    Args:
        option: As typed, maybe with `=value`.
        flags: Those that there are.
    """
    name = option.partition("=")[0]
    if not name.startswith("--"):
        return None
    near = [(edits(name, flag), flag) for flag in flags if flag.startswith("--")]
    distance, flag = min(near, default=(_MOST_EDITS + 1, ""))
    return flag if distance <= _MOST_EDITS else None


def edits(one: str, other: str) -> int:
    """How many letters must be put in, left out, changed, or swapped with the next, to make one word of the other.

    This is the optimal string alignment distance: https://en.wikipedia.org/wiki/Damerau-Levenshtein_distance
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        previous, before, row = before, row, [i]
        for j, its_letter in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != its_letter))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its_letter:
                cost = min(cost, previous[j - 2] + 1)
            row.append(cost)
    return row[-1]
