"""Releases a failed job that `run --hold-on-failure` keeps: by its file, or by a signal in its pod."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cloud_tpu_diagnostics.holds import Hold, read_holds
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotFoundError
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.texts import format_clock

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._facts.targets import Target
from ml_diagnostics_console._ssh.hosts import find_host, route_from_here
from ml_diagnostics_console._ssh.routes import Machine
from ml_diagnostics_console._ssh.running import run_route

__all__ = ["release_by_file", "release_by_signal"]

_CLOCKS_NS = 5_000_000_000


def release_by_file(run: str, host: str, facts: Facts | None = None) -> list[str]:
    """Remove the files of the holds of a host, and return what was released; nothing if there is no such file.

    Args:
        run: The run or job.
        host: The host's name; with facts also the pod's, or the index of a process.
        facts: The facts of the run, for holds that do not know its name.

    Raises:
        CommandError: A file cannot be removed.
        NotFoundError: The run has no such host.
    """
    holds = read_holds()
    found = [hold for hold in holds if hold.host == host and (run in (hold.run, hold.job) or _is_of(hold, facts))]
    if not found and facts is not None:
        found = _holds_of(find_host(facts, host), run, holds)
    released = []
    for hold in found:
        try:
            if hold.release():
                released.append(f"{hold.host} is released: the process {hold.pid} of {run} was held")
        except OSError as error:
            raise CommandError(f"{hold.path} cannot be removed: {error.strerror or error}") from error
    return released


def _holds_of(target: Target, run: str, holds: Sequence[Hold]) -> list[Hold]:
    """Return the holds of one process, by its id or its time; else the only one of the run on its host."""
    names = {target.host, target.name, *((target.pod.name,) if target.pod is not None else ())}
    on_host = [hold for hold in holds if hold.host in names]
    process = target.process
    of_process = [hold for hold in on_host if process is not None and _is_of_process(hold, process)]
    of_run = [hold for hold in on_host if run in (hold.run, hold.job)]
    return of_process or (of_run if len(of_run) == 1 else [])


def _is_of(hold: Hold, facts: Facts | None) -> bool:
    """Return True if a hold is of a process of the run."""
    processes = facts.processes if facts is not None else ()
    return any(process.host == hold.host and _is_of_process(hold, process) for process in processes)


def _is_of_process(hold: Hold, process: ProcessFacts) -> bool:
    """Return True if a hold is of a process of its host: by its id, or, of a shell that started it, by time."""
    return process.pid == hold.pid or _was_during(process, hold)


def _was_during(process: ProcessFacts, hold: Hold) -> bool:
    return 0 < hold.started_ns <= process.started_ns and process.last_event_ns <= hold.ended_ns + _CLOCKS_NS


def release_by_signal(facts: Facts, host: str, console: Console) -> list[str]:
    """Send SIGTERM to the process that holds a host, where its entry names it and its pod can be reached.

    Args:
        facts: The run.
        host: The host.
        console: The terminal.

    Returns:
        Sentences on what was released.

    Raises:
        NotFoundError: The host is not held.
        CommandError: It cannot be reached.
    """
    target = find_host(facts, host)
    held = target.process.held if target.process is not None else None
    now_ns = time.time_ns()
    if held is None or held.until_ns < now_ns:
        until = f" (its hold has ended by {format_clock(held.until_ns)})" if held is not None else ""
        raise NotFoundError(
            f"{target.name} is not held{until}: there is no file in {diagnostics_directory() / 'holds'}, and no entry "
            "reports it"
        )
    if held.released_by:
        raise NotFoundError(f"{target.name} is not held any more: it was released by {held.released_by}")
    route = route_from_here(facts, target, ["kill", "-TERM", str(held.wrapper_pid)], Machine())
    if route.kind == "here":
        raise CommandError(
            f"{target.name} is held by a process that does not see {diagnostics_directory()}: end it with "
            f"`kill -TERM {held.wrapper_pid}` in its container"
        )
    if code := run_route(route, console, has_command=True):
        raise CommandError(f"{target.name} is not released: {route.argv[0]} exited with {code}")
    return [f"{target.name} is released: SIGTERM was sent to process {held.wrapper_pid}"]
