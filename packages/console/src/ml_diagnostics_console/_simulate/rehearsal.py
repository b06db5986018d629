"""One rehearsal from its announcement to its verdict and exit code."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shlex
import shutil
import site
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import DONE, FAILED, UsageError
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.files import share_lock, try_lock
from ml_diagnostics_common.texts import format_count, format_duration

from ml_diagnostics_console._simulate.faults import Fault
from ml_diagnostics_console._simulate.launch import Settings, groups_of
from ml_diagnostics_console._simulate.manifest import Workload
from ml_diagnostics_console._simulate.processes import LAUNCHER, Line
from ml_diagnostics_console._simulate.report import examined
from ml_diagnostics_console._simulate.simulation import Outcome, Simulation
from ml_diagnostics_console._simulate.variables import Pod, pods_of
from ml_diagnostics_console.report import STYLES, format_report, format_verdict
from ml_diagnostics_console.verdict import EXIT_CODES, Verdict, VerdictClass

__all__ = ["MOST_PODS", "Plan", "Rehearsal", "prune"]

MOST_PODS: Final = 64
_COLORS: Final = ("36", "33", "35", "32", "34", "31", "96", "93", "95", "92", "94", "91")
"""Colors of pods, on a terminal."""
_LONGEST_NAME: Final = 60
_KEPT: Final = 20
"""Rehearsals that are kept, with their records."""
_REHEARSAL: Final = re.compile(r".+-([0-9]{8}-[0-9]{6}-[0-9]+)", re.DOTALL)
_MOST_BUCKETS: Final = 20
_NOTHING: Final = (
    "Unknown: the job has recorded nothing so far.\n  next    wrap its training in ml_diagnostics.instrument(), or in "
    "cloud_tpu_diagnostics.diagnose()"
)


@dataclass(frozen=True)
class Plan:
    """The request of the user.

    Attributes:
        workload: The workload.
        source: The manifest's file, or the command.
        hosts: The most pods of each job; None for all.
        devices: Virtual devices of each process; None takes the chips that the pod asks for.
        faults: Faults to inject.
        time_limit_seconds: When the job is ended.
        variables: Variables of all pods.
        volumes: Folders by the name of the volume.
        found: Findings from before the start.
        has_credentials: True if processes get HOME and the credentials of this shell.
    """

    workload: Workload
    source: str
    time_limit_seconds: float
    hosts: int | None = None
    devices: int | None = None
    faults: Sequence[Fault] = ()
    variables: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    found: Sequence[Verdict] = ()
    has_credentials: bool = False


class Rehearsal:
    """One rehearsal.

    Args:
        plan: The request of the user.
        console: The terminal.

    Raises:
        UsageError: There are too many pods, or a fault is for none of them.
    """

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan, self._console = plan, console
        self._pods = pods_of(plan.workload, plan.hosts)
        if len(self._pods) > MOST_PODS:
            raise UsageError(
                f"{plan.source} starts {len(self._pods):,} pods, and at most {MOST_PODS} are simulated; give --hosts N"
            )
        for fault in plan.faults:
            if fault.process >= len(self._pods):
                raise UsageError(f"--fault {fault}: there are only the processes 0 to {len(self._pods) - 1}")
        self._started_ns = time.time_ns()
        self._report: list[str] = []
        self._code_of_report = DONE

    def run(self) -> int:
        """Run it, print the verdict, and return the exit code."""
        gc.enable()  # Short commands do without; a rehearsal may run for hours.
        self._directory = directory = self._own_directory()
        os.environ["ML_DIAGNOSTICS_DIR"] = str(directory)  # The doctor reads it as well.
        with tempfile.TemporaryDirectory(prefix="simulate-", dir=directory) as folder:
            simulation = Simulation(
                self._plan.workload,
                self._settings(Path(folder)),
                hosts=self._plan.hosts,
                faults=self._plan.faults,
                time_limit_seconds=self._plan.time_limit_seconds,
                source=self._plan.source,
                show=_Output(self._console, self._pods).show,
                notify=self._notify,
                # Its end by the time limit would hide what is wrong with a job that still runs.
                at_limit=lambda: self._examine(()),
            )
            self._announce(simulation.buckets)
            outcome = simulation.run()
        return self._end(outcome)

    def _own_directory(self) -> Path:
        """Return the diagnostics folder of this rehearsal, so that it is never mixed with the real job of its name."""
        started = time.strftime("%Y%m%d-%H%M%S")
        name = self._plan.workload.name[:_LONGEST_NAME].replace("/", "-")
        directory = diagnostics_directory() / "simulated" / f"{name}-{started}-{os.getpid()}"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(directory, os.O_RDONLY)  # Released by the end of this process, whatever ends it.
        share_lock(self._lock)
        prune(directory.parent)
        return directory

    def _settings(self, folder: Path) -> Settings:
        plan = self._plan
        home = ""
        if not plan.has_credentials:
            home = str(self._directory / "home")
            os.mkdir(home, 0o700)  # noqa: PTH102 (a text of a variable)
        return Settings(
            shell=dict(os.environ),
            directory=str(self._directory),
            folder=str(folder),
            launcher=str(LAUNCHER),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            here=str(Path.cwd()),
            given=plan.variables,
            volumes=plan.volumes,
            devices=plan.devices,
            may_exit=any(fault.kind == "exit" for fault in plan.faults),
            home=home,
            user_base=site.getuserbase(),
        )

    def _notify(self, text: str) -> None:
        self._console.notify(text if text.startswith("ignored:") else f"simulate: {text}")

    def _announce(self, buckets: Sequence[str]) -> None:
        workload = self._plan.workload
        kind = "" if workload.kind == "command" else f"{workload.kind} "
        processes = format_count(len(self._pods), "process", "processes")
        limit = format_duration(self._plan.time_limit_seconds)
        where = f"it records in {self._directory}"
        self._notify(f"{kind}{workload.name} as {processes} of this machine, for at most {limit}; {where}")
        if self._plan.has_credentials:
            self._notify("credentials: its processes have your HOME and the credentials of this shell")
        else:
            self._notify("credentials: none; HOME is an empty folder, and --credentials passes yours")
        access = "may read, overwrite or delete it" if self._plan.has_credentials else "gets no credentials for it"
        for bucket in buckets[:_MOST_BUCKETS]:
            self._console.warn(f"{bucket} is real: the rehearsal {access}")
        if len(buckets) > _MOST_BUCKETS:
            self._console.warn(f"{len(buckets) - _MOST_BUCKETS} more addresses of buckets are real")

    # --- The end --------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> int:
        for fault in outcome.not_injected:
            self._console.warn(f"{fault} was not injected: the process reports no such step, or has ended before")
        if outcome.is_time_limit:
            self._console.notify("simulate: the job still ran at the time limit, and was ended", is_progress=False)
        else:
            if outcome.reason:
                self._notify(f"the job has failed: {outcome.reason}")
            self._examine(outcome.verdicts)
        self._console.notify()
        self._console.data("\n".join(self._report), styles=STYLES)
        self._notify(f"for commands on this job: export ML_DIAGNOSTICS_DIR={shlex.quote(str(self._directory))}")
        if outcome.exit_code is None or (outcome.exit_code == 0 and self._plan.found):
            return self._code_of_report or (DONE if outcome.is_time_limit else FAILED)
        return outcome.exit_code

    def _examine(self, found: Sequence[Verdict]) -> None:
        """Judge the job, and keep the report.

        Args:
            found: The reasons for which the rehearsal has ended the job: the doctor would only see that end.
        """
        width = self._console.width
        own = [*self._plan.found, *found]
        lines = [line for verdict in own for line in [*format_verdict(verdict, width or 80), ""]]
        verdict_class = own[0].verdict_class if own else None
        if not found:
            training = max(groups_of(self._pods), key=len)
            names = {index: pod.name for index, pod in enumerate(training)}
            report = examined(self._plan.workload.name, self._started_ns, names, self._console.detail)
            if report is None:
                lines.append(_NOTHING)
            else:
                lines.append(format_report(report, width))
            doctors = VerdictClass.UNKNOWN if report is None else report.headline.verdict_class
            verdict_class = verdict_class or doctors
        self._report = lines if lines[-1] else lines[:-1]
        self._code_of_report = EXIT_CODES[verdict_class or VerdictClass.UNKNOWN]


def prune(folder: Path, most: int = _KEPT) -> None:
    """Remove the oldest rehearsals, but none that runs; folders with other names stay.

    Args:
        folder: The folder of rehearsals.
        most: The number of those that are kept.
    """
    with contextlib.suppress(OSError):
        found = [(made[1], path) for path in folder.iterdir() if (made := _REHEARSAL.fullmatch(path.name))]
        for _, path in sorted(found)[:-most]:
            _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if try_lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


class _Output:
    """Lines of pods with their names, in a color for each pod."""

    def __init__(self, console: Console, pods: Sequence[Pod]) -> None:
        errors = Console(out=console.err, may_use_color=console.may_use_color)
        self._consoles = {False: console, True: errors}
        self._width = max((len(pod.name) for pod in pods), default=0)

    def show(self, line: Line) -> None:
        """Print a line on the stream that it was printed on."""
        name = line.pod.name.ljust(self._width)
        color = _COLORS[line.pod.rank % len(_COLORS)]
        self._consoles[line.is_error].data(f"{name} | {line.text}", styles={r"\A[^|]*\|": color})
