"""`mldiagnostics simulate`: a rehearsal of a job of Kubernetes, or of a command, on this machine."""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import DONE, CommandError, UsageError
from ml_diagnostics_common.command.options import seconds, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ml_diagnostics_common.command.console import Console

    from ml_diagnostics_console._facts.kubernetes_facts import NodeFacts
    from ml_diagnostics_console._simulate.faults import Fault
    from ml_diagnostics_console._simulate.launch import Settings
    from ml_diagnostics_console._simulate.manifest import Workload
    from ml_diagnostics_console._simulate.processes import Line
    from ml_diagnostics_console._simulate.simulation import Outcome, Simulation
    from ml_diagnostics_console._simulate.variables import Pod
    from ml_diagnostics_console.verdict import Verdict

__all__ = ["SimulateCommand"]

_COLORS: Final = ("36", "33", "35", "32", "34", "31", "96", "93", "95", "92", "94", "91")
"""Of pods, on a terminal."""
_EXIT_CODES: Final = (
    "exits as the job does: 0, or the code of the pod that failed it, such as 137 after SIGKILL. 11 if it can never "
    "start on a cluster though it ended well here; after the time limit 0 if nothing is wrong, else as `mldiagnostics "
    "doctor`"
)
_KUBECTL_SECONDS: Final = 20.0


class SimulateCommand:
    """Rehearses a job."""

    name = "simulate"
    summary = "rehearse a job of Kubernetes on this machine: each pod is a process, and the doctor judges the end"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.usage = "%(prog)s [options] FILE.yaml\n       %(prog)s [options] -- COMMAND"
        parser.epilog = _EXIT_CODES
        parser.add_argument(
            "words", nargs="+", metavar="FILE.yaml | -- COMMAND", help="a Job or a JobSet; or a command, after `--`"
        )
        parser.add_argument(
            "--hosts",
            metavar="N",
            type=whole_number(1, 1_000),
            help="processes of the command (default: 1); of a manifest at most N pods of each job",
        )
        parser.add_argument(
            "--devices",
            metavar="N",
            type=whole_number(1, 512),
            help="virtual devices of each process (default: the chips that a pod requests, or 1)",
        )
        parser.add_argument(
            "--fault",
            metavar="KIND@process=1,step=30",
            action="append",
            type=_fault,
            default=[],
            help="inject a fault from outside, at a step that the program reports: sigkill, sigterm, sigstop, sigsegv, "
            "sigabrt or exit; `seconds=20` in place of the step counts from the start",
        )
        parser.add_argument(
            "--time-limit",
            metavar="10m",
            type=seconds,
            default=600.0,
            help="end the job after this time (default: 10m)",
        )
        parser.add_argument(
            "--env", metavar="K=V", action="append", type=_pair, default=[], help="set a variable in all pods"
        )
        parser.add_argument(
            "--volume", metavar="NAME=DIR", action="append", type=_pair, default=[], help="use a folder as a volume"
        )
        parser.add_argument(
            "--kubernetes",
            metavar="CONTEXT",
            help="compare requests with the nodes of this cluster, by kubectl (default: with known machine types)",
        )

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run the rehearsal, print the verdict, and return the job's exit code."""
        if sys.platform == "win32":
            raise CommandError("`simulate` does not work on Windows: run it in WSL")
        from ml_diagnostics_console._simulate.findings import resource_findings
        from ml_diagnostics_console._simulate.ignored import ignored_parts
        from ml_diagnostics_console.verdict import Verdict

        workload, source = _workload(options)
        volumes = _folders(options.volume, workload)
        nodes = None if options.kubernetes is None else _nodes(options.kubernetes)
        findings = resource_findings(workload, nodes, source)
        for line in [*ignored_parts(workload, volumes), *(each for each in findings if isinstance(each, str))]:
            console.notify(f"ignored: {line}")
        found = [each for each in findings if isinstance(each, Verdict)]
        for verdict in found:
            console.warn(f"{verdict.rule}: {verdict.sentence}")
        return _Rehearsal(options, console, workload, source, volumes, found).run()


class _Rehearsal:
    """One rehearsal, and its report."""

    def __init__(
        self,
        options: argparse.Namespace,
        console: Console,
        workload: Workload,
        source: str,
        volumes: dict[str, str],
        found: list[Verdict],
    ) -> None:
        self._options, self._console = options, console
        self._workload, self._source, self._volumes, self._found = workload, source, volumes, found
        self._exit_code = 0

    def run(self) -> int:
        """Run it, print the report, and return the exit code."""
        import gc
        import os
        import time

        from ml_diagnostics_console._simulate.simulation import MOST_PODS, Simulation
        from ml_diagnostics_console._simulate.variables import pods_of

        gc.enable()  # Short commands do without; a rehearsal may run for hours.
        options, console = self._options, self._console
        self._pods = pods_of(self._workload, options.hosts)
        if len(self._pods) > MOST_PODS:
            raise UsageError(
                f"{self._source} starts {len(self._pods):,} pods, and at most {MOST_PODS} are simulated; give --hosts N"
            )
        self._check_faults(options.fault)
        self._is_shared = bool(os.environ.get("ML_DIAGNOSTICS_DIR"))
        directory = _directory(self._workload.name)
        self._directory = str(directory)
        os.environ["ML_DIAGNOSTICS_DIR"] = str(directory)  # The doctor reads it as well.
        self._started_ns = time.time_ns()
        with _private_folder(directory) as folder:
            simulation = Simulation(
                self._workload,
                self._settings(directory, folder),
                hosts=options.hosts,
                faults=options.fault,
                time_limit_seconds=options.time_limit,
                source=self._source,
                show=_Output(console, self._pods).show,
                notify=lambda text: console.notify(text if text.startswith("ignored:") else f"simulate: {text}"),
                at_limit=self._report_live,
            )
            self._announce(simulation, directory)
            outcome = simulation.run()
        return self._end(outcome)

    def _check_faults(self, faults: Sequence[Fault]) -> None:
        for each in faults:
            if each.process >= len(self._pods):
                raise UsageError(f"--fault {each}: there are only the processes 0 to {len(self._pods) - 1}")

    def _settings(self, directory: Path, folder: Path) -> Settings:
        import os
        import time
        from pathlib import Path

        from ml_diagnostics_console._simulate.launch import Settings
        from ml_diagnostics_console._simulate.processes import LAUNCHER

        return Settings(
            shell=dict(os.environ),
            directory=str(directory),
            folder=str(folder),
            launcher=str(LAUNCHER),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            here=str(Path.cwd()),
            given=dict(self._options.env),
            volumes=self._volumes,
            devices=self._options.devices,
            may_exit=any(each.kind == "exit" for each in self._options.fault),
        )

    def _announce(self, simulation: Simulation, directory: Path) -> None:
        from ml_diagnostics_common.texts import format_count, format_duration

        kind = "" if self._workload.kind == "command" else f"{self._workload.kind} "
        processes = format_count(len(simulation.pods), "process", "processes")
        limit = format_duration(self._options.time_limit)
        self._console.notify(
            f"simulate: {kind}{self._workload.name} as {processes} of this machine, for at most {limit}; it records in "
            f"{directory}"
        )

    def _report_live(self) -> None:
        """Judge a job that still runs: its end by the time limit would hide what is wrong with it."""
        self._print_report()

    def _end(self, outcome: Outcome) -> int:
        console = self._console
        for each in outcome.not_injected:
            console.warn(f"{each} was not injected: the process reports no such step, or has ended before")
        if outcome.is_time_limit:
            console.notify("simulate: the job still ran at the time limit, and was ended", is_progress=False)
            return self._exit_code
        if outcome.reason:
            console.notify(f"simulate: the job has failed: {outcome.reason}")
        self._found += outcome.verdicts
        self._print_report()
        if outcome.exit_code:
            return outcome.exit_code
        return self._code_of_found() or (DONE if outcome.exit_code == 0 else self._exit_code or 1)

    def _code_of_found(self) -> int:
        from ml_diagnostics_console.verdict import EXIT_CODES

        return EXIT_CODES[self._found[0].verdict_class] if self._found else DONE

    def _print_report(self) -> None:
        """Print what the rehearsal has found, then what the doctor finds."""
        import shlex

        from ml_diagnostics_console._output import STYLES, format_report, format_verdict
        from ml_diagnostics_console._simulate.report import examined

        console = self._console
        width = console.width or 80
        names = {pod.rank: pod.name for pod in self._pods}
        report = examined(self._workload.name, self._started_ns, names, console.detail)
        self._exit_code = self._code_of_found()
        console.notify()
        lines = [line for verdict in self._found for line in [*format_verdict(verdict, width), ""]]
        if report is None:
            lines += ["Unknown: the job has recorded nothing, not even its end."]
            self._exit_code = self._exit_code or 19
        else:
            self._exit_code = self._exit_code or report.exit_code
            lines += [format_report(report, console.width)]
        console.data("\n".join(lines), styles=STYLES)
        if not self._is_shared:
            console.notify(
                f"simulate: for commands on this job: export ML_DIAGNOSTICS_DIR={shlex.quote(self._directory)}"
            )


class _Output:
    """Lines of pods with their names, in a color for each pod."""

    def __init__(self, console: Console, pods: Sequence[Pod]) -> None:
        from ml_diagnostics_common.command.console import Console

        self._consoles = {
            False: console,
            True: Console(out=console.err, may_use_color=console.may_use_color),
        }
        self._width = max((len(pod.name) for pod in pods), default=0)

    def show(self, line: Line) -> None:
        """Print a line on the stream that it was printed on."""
        name = line.pod.name.ljust(self._width)
        color = _COLORS[line.pod.rank % len(_COLORS)]
        self._consoles[line.is_error].data(f"{name} | {line.text}", styles={r"\A[^|]*\|": color})


# --- Arguments ----------------------------------------------------------------------------------------


def _fault(text: str) -> Fault:
    from ml_diagnostics_console._simulate.faults import fault

    return fault(text)


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _workload(options: argparse.Namespace) -> tuple[Workload, str]:
    """Return the workload of the arguments, and its name for people."""
    from pathlib import Path

    from ml_diagnostics_console._simulate.manifest import of_command, parse, read

    words: list[str] = options.words
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        return parse(read(Path(words[0]))), words[0]
    return of_command(tuple(words), hosts=options.hosts or 1), words[0]


def _folders(pairs: Sequence[tuple[str, str]], workload: Workload) -> dict[str, str]:
    """Return the folders of volumes.

    Raises:
        UsageError: The manifest has no such volume, or there is no such folder.
    """
    from pathlib import Path

    names = {volume.text("name") for job in workload.jobs for volume in job.template.spec.each("volumes")}
    for name, folder in pairs:
        if name not in names:
            raise UsageError(
                f"--volume {name}: the manifest has no such volume; it has {', '.join(sorted(names)) or 'none'}"
            )
        if not Path(folder).is_dir():
            raise UsageError(f"--volume {name}: there is no folder {folder!r}")
    return {name: str(Path(folder).absolute()) for name, folder in pairs}


def _nodes(context: str) -> list[NodeFacts]:
    """Return the nodes of a cluster.

    Raises:
        CommandError: kubectl does not answer.
    """
    import time

    from ml_diagnostics_console._facts.kubectl import Kubectl, KubectlError
    from ml_diagnostics_console._facts.kubernetes_objects import parse_node

    try:
        kubectl = Kubectl.connect(context, "", time.monotonic() + _KUBECTL_SECONDS)
        nodes = [parse_node(document) for document in kubectl.get("nodes", "")]
    except KubectlError as error:
        raise CommandError(f"cannot read the nodes of {context}: {error}") from error
    return [node for node in nodes if node is not None]


def _directory(name: str) -> Path:
    """Return the diagnostics folder of a rehearsal: ML_DIAGNOSTICS_DIR, or one of its own."""
    import os
    import time

    from ml_diagnostics_common.environment import diagnostics_directory

    if os.environ.get("ML_DIAGNOSTICS_DIR"):
        return diagnostics_directory()
    started = time.strftime("%Y%m%d-%H%M%S")
    return diagnostics_directory() / "simulated" / f"{name[:60]}-{started}-{os.getpid()}"


@contextmanager
def _private_folder(directory: Path) -> Iterator[Path]:
    """Make a folder for the reports of launchers, for as long as the block runs."""
    import tempfile
    from pathlib import Path

    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="simulate-", dir=directory) as folder:
        yield Path(folder)
