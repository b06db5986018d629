"""Shows what the processes of a job printed: the last lines of one, repeatedly, or of all around a moment."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import DONE, NotFoundError, UsageError
from ml_diagnostics_common.entry import parse_timestamp
from ml_diagnostics_common.texts import format_count

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.kubernetes_facts import PodFacts
from ml_diagnostics_console._facts.programs import ProgramError
from ml_diagnostics_console._facts.targets import Target, cluster_of, targets_of
from ml_diagnostics_console._logs.lines import Line, Shown, lines_of, merged, safe, window
from ml_diagnostics_console._logs.sources import Log, Text
from ml_diagnostics_console._logs.step_times import known_steps, step_times

__all__ = ["LAST_BYTES", "Choice", "Showing"]

LAST_BYTES: Final = 4_096
_FOLLOW_SECONDS: Final = 10.0
_AT_ONCE: Final = 8
_NAMES_SHOWN: Final = 10
_DAY_NS: Final = 86_400_000_000_000
_STREAM_NAMES: Final = {"out": "stdout", "err": "stderr", "out+err": "stdout and stderr"}
_STEP: Final = re.compile(r"step\s+(\d{1,18})", re.ASCII)
_CLOCK: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Choice:
    """The processes and streams that are to be shown.

    Attributes:
        host: Only this host or pod.
        process: Only the process with this index.
        stream: Only `out` or `err`.
        shows_all: True for all that is kept, False for the last lines.
    """

    host: str = ""
    process: int | None = None
    stream: str = ""
    shows_all: bool = False

    def takes(self, text: Text) -> bool:
        """Return True if a text is of the chosen stream."""
        return not self.stream or self.stream in text.stream.split("+")


class Showing:
    """Shows texts of a job.

    Args:
        facts: The job.
        choice: The processes and streams that are to be shown.
        root: The diagnostics folder.
        console: The terminal.
    """

    def __init__(self, facts: Facts, choice: Choice, root: Path, console: Console) -> None:
        self._facts, self._choice, self._root, self._console = facts, choice, root, console
        self._logs: dict[str, Log] = {}
        self._header = ("", "")
        self._cluster = cluster_of(facts)
        self._has_warned: set[str] = set()

    # --- The last lines -------------------------------------------------------------------------------

    def show_last(self) -> int:
        """Show the last lines of the chosen processes; of the one that failed first, if none is chosen.

        Returns:
            The exit code.

        Raises:
            NotFoundError: There is no such process, or nothing is known of what it printed.
        """
        targets = self._chosen_or_first()
        if not sum([self._show(target) for target in targets]):
            raise NotFoundError(self._why_nothing(targets))
        return DONE

    def follow(self, read_again: Callable[[], Facts], pause: Callable[[float], object] = time.sleep) -> int:
        """Show the last lines, and each ten seconds what is new, until the job ends.

        Args:
            read_again: Returns what is known of the job now.
            pause: Waits so many seconds.
        """
        while True:
            targets = self._chosen_or_first()
            is_live = self._facts.is_live
            for target in targets:
                self._show(target)
            if not any(log.is_found for log in self._logs.values()):
                self._warn(self._why_nothing(targets))
            if not is_live:
                return DONE
            pause(_FOLLOW_SECONDS)
            self._facts = read_again()

    def _chosen_or_first(self) -> list[Target]:
        targets = targets_of(self._facts, self._choice.host, self._choice.process)
        if self._choice.host or self._choice.process is not None:
            return targets
        first = [target for target in targets if target.process is not None and target.process.is_first_cause]
        return (first or targets)[:1]

    def _show(self, target: Target) -> bool:
        """Print what is new of a target, and return True if that is anything."""
        log = self._logs.setdefault(target.key, Log(self._root, self._cluster, prefers_all=self._choice.shows_all))
        most_bytes = None if self._choice.shows_all or log.is_found else LAST_BYTES
        texts = [text for text in self._read(log, target, most_bytes) if self._choice.takes(text)]
        for text in texts:
            if self._header != (target.key, text.stream):
                self._header = target.key, text.stream
                what = "all that is kept" if most_bytes is None else f"the last {most_bytes:,} bytes"
                stream = _STREAM_NAMES.get(text.stream, text.stream)
                self._console.notify(f"{target.name}, {stream}, {what} ({text.origin}):")
            for line in lines_of(text.text, target.name, text.stream):
                self._console.data(line.text)
        return bool(texts)

    def _read(self, log: Log, target: Target, most_bytes: int | None, since_ns: int | None = None) -> list[Text]:
        try:
            return log.read(target, most_bytes, since_ns)
        except ProgramError as error:
            self._warn(f"the log of {target.name} cannot be read from its pod: {error}")
            return []

    # --- Around a moment ------------------------------------------------------------------------------

    def show_around(self, moment: str, window_seconds: float) -> int:
        """Show the lines of all chosen processes around a step or a time, in one order.

        Args:
            moment: `step 42`, a time of day in UTC, or a time in the form of RFC 3339.
            window_seconds: The length of the time range.

        Returns:
            The exit code.

        Raises:
            UsageError: The moment is not valid.
            NotFoundError: The step is not known, or no line has a time.
        """
        targets = targets_of(self._facts, self._choice.host, self._choice.process)
        centers = self._centers(targets, moment)
        half_ns = round(window_seconds * 0.5e9)
        known = [target for target in targets if target.key in centers]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            read = list(threads.map(lambda target: self._around(target, centers[target.key], half_ns), known))
        lines = [line for found, _ in read for line in found]
        without = [name for _, name in read if name]
        if without:
            shown = ", ".join(without[:_NAMES_SHOWN])
            self._warn(
                f"it is not known when {shown} printed its lines; `mldiagnostics logs` without --around has them"
            )
        if not lines:
            if len(without) == len(read):
                raise NotFoundError(self._why_nothing(targets))
            self._console.notify(f"no process printed anything within {window_seconds:g} s around {moment}")
        for each in merged(lines):
            self._console.data(_format(each))
        return DONE

    def _centers(self, targets: Sequence[Target], moment: str) -> dict[str, int]:
        """Return the moment of each target by its own clock."""
        attempt = self._facts.attempt
        if found := _STEP.fullmatch(moment.strip()):
            step = int(found[1])
            times = step_times(attempt, step, self._facts.metrics) if attempt is not None else {}
            if attempt is None or not times:
                raise NotFoundError(self._why_no_step(step))
            keys = [f"{process.host}/{process.pid}" for process in attempt.processes]
            return {keys[position]: time_ns for position, time_ns in times.items()}
        time_ns = _parse_time(moment, self._facts)
        return {target.key: time_ns + target.offset_ns for target in targets}

    def _around(self, target: Target, center_ns: int, half_ns: int) -> tuple[list[Line], str]:
        """Return the lines of a target around a moment of its own clock; its name if its lines have no times."""
        log = Log(self._root, self._cluster, prefers_all=True, needs_times=True)
        start_ns, end_ns = (center_ns + difference - target.offset_ns for difference in (-half_ns, half_ns))
        found: list[Line] = []
        texts = self._read(log, target, None, center_ns - half_ns)
        for text in filter(self._choice.takes, texts):
            lines = lines_of(text.text, target.name, text.stream, text.times, target.offset_ns)
            found += window(lines, start_ns, end_ns)
        return found, "" if texts else target.name

    # --- Reasons --------------------------------------------------------------------------------------

    def _why_nothing(self, targets: Sequence[Target]) -> str:
        """Return why there is nothing to show, and what to do."""
        pods = [target.pod for target in targets if target.pod is not None]
        if pending := [pod for pod in pods if pod.is_pending]:
            return f"No log yet: {_pods(pending)} Pending; `mldiagnostics doctor {self._facts.name}` shows why"
        if not targets:
            return f"No log yet: no process of {self._facts.name} has recorded anything"
        name = targets[0].name if len(targets) == 1 else format_count(len(targets), "process", "processes")
        return (
            f"nothing is known of what {name} printed: its output goes to a pipe, a terminal or another machine. Start "
            "the job with `python -m cloud_tpu_diagnostics run -- COMMAND`, which keeps the last megabytes in "
            f"ML_DIAGNOSTICS_DIR (now {self._root})"
        )

    def _why_no_step(self, step: int) -> str:
        attempt = self._facts.attempt
        steps = known_steps(attempt) if attempt is not None else None
        known = f"its steps {steps[0]:,} to {steps[1]:,} are known" if steps is not None else "it reports no steps"
        number = f" {attempt.number}" if attempt is not None else ""
        return f"the time of step {step:,} of attempt{number} is not known: {known}"

    def _warn(self, text: str) -> None:
        if text not in self._has_warned:
            self._has_warned.add(text)
            self._console.warn(text)


def _pods(pods: Sequence[PodFacts]) -> str:
    return f"the pod {pods[0].name} is" if len(pods) == 1 else f"{len(pods)} pods are"


def _format(line: Shown) -> str:
    processes = line.processes[0] if len(line.processes) == 1 else f"{len(line.processes)} processes"
    return f"{_clock(line.time_ns)} {safe(processes)} | {line.text}"


def _clock(time_ns: int | None) -> str:
    if time_ns is None:
        return "-"
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{time.strftime('%H:%M:%S', time.gmtime(seconds))}.{rest // 100_000_000}"


def _parse_time(text: str, facts: Facts) -> int:
    """Return a time in ns since 1970; of a time of day, the last such moment of the job.

    Raises:
        UsageError: It is not a time.
    """
    try:
        return parse_timestamp(text.strip())
    except ValueError:
        pass
    found = _CLOCK.fullmatch(text.strip())
    if found is None or int(found[1]) > 23 or int(found[2]) > 59 or int(found[3]) > 59:
        raise UsageError(
            f"--around is {text!r}; give a step ('step 42'), a time of day in UTC (16:02:11), or a time such as "
            "2026-11-21T16:02:11Z"
        )
    of_day = (int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])) * 10**9 + int((found[4] or "").ljust(9, "0"))
    midnight = facts.now_ns - facts.now_ns % _DAY_NS
    return midnight + of_day - (_DAY_NS if midnight + of_day > facts.now_ns else 0)
