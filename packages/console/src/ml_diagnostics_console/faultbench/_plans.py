"""The plan of a run: its kind and seed decide the culprit, the step, the sizes and the number of processes. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ml_diagnostics_console.faultbench._faults import FAULTS
from ml_diagnostics_console.faultbench._kinds import At, Kind
from ml_diagnostics_console.faultbench._negatives import NEGATIVES

__all__ = ["KINDS", "Plan", "plan_of", "plans_of", "seeds_of"]

KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in (*FAULTS, *NEGATIVES)}
_STEPS: Final = (70, 110)
"""The range of steps for injections: after some seconds of steps, which hang detection has to have seen."""
_FLOOR_SECONDS: Final = 5.0
_STARTUP_FLOOR_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        kind: The name of its kind.
        seed: Its seed; a negative that is repeated within a seed has a number behind it.
        processes: The number of processes of the job.
        culprit: The index of the process to blame.
        is_on_all: True if all processes do the same.
        step: The step of the injection.
        planned_steps: The number of steps of the job.
        is_outside: True if the bench injects, not the trainer.
        hosts: `own`: a host name for each process; `shared`: one for all.
        is_wrapped: True if the job is started by `python -m cloud_tpu_diagnostics run`.
        is_planned: True if the program announces its numbers of processes and steps.
        has_short_timeouts: True if JAX notices dead processes after 10 s, where its default is 100 s.
        clock_offsets_seconds: The error of each process's wall clock.
        clock_drifts_ppm: Its drift.
        width: The width of the model.
        settings: Further settings of its kind.
    """

    kind: str
    seed: str
    processes: int
    culprit: int
    is_on_all: bool
    step: int
    planned_steps: int
    is_outside: bool
    hosts: str
    is_wrapped: bool
    is_planned: bool
    has_short_timeouts: bool
    width: int
    clock_offsets_seconds: tuple[float, ...] = ()
    clock_drifts_ppm: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name, such as `sigkill-3`, which is also that of its job."""
        return f"{self.kind.replace('_', '-').replace('.', '-')}-{self.seed}"

    @property
    def culprits(self) -> tuple[int, ...]:
        """The processes that do what the kind shows."""
        return tuple(range(self.processes)) if self.is_on_all else (self.culprit,)

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        return {**asdict(self), "settings": dict(self.settings)}


def plan_of(name: str, seed: str, *, most_processes: int = 4) -> Plan:
    """Return the plan of a kind and a seed; the same each time."""
    kind = KINDS[name]
    chosen = random.Random(f"faultbench/{name}/{seed}")
    settings = dict(kind.settings)
    processes = max(kind.least_processes, chosen.choices((2, 3, 4), weights=(5, 4, 1))[0])
    processes = max(kind.least_processes, min(processes, most_processes))
    culprit = chosen.randrange(1 if settings.pop("not_process_0", False) else 0, processes)
    step = settings.pop("step", chosen.randrange(*_STEPS))
    is_outside = kind.at is At.OUTSIDE or (kind.at is At.EITHER and chosen.random() < 0.5)
    hosts = settings.pop("hosts", chosen.choice(("own", "own", "shared")))
    if "size_range" in settings:
        settings["size"] = chosen.randrange(*settings.pop("size_range"))
    offset, drift = settings.pop("clock_offset_seconds", 0.0), settings.pop("clock_drift_ppm", 0.0)
    return Plan(
        kind=name,
        seed=seed,
        processes=processes,
        culprit=culprit,
        is_on_all=settings.pop("is_on_all", False),
        step=step,
        planned_steps=max(step, 0) + kind.steps_after + chosen.randrange(10),
        is_outside=is_outside,
        hosts=hosts,
        is_wrapped=not settings.get("network") and chosen.random() < 0.3,
        is_planned=chosen.random() < 0.5,
        has_short_timeouts=settings.pop("short_timeouts", chosen.random() < 0.4),
        width=chosen.choice((32, 64, 96)),
        clock_offsets_seconds=_spread(chosen, offset, processes),
        clock_drifts_ppm=_spread(chosen, drift, processes),
        settings={"floor_seconds": _FLOOR_SECONDS, "startup_floor_seconds": _STARTUP_FLOOR_SECONDS, **settings},
    )


def _spread(chosen: random.Random, most: float, count: int) -> tuple[float, ...]:
    return tuple(round(chosen.uniform(-most, most), 3) for _ in range(count)) if most else ()


def plans_of(seeds: Iterable[int], names: Iterable[str] = (), *, most_negatives: int | None = None) -> Iterator[Plan]:
    """Yield the plans of some seeds: each fault once a seed, and as many negatives, which repeat.

    Args:
        seeds: The seeds.
        names: Only these kinds; empty for all.
        most_negatives: The most negatives of each seed; None for as many as there are faults.
    """
    wanted = set(names)
    faults = [kind.name for kind in FAULTS if not wanted or kind.name in wanted]
    negatives = [kind.name for kind in NEGATIVES if not wanted or kind.name in wanted]
    for seed in seeds:
        for number, name in enumerate(faults):
            yield plan_of(name, str(seed))
            if negatives and not wanted and (most_negatives is None or number < most_negatives):
                round_, which = divmod(number, len(negatives))
                yield plan_of(negatives[which], f"{seed}{'abcdefgh'[round_]}")
        if wanted:
            yield from (plan_of(name, f"{seed}a") for name in negatives)


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds of a text such as `0-3` or `0,2,4-5`.

    Raises:
        ValueError: It is not in that form.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return tuple(seeds)
