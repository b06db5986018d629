"""What is not ours on the command line: a slip of the pen, or an option for gcloud."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from xprofiler.exceptions import UsageError

__all__ = ["edits", "flags_for_gcloud", "nearest_flag", "split_arguments"]

_MOST_EDITS = 2


def split_arguments(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits what was typed at the first `--`, which is dropped."""
    words = list(typed)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def nearest_flag(option: str, flags: Iterable[str]) -> str | None:
    """Returns the flag that was probably meant; None where none is within two edits, which is what is promised.

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


def flags_for_gcloud(unknown: Sequence[str], after: Sequence[str], ours: Collection[str]) -> list[str]:
    """Returns what is handed on to gcloud, a word for each flag and its value.

    So no word can become the name of a VM that nobody was shown, and no flag can lead elsewhere than ours do.

    Args:
        unknown: What was typed before `--` and is not ours.
        after: What was typed after it.
        ours: The flags that the command has itself.

    Raises:
        UsageError: A word belongs to no flag, or a flag is one of ours.
    """
    short = [word for word in unknown if word.startswith("-") and not word.startswith("--")]
    if short:
        raise UsageError(f"there is no option {short[0]}; one of gcloud's goes after --")
    flags: list[str] = []
    awaits_value = False
    for word in (*unknown, *after):
        if word.startswith("-") and word != "--":
            flag = word.partition("=")[0]
            if flag in ours:
                raise UsageError(f"{flag} cannot go on to gcloud: it is an option of this command, and goes before --")
            flags.append(word)
            awaits_value = word.startswith("--") and "=" not in word
        elif awaits_value and word != "--":
            flags[-1] += f"={word}"
            awaits_value = False
        else:
            raise UsageError(f"{word!r} belongs to no option: gcloud gets flags only, --flag or --flag=value")
    return flags


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
