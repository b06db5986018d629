"""The configuration of fast-fail: when one process of a job fails, all others end at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ml_diagnostics_common.exceptions import ConfigurationError

from cloud_tpu_diagnostics.configuration.first_cause import FirstCause

__all__ = ["EXIT_CODE", "FastFailConfig", "FirstCause", "checked"]

EXIT_CODE: Final = 76
"""The exit code of processes that fast-fail ends, unless the job sets another."""


@dataclass
class FastFailConfig:
    """Fast-fail: when one process of a job fails, all others end at once, and record which one was the first cause.

    The processes find each other through `jax.distributed`, or through a shared folder. `ML_DIAGNOSTICS_FAST_FAIL`
    turns it on (1) or off (0), whatever `enabled` is.

    The process that failed first ends as well: an exception that leaves the block ends the job, also where the program
    catches it outside and would try again. Catch within the block what the program can recover from.

    Attributes:
        enabled: False turns fast-fail off.
        grace_seconds: The time that `on_peer_failure` may take before the process ends, and that the process which
            failed first has to end by itself after its block, for example for handlers of `atexit`. The default is 0;
            the latter has at least one second.
        on_peer_failure: Called in a thread of the job, if Python can run there, with the first cause, before the
            process ends; needs `grace_seconds`.
        hang: True also ends the job if all its processes have stopped to make progress; needs a `HangConfig`.
        exit_code: The exit code of processes that are ended since another one failed.
    """

    enabled: bool = False
    grace_seconds: float = 0.0
    on_peer_failure: Callable[[FirstCause], object] | None = None
    hang: bool = False
    exit_code: int = EXIT_CODE

    def to_json(self) -> dict[str, Any]:
        """Return what the companion needs."""
        return {"grace_seconds": self.grace_seconds, "hang": self.hang, "exit_code": self.exit_code}


def checked(config: FastFailConfig) -> FastFailConfig:
    """Return the configuration unchanged.

    Raises:
        ConfigurationError: One of its values is not valid.
    """
    for name in ("enabled", "hang"):
        if not isinstance(getattr(config, name), bool):
            raise ConfigurationError(f"{name} is {getattr(config, name)!r}; give True or False")
    grace, code = config.grace_seconds, config.exit_code
    if isinstance(grace, bool) or not isinstance(grace, (int, float)) or not 0 <= grace < math.inf:
        raise ConfigurationError(f"grace_seconds is {grace!r}; give a number of seconds, 0 or more")
    if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255:
        raise ConfigurationError(f"exit_code is {code!r}; give a whole number from 1 to 255")
    if config.on_peer_failure is not None and not callable(config.on_peer_failure):
        raise ConfigurationError(
            f"on_peer_failure is {config.on_peer_failure!r}; give a function that takes the first cause, or None"
        )
    if config.on_peer_failure is not None and grace == 0:
        raise ConfigurationError("on_peer_failure needs grace_seconds above 0: the time that it may take")
    return config
