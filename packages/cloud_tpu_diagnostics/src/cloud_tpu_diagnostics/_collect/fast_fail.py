"""Fast-fail in the job: it finds the other processes, and ends this one if its companion reports that the job failed.

All is done in threads: the job waits for nothing.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.worker import Worker, start

from cloud_tpu_diagnostics._collect.log_queue import flush as flush_log
from cloud_tpu_diagnostics._collect.log_queue import flush_in_background, log, warn_once
from cloud_tpu_diagnostics._fast_fail.meeting import (
    FOLDER,
    LAUNCH,
    TOKEN,
    LoopbackError,
    default_address,
    launch_id,
    local_address,
)
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig, FirstCause

__all__ = ["JobFastFail", "refusal"]

_log = job_logger("ml_diagnostics.diagnose")

_SEARCH_SECONDS: Final = 0.5
_ASK_SECONDS: Final = 1.0
"""The interval of questions to the coordinator, while the hub has not published its address."""
_SLOW_ASK_SECONDS: Final = 300.0
"""The same later: each question of a large job costs the coordinator as many answers as there are processes."""
_SEARCH_AFTER_FAILURE_SECONDS: Final = 30.0
_PLAN_SECONDS: Final = 5.0
"""The interval of checks if the program has announced how many steps the job takes, in its first minutes."""
_MOST_PLAN_CHECKS: Final = 60
_NO_HUB_SECONDS: Final = 120.0
_FLUSH_SECONDS: Final = 0.2
_KEY: Final = "fast_fail"
_FIRST_PROCESS: Final = 1
_NO_LAUNCH: Final = (
    "Fast-fail does not use %s: nothing distinguishes this job from others that use the same folder. Set %s to a text "
    "that all processes of this launch share, and no other launch has, such as the uid of the Job or JobSet.",
    FOLDER,
    LAUNCH,
)


class JobFastFail:
    """Fast-fail of this process, from the entry of its block until its end.

    Args:
        config: The configuration.
        send: Sends a message to the companion.
        send_stacks: Sends the stacks of all threads to the companion.
    """

    def __init__(
        self, config: FastFailConfig, send: Callable[[Mapping[str, Any]], object], send_stacks: Callable[[], object]
    ) -> None:
        self._config, self._send, self._send_stacks = config, send, send_stacks
        self._worker = Worker("cloud-tpu-diagnostics-fast-fail", self._search)
        self._position: tuple[int, int] | None = None
        self._attempt = ""
        self._published: str | None = None
        self._is_joined = False
        self._searches_until: float | None = None
        self._plan_checks = 0
        self._asked_since: float | None = None

    def start(self) -> None:
        """Search for the other processes from now on."""
        from ml_diagnostics_common.signal_wakeups import subscribe

        try:
            subscribe(self._on_signals)
        except OSError:
            pass  # There are too many open files.
        self._worker.start()

    def leave(self, *, has_failed: bool) -> None:
        """Stop the search, since the block was left; after a failure, go on for a while, to report it."""
        from ml_diagnostics_common.signal_wakeups import unsubscribe

        unsubscribe(self._on_signals)
        self._searches_until = time.monotonic() + _SEARCH_AFTER_FAILURE_SECONDS
        if not has_failed:
            self._worker.stop()

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take a message of the companion; in the thread that receives them."""
        kind = message["kind"]
        if kind == "fast_fail_address":
            self._publish(message)
        elif kind in ("fast_fail_joined", "fast_fail_off"):
            self._is_joined = True
        elif kind == "fast_fail_searching":
            self._is_joined, self._asked_since = False, None
            self._worker.start()
        elif kind == "fast_fail_stack":
            start(self._send_stacks, "cloud-tpu-diagnostics-fast-fail")
        elif kind == "fast_fail_end":
            start(lambda: self._end(message), "cloud-tpu-diagnostics-fast-fail")

    # --- The other processes, in the worker's thread ----------------------------------------------------

    def _search(self) -> float | None:
        """Find this process's position among all, and then the hub; return when to go on."""
        if self._searches_until is not None and time.monotonic() >= self._searches_until:
            return None
        if self._is_joined:
            return self._report_plan()
        if self._position is None:
            if os.environ.get(FOLDER) and not launch_id():
                warn_once("no id of the launch", *_NO_LAUNCH)
                flush_in_background()
            position = _position()
            if position is None or position[1] < 2:
                return _SEARCH_SECONDS
            why_not = refusal()
            if why_not is not None:
                warn_once("fast-fail refused", "Fast-fail is off in this process: %s.", why_not)
                flush_in_background()
                return None
            try:
                self._report_position(position)
            except LoopbackError as error:
                warn_once("fast-fail has no address", "Fast-fail is off in this process: %s.", error)
                flush_in_background()
                return None
        if self._position is not None and self._position[0] == 0:
            return self._report_plan()
        self._ask_for_hub()
        self._asked_since = self._asked_since or time.monotonic()
        if time.monotonic() - self._asked_since < _NO_HUB_SECONDS:
            return _ASK_SECONDS
        if self._published is None:
            warn_once(
                "no fast-fail in process 0",
                "Fast-fail is off in this process so far: process 0 has not published its address for %g s. It must be "
                "on in every process.",
                _NO_HUB_SECONDS,
            )
            flush_in_background()
        return _SLOW_ASK_SECONDS

    def _report_plan(self) -> float | None:
        """Send how many steps the job takes: an end before the last one is too early."""
        from ml_diagnostics_common.environment import planned_steps

        steps = planned_steps()
        self._plan_checks += 1
        if steps is not None:
            self._send({"kind": "fast_fail_plan", "planned_steps": steps})
        return None if steps is not None or self._plan_checks >= _MOST_PLAN_CHECKS else _PLAN_SECONDS

    def _report_position(self, position: tuple[int, int]) -> None:
        from ml_diagnostics_common.environment import identity

        index, count = position
        address = _own_address() if index == 0 else None
        self._position = position
        self._attempt = identity().attempt or "0"
        message = {"process_index": index, "processes": count, "attempt": self._attempt, "address": address}
        self._send({"kind": "fast_fail_position", **message})

    def _publish(self, message: Mapping[str, Any]) -> None:
        from ml_diagnostics_common.agreement import publish

        address = {name: message.get(name) for name in ("address", "port", "token")}
        publish(f"{_KEY}/{self._attempt}/hub", json.dumps(address))

    def _ask_for_hub(self) -> None:
        from ml_diagnostics_common.agreement import published

        try:
            values = published(f"{_KEY}/{self._attempt}")
        except Exception:  # The coordinator does not answer: JAX reports that.
            return
        if values and values[0] != self._published:
            self._published = values[0]
            try:
                address = json.loads(values[0])
            except ValueError:
                return
            if isinstance(address, dict):
                self._send({**address, "kind": "fast_fail_address"})

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            self._send({"kind": "fast_fail_asked"})

    # --- The end ----------------------------------------------------------------------------------------

    def _end(self, message: Mapping[str, Any]) -> None:
        """End this process, in a thread of its own: the main thread may wait in native code for ever."""
        try:
            cause = FirstCause.from_json(message["first_cause"])
            level = logging.WARNING if message["is_first"] else logging.ERROR
            log(_log, level, "Fast-fail ends this process: %s", cause.message)
            flush_in_background()
            self._send_stacks()
            time.sleep(message["wait_seconds"])
            callback, grace = self._config.on_peer_failure, float(message["grace_seconds"])
            if callback is not None and not message["is_first"]:
                task = start(lambda: _call(callback, cause), "cloud-tpu-diagnostics-on-peer-failure")
                if task is not None:
                    task.wait(grace)
            flushing = start(_flush, "cloud-tpu-diagnostics-flush")
            if flushing is not None:
                flushing.wait(_FLUSH_SECONDS)
        finally:
            os._exit(message["exit_code"])


def refusal() -> str | None:
    """Return why fast-fail cannot be on in this process; None if it can."""
    if os.getpid() == _FIRST_PROCESS:
        return (
            "it is process 1 of its container, which the kernel protects from signals, and with which its companion "
            "ends; start it with: python -m cloud_tpu_diagnostics run -- COMMAND"
        )
    if sys.platform != "linux":
        return "it needs Linux"
    config = getattr(sys.modules.get("jax"), "config", None)
    if getattr(config, "jax_enable_recoverability", False):
        return "jax_enable_recoverability is set, so the job continues without a process that has failed"
    platforms = str(getattr(config, "jax_platforms", None) or os.environ.get("JAX_PLATFORMS", ""))
    if "pathwaysutils" in sys.modules or "proxy" in platforms or "pathways" in platforms:
        return "Pathways runs the job, and handles failures itself"
    if "ml_goodput_measurement.goodput_elastic" in sys.modules:
        return "the job is elastic: it continues with fewer slices after a failure"
    token = os.environ.get(TOKEN)
    if token is not None and not token:
        return f"{TOKEN} is empty"
    return None


def _position() -> tuple[int, int] | None:
    """Return this process's index among all of the job, and how many there are; None while that is unknown."""
    from ml_diagnostics_common.agreement import jax_processes
    from ml_diagnostics_common.environment import identity

    position = jax_processes()
    if position is None and os.environ.get(FOLDER) and launch_id():
        own = identity()
        return (own.process_index, own.process_count) if own.process_count > 1 else None
    return position


def _own_address() -> str:
    """Return the address of the interface by which the coordinator is reached, or that of the default route.

    Raises:
        LoopbackError: No other machine reaches it.
    """
    import socket

    from ml_diagnostics_common.agreement import coordinator_address

    master = os.environ.get("MASTER_ADDR")
    candidates = [
        coordinator_address(),
        os.environ.get("JAX_COORDINATOR_ADDRESS"),
        f"{master}:{os.environ.get('MASTER_PORT') or 1}" if master else None,
        f"{socket.gethostname()}:1",
    ]
    for candidate in candidates:
        if candidate:
            try:
                return local_address(candidate)
            except LoopbackError:
                raise
            except (OSError, ValueError):
                continue
    return default_address(f"the name {socket.gethostname()} has no address")


def _call(callback: Callable[[FirstCause], object], cause: FirstCause) -> None:
    try:
        callback(cause)
    except Exception:
        _log.exception("on_peer_failure has failed")


def _flush() -> None:
    """Write what the program has logged and printed so far: `os._exit` would drop it."""
    flush_log()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # It is closed, or there is none.
