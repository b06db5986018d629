"""One value on all processes of a job, where `jax.distributed` connects them: the value of whoever comes first.

Nobody waits for anybody: the coordination service keeps the first value of a key, and tells it to all that come later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, cast

from ml_diagnostics_common import background
from ml_diagnostics_common.guard import warn_once

__all__ = ["agree", "hear", "jax_processes", "tell", "told"]

_NAMESPACE = "ml_diagnostics/"


class _CoordinationClient(Protocol):
    """What we use of jaxlib's DistributedRuntimeClient."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


def agree(key: str, proposal: str, *, timeout_seconds: float = 10.0) -> str:
    """Returns the same value on all processes that ask for the same key.

    Args:
        key: What is agreed upon; it is decided once for as long as the job's coordinator lives.
        proposal: This process's own value, which holds if it is the first.
        timeout_seconds: How long to wait for the coordinator at most.

    Returns:
        The value of the first; the proposal where `jax.distributed` is not initialised, or its coordinator does not
        answer in time: then one WARNING says so. Never raises.
    """
    client = _coordination_client()
    if client is None:
        return proposal
    agreed: list[str] = []

    def ask() -> None:
        try:
            client.key_value_set(_NAMESPACE + key, proposal, allow_overwrite=False)
        except Exception:  # Somebody was first. If it is anything else, the next call tells.
            pass
        agreed.append(client.blocking_key_value_get(_NAMESPACE + key, max(1, int(timeout_seconds * 1000))))

    # In a thread: a coordinator that does not answer may keep its caller for longer than we wait.
    task = background.start(ask)
    if task is not None and task.wait(timeout_seconds) and agreed:
        return agreed[0]
    warn_once(
        ("no agreement", key),
        "The coordinator of jax.distributed did not tell within %g s what all processes call %s (%s): this one goes on "
        "with %s, and its data may stand apart from the others'.",
        timeout_seconds,
        key,
        "no answer" if task is None or task.error is None else task.error,
        proposal,
    )
    return proposal


def tell(key: str, value: str) -> None:
    """Tells all processes something that only this one knows; in a thread of its own, and in vain if it fails."""
    client = _coordination_client()
    if client is not None:
        background.start(lambda: client.key_value_set(_NAMESPACE + key, value, allow_overwrite=True))


def hear(key: str, take: Callable[[str], object], *, timeout_seconds: float = 60.0) -> None:
    """Has `take` called with what another process tells, in a thread of its own; never, if none does in that time."""
    client = _coordination_client()
    if client is not None:
        milliseconds = max(1, int(timeout_seconds * 1000))
        background.start(lambda: take(client.blocking_key_value_get(_NAMESPACE + key, milliseconds)))


def told(folder: str) -> list[str]:
    """Returns what processes have told so far under keys in a folder: asks the coordinator, so for a thread of ours."""
    client = _coordination_client()
    return [] if client is None else [value for _, value in client.key_value_dir_get(f"{_NAMESPACE}{folder}/")]


def jax_processes() -> tuple[int, int] | None:
    """Returns this process's index among all, and how many there are; None before `jax.distributed.initialize`.

    JAX is neither imported nor initialised.
    """
    state = _distributed_state()
    if _coordination_client() is None:
        return None
    index, count = getattr(state, "process_id", None), getattr(state, "num_processes", None)
    return (index, count) if isinstance(index, int) and isinstance(count, int) else None


def _distributed_state() -> Any:
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)


def _coordination_client() -> _CoordinationClient | None:
    return cast("_CoordinationClient | None", getattr(_distributed_state(), "client", None))
