"""B5: the hosts of one job run different versions or different configs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_count

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import command_line, hosts_of, indices_of, named, quoted
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, NotChecked, Ref, Verdict, VerdictClass

__all__ = ["RULE"]

_SOFTWARE: Final = re.compile(r"\w*version$|xla_flags$|libtpu_init_args$|git_revision$|framework$")
_OF_PROCESS: Final = re.compile(
    r"host|process|rank|index|\bpid|worker|shard|node|address|port|seed|device_ids?|task_id|pod|path|dir",
    re.IGNORECASE,
)
"""Configs that differ in each process of a healthy job."""
_FIRST: Final = ("jax_version", "jaxlib_version", "libtpu_version", "torch_version", "python_version")
_ABSENT: Final = ("", "n/a", "default")
_SHOWN: Final = 3
_LONGEST_VALUE: Final = 40


class _Difference(NamedTuple):
    """A key of which the processes have different values."""

    key: str
    odd: tuple[ProcessFacts, ...]
    """The processes with another value than most; of two processes both."""
    text: str
    is_decided: bool
    """True if most processes have the same value."""
    is_software: bool


def _judge(facts: Facts) -> Judgement:
    processes = facts.processes
    if len(processes) < 2:
        return None
    described = [process for process in processes if process.software]
    if len(described) < 2 and sum(bool(process.config_digest) for process in processes) < 2:
        return NotChecked(
            "B5", "versions and configs of every host are not known: call machinelearning_run() on each of them"
        )
    differences = _software(described) + _configs(processes)
    return _verdict(facts, differences) if differences else None


def _verdict(facts: Facts, differences: Sequence[_Difference]) -> Verdict:
    first = differences[0]
    rest = differences[1:]
    texts = [each.text for each in rest[: _SHOWN - 1]]
    more = f"; also {', '.join(texts)}" if texts else ""
    more += f" and {format_count(len(rest) - len(texts), 'more difference')}" if len(rest) > len(texts) else ""
    is_sure = first.is_decided or first.is_software
    possibly = "" if is_sure else "possibly "
    return Verdict(
        rule="B5",
        verdict_class=VerdictClass.BEFORE_START,
        sentence=f"{possibly}the hosts differ: {first.text}{more}",
        blame=Blame.USER,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        hosts=hosts_of(first.odd),
        process_indices=indices_of(first.odd),
        evidence=_evidence(facts, first),
        next=(
            NextCommand(command_line("mldiagnostics", "show", facts.name), "the versions and configs of the run"),
            NextCommand("", f"start {named(first.odd)} with the same image and the same arguments as the others"),
        ),
    )


def _evidence(facts: Facts, first: _Difference) -> tuple[Ref, ...]:
    others = [process for process in facts.processes if all(process is not odd for odd in first.odd)]
    refs = []
    for process in (*first.odd[:2], *others[:1]):
        value = _value(process, first.key)
        shows = f"{process.name}: {first.key or 'digest of the configs'} {value}"
        known = process.config_refs[:1] or (Ref(facts.name, "run", process.started_ns, process.host),)
        refs.append(known[0]._replace(shows=shows))
    return tuple(refs)


def _value(process: ProcessFacts, key: str) -> str:
    if not key:
        return process.config_digest
    return quoted(process.software.get(key) or process.user_configs.get(key) or "none")[:_LONGEST_VALUE]


def _software(processes: Sequence[ProcessFacts]) -> list[_Difference]:
    """Return the versions and flags that differ, those of JAX and its like first."""
    keys = {key for process in processes for key in process.software if _SOFTWARE.match(key)}
    found = []
    for key in sorted(keys, key=lambda each: (each not in _FIRST, each)):
        values = [_normal(process.software.get(key, "")) for process in processes]
        difference = _difference(
            key, processes, values, key.removesuffix("_version").replace("_", " "), is_software=True
        )
        if difference is not None:
            found.append(difference)
    names = {each.key for each in found}
    return [each for each in found if each.key != "framework_version" or not names & {"jax_version", "torch_version"}]


def _configs(processes: Sequence[ProcessFacts]) -> list[_Difference]:
    """Return the configs of the user that differ, if their digests do; the digests alone if that is all."""
    digests = [process.config_digest for process in processes]
    if not all(digests) or len(set(digests)) < 2:
        return []
    if all(process.user_configs for process in processes):
        keys = {key for process in processes for key in process.user_configs if not _OF_PROCESS.search(key)}
        found = []
        for key in sorted(keys):
            values = [process.user_configs.get(key, "") for process in processes]
            if len(processes) > 2 and len(set(values)) == len(processes):
                continue  # Another value in each process: it is of the process.
            difference = _difference(key, processes, values, f"config {key}", is_software=False)
            if difference is not None:
                found.append(difference)
        return found
    counts = Counter(digests)
    usual, many = counts.most_common(1)[0]
    if many * 2 <= len(processes):
        return []  # Configs of each process, such as its index, may be among them.
    odd = tuple(process for process in processes if process.config_digest != usual)
    return [_Difference("", odd, f"{named(odd)} {_has(odd)} other configs than the {many} others", True, False)]


def _difference(
    key: str, processes: Sequence[ProcessFacts], values: Sequence[str], name: str, *, is_software: bool
) -> _Difference | None:
    counts = Counter(values)
    if len(counts) < 2:
        return None
    usual, many = counts.most_common(1)[0]
    if many * 2 > len(processes):
        odd = tuple(process for process, value in zip(processes, values, strict=True) if value != usual)
        own = _shown({value for value in values if value != usual})
        text = f"{named(odd)} {_runs(odd)} {name} {own}, the {many} others {_shown([usual])}"
        return _Difference(key, odd, text, True, is_software)
    parts = []
    for value in counts:
        same = [process for process, each in zip(processes, values, strict=True) if each == value]
        parts.append(f"{named(same)} {_runs(same)} {name} {_shown([value])}")
    return _Difference(key, tuple(processes), ", ".join(parts[:_SHOWN]), False, is_software)


def _normal(value: str) -> str:
    return "" if value in _ABSENT else value


def _shown(values: Iterable[str]) -> str:
    shown = [quoted(value)[:_LONGEST_VALUE] if value else "none" for value in values]
    return " and ".join(sorted(shown)[:2])


def _runs(processes: Sequence[ProcessFacts]) -> str:
    return "runs" if len(processes) == 1 else "run"


def _has(processes: Sequence[ProcessFacts]) -> str:
    return "has" if len(processes) == 1 else "have"


RULE = Rule(
    id="B5",
    title="versions or configs differ between hosts",
    needs=("versions and configs of every host: machinelearning_run() on each of them",),
    judge=_judge,
    thresholds=(
        Threshold("hosts with the same value", "more than half", "the others are then the exception"),
        Threshold(
            "configs that count", "not of a process, by name", "index, seed, path and so on differ in healthy jobs"
        ),
    ),
    example="the hosts differ: host-3 runs jax 0.9.1, the 7 others 0.10.2",
)
