"""`mldiagnostics simulate`: a rehearsal of a job of Kubernetes, or of a command, on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import CommandError, UsageError
from ml_diagnostics_common.command.options import seconds, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ml_diagnostics_common.command.console import Console

    from ml_diagnostics_console._facts.kubernetes_facts import NodeFacts
    from ml_diagnostics_console._simulate.faults import Fault
    from ml_diagnostics_console._simulate.manifest import Workload

__all__ = ["SimulateCommand"]

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
            "--credentials",
            action="store_true",
            help="pass HOME and the credentials of this shell to the job, which may then read, overwrite and delete "
            "real checkpoints (default: an empty HOME, and no credentials)",
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
        from ml_diagnostics_console._simulate.rehearsal import Plan, Rehearsal
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
        plan = Plan(
            workload,
            source,
            options.time_limit,
            hosts=options.hosts,
            devices=options.devices,
            faults=options.fault,
            variables=dict(options.env),
            volumes=volumes,
            found=found,
            has_credentials=options.credentials,
        )
        return Rehearsal(plan, console).run()


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
