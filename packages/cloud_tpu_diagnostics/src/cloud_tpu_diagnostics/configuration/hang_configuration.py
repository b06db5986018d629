"""The configuration of hang detection: when a job without progress counts as hanging, and what is done then."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ml_diagnostics_common.exceptions import ConfigurationError

__all__ = ["HangConfig", "Verdict", "checked"]


class Verdict(NamedTuple):
    """The verdict that a job hangs.

    Attributes:
        phase: The phase in which it hangs; one of `ml_diagnostics_common.progress.PHASES`.
        step: The step in which it hangs, if the job reported one.
        stuck_seconds: The time since the last report of progress.
        timeout_seconds: The time without progress after which the job counts as hanging.
    """

    phase: str
    step: int | None
    stuck_seconds: float
    timeout_seconds: float


@dataclass
class HangConfig:
    """Hang detection.

    `diagnostic.heartbeat` and goodput's recorder report progress. A job counts as hanging if it reports none

    - in a step: for `safety_factor` times the 99th percentile of its last 1,000 step times;
    - in another phase: for `safety_factor` times the longest silence of its last 20 such phases;

    and never sooner than the floor of the phase. The first steps count as compilation.

    Attributes:
        enabled: False turns hang detection off.
        safety_factor: The ratio of a hang's silence to the learned one, at least 1.
        step_floor_seconds: The shortest silence in a step that can be a hang, at least 5.
        startup_floor_seconds: The same for initialisation and compilation.
        pause_floor_seconds: The same for checkpoints, evaluations, data loading, and phases without a name.
        snapshots: The number of snapshots of the job's threads that are taken once it counts as hanging.
        snapshot_interval_seconds: The time between two of them.
        on_hang: Called in a thread of the job, if Python can run there, with the verdict.
        abort: True ends the job after the snapshots, so that its scheduler starts it again. Risk: a job that only
            pauses for longer than ever before is ended, too. A pause that has ended it once is allowed for in the next
            attempt on the same diagnostics folder (`ML_DIAGNOSTICS_DIR`): keep that folder between attempts, and
            announce pauses with `heartbeat(phase=...)`. As process 1 of a container the job is protected by the kernel,
            and can only end itself, if Python can run: start it with
            `python -m cloud_tpu_diagnostics run -- COMMAND`.
    """

    enabled: bool = False
    safety_factor: float = 3.0
    step_floor_seconds: float = 30.0
    startup_floor_seconds: float = 1_800.0
    pause_floor_seconds: float = 600.0
    snapshots: int = 5
    snapshot_interval_seconds: float = 2.0
    on_hang: Callable[[Verdict], object] | None = None
    abort: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return all but the callback, for another process, which calls `HangConfig(**json)`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "on_hang"}


def checked(config: HangConfig) -> HangConfig:
    """Return the configuration unchanged.

    Raises:
        ConfigurationError: One of its values is not valid.
    """
    for name in ("enabled", "abort"):
        if not isinstance(getattr(config, name), bool):
            raise ConfigurationError(f"{name} is {getattr(config, name)!r}; give True or False")
    _check_number("safety_factor", config.safety_factor, "a number of at least 1", least=1)
    for name in ("step_floor_seconds", "startup_floor_seconds", "pause_floor_seconds"):
        _check_number(name, getattr(config, name), "a number of seconds of at least 5", least=5)
    _check_number("snapshot_interval_seconds", config.snapshot_interval_seconds, "seconds, 0 or more", least=0)
    _check_number("snapshots", config.snapshots, "a whole number, 0 or more", least=0)
    if not isinstance(config.snapshots, int):
        raise ConfigurationError(f"snapshots is {config.snapshots!r}; give a whole number, 0 or more")
    if config.on_hang is not None and not callable(config.on_hang):
        raise ConfigurationError(
            f"on_hang is {config.on_hang!r}; give a function that takes the verdict, or None for none"
        )
    return config


def _check_number(name: str, value: object, wanted: str, *, least: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:  # type: ignore[operator]
        raise ConfigurationError(f"{name} is {value!r}; give {wanted}")
