"""Unknown options on the command line: near misses of ours, or options for gcloud."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from xprofiler.exceptions import UsageError

__all__ = ["edits", "flags_for_gcloud", "nearest_flag", "split_arguments"]

_MOST_EDITS = 2


def split_arguments(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments at the first `--`, which is dropped."""
    arguments = list(typed)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def nearest_flag(option: str, flags: Iterable[str]) -> str | None:
    """Return the flag that was probably meant; None if none is within two edits.

    Args:
        option: The option as typed, with or without `=value`.
        flags: The valid flags.
    """
    name = option.partition("=")[0]
    if not name.startswith("--"):
        return None
    near = [(edits(name, flag), flag) for flag in flags if flag.startswith("--")]
    distance, flag = min(near, default=(_MOST_EDITS + 1, ""))
    return flag if distance <= _MOST_EDITS else None


def flags_for_gcloud(unknown: Sequence[str], after: Sequence[str], ours: Collection[str]) -> list[str]:
    """Return the arguments for gcloud, each a flag with its value.

    Positional arguments are rejected, since gcloud would take them for names of VMs that the user was not asked about.

    Args:
        unknown: Unknown arguments before `--`.
        after: The arguments after it.
        ours: The flags of the command itself.

    Raises:
        UsageError: An argument belongs to no flag, or a flag is one of ours.
    """
    short = [argument for argument in unknown if argument.startswith("-") and not argument.startswith("--")]
    if short:
        raise UsageError(f"unknown option {short[0]}; put options for gcloud after --")
    flags: list[str] = []
    awaits_value = False
    for argument in (*unknown, *after):
        if argument.startswith("-") and argument != "--":
            flag = argument.partition("=")[0]
            if flag in ours:
                raise UsageError(
                    f"{flag} cannot be passed to gcloud: it is an option of this command; put it before --"
                )
            flags.append(argument)
            awaits_value = argument.startswith("--") and "=" not in argument
        elif awaits_value and argument != "--":
            flags[-1] += f"={argument}"
            awaits_value = False
        else:
            raise UsageError(
                f"{argument!r} belongs to no option: only flags are passed to gcloud, --flag or --flag=value"
            )
    return flags


def edits(one: str, other: str) -> int:
    """Return the least number of insertions, deletions, substitutions and swaps of neighbors between two strings.

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
