"""One value on all processes of a job that `jax.distributed` or `torch.distributed` connects: the value of the first.

No process waits for another: the coordinator keeps the first value of a key, and returns it to all that ask later.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol, cast

from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.thread_frames import current_frames
from ml_diagnostics_common.worker import call, start

__all__ = ["agree", "coordinator_address", "has_coordinator", "jax_processes", "publish", "published", "subscribe"]

_NAMESPACE = "ml_diagnostics/"


class _CoordinationClient(Protocol):
    """The methods of jaxlib's DistributedRuntimeClient that we use."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


def agree(key: str, proposal: str, *, timeout_seconds: float = 10.0) -> str:
    """Return the same value on all processes that ask for the same key. Never raises.

    Args:
        key: The name of the value, which is decided once for as long as the job's coordinator lives.
        proposal: This process's own value, which holds if it is the first.
        timeout_seconds: The longest wait for the coordinator.

    Returns:
        The value of the first; the proposal if there is no coordinator, or it does not answer in time, which is logged
        as one WARNING.
    """
    first_value = _coordinator(timeout_seconds)
    if first_value is None:
        return proposal
    try:  # A coordinator that does not answer may keep its caller for longer than we wait.
        return call(lambda: first_value(_NAMESPACE + key, proposal), timeout_seconds, "ml-diagnostics-agreement")
    except Exception as error:
        failure = error  # `error` is deleted when the block ends.
    warn_once(
        ("no agreement", key),
        "The coordinator of %s did not answer within %g s, so that this process could not agree with the others on "
        "%s (%s): it continues with %s, and its data may stand apart from theirs.",
        "torch.distributed" if _coordination_client() is None else "jax.distributed",
        timeout_seconds,
        key,
        failure,
        proposal,
    )
    return proposal


def has_coordinator() -> bool:
    """Return True if there is a coordinator through which `agree` reaches the other processes."""
    return _coordinator(0.0) is not None


def _coordinator(timeout_seconds: float) -> Callable[[str, str], str] | None:
    """Return what sets a key unless it is set, and returns its value, within a time; None without a coordinator."""
    client = _coordination_client()
    if client is None:
        return _store_of_torch(timeout_seconds)

    def first_value(key: str, proposal: str) -> str:
        try:
            client.key_value_set(key, proposal, allow_overwrite=False)
        except Exception:  # Another process was first. If it is anything else, the next call raises it.
            pass
        return client.blocking_key_value_get(key, max(1, int(timeout_seconds * 1000)))

    return first_value


def _store_of_torch(timeout_seconds: float) -> Callable[[str, str], str] | None:
    """Return the same for torch: by the store of torchrun's agent, or of the process group. Does not import torch."""
    distributed: Any = sys.modules.get("torch.distributed")
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not hasattr(distributed, "TCPStore") or not address or not (port.isascii() and port.isdigit()):
        return None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and not distributed.is_initialized():
        return None  # Rank 0 does not listen before its process group is initialised.

    def first_value(key: str, proposal: str) -> str:
        timeout = datetime.timedelta(seconds=timeout_seconds)
        # A connection of our own for each question: a forked child must not share one with its parent.
        store = distributed.TCPStore(address, int(port), is_master=False, timeout=timeout, wait_for_workers=False)
        return bytes(store.compare_set(key, "", proposal)).decode()

    return first_value


def publish(key: str, value: str) -> None:
    """Publish a value of this process to all others, in a thread of its own; a failure is ignored."""
    client = _coordination_client()
    if client is not None:
        start(lambda: client.key_value_set(_NAMESPACE + key, value, allow_overwrite=True), "ml-diagnostics-agreement")


def subscribe(key: str, take: Callable[[str], object], *, timeout_seconds: float = 60.0) -> None:
    """Call `take` with the value that another process publishes, in a thread of its own; never after the timeout."""
    client = _coordination_client()
    if client is not None:
        milliseconds = max(1, int(timeout_seconds * 1000))
        get = functools.partial(client.blocking_key_value_get, _NAMESPACE + key, milliseconds)
        start(lambda: take(get()), "ml-diagnostics-agreement")


def published(folder: str) -> list[str]:
    """Return the values published under keys in a folder. Asks the coordinator, so call it in a thread of ours."""
    client = _coordination_client()
    return [] if client is None else [value for _, value in client.key_value_dir_get(f"{_NAMESPACE}{folder}/")]


def jax_processes() -> tuple[int, int] | None:
    """Return this process's index among all, and how many there are; None before `jax.distributed.initialize`.

    JAX is neither imported nor initialised.
    """
    state = _distributed_state()
    if _coordination_client() is None:
        return None
    index, count = getattr(state, "process_id", None), getattr(state, "num_processes", None)
    return (index, count) if isinstance(index, int) and isinstance(count, int) else None


def coordinator_address() -> str | None:
    """Return HOST:PORT of the coordinator of JAX; None before `jax.distributed.initialize`."""
    if _coordination_client() is None:
        return None
    address = getattr(_distributed_state(), "coordinator_address", None)
    return address if isinstance(address, str) else None


def _distributed_state() -> Any:
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)


def _coordination_client() -> _CoordinationClient | None:
    """Return JAX's client once it is connected: a request before that ends the process (`LOG(FATAL)` in jaxlib)."""
    state = _distributed_state()
    client = cast("_CoordinationClient | None", getattr(state, "client", None))
    if client is None or (getattr(state, "preemption_sync_manager", None) is None and _is_connecting(state)):
        return None
    return client


def _is_connecting(state: Any) -> bool:
    """Return True while a thread is in `jax.distributed.initialize`, which shows the client before it is connected."""
    connect = getattr(type(state).initialize, "__code__", None)
    for frame in current_frames().values():
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code is connect:
                return True
            caller = caller.f_back
    return False
