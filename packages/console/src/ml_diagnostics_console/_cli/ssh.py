"""`mldiagnostics ssh`: a shell, or a command, on a host of a job."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.errors import DONE, UsageError

from ml_diagnostics_console._cli.questions import add_host_argument, add_question_options, job_reader

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["SshCommand"]


class SshCommand:
    """Connects to a host."""

    name = "ssh"
    summary = "open a shell, or run a command, on a host of a job"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.usage = "%(prog)s RUN HOST [options] [-- COMMAND [ARGUMENT ...]]"
        parser.epilog = "exits as the command does; it adds no keys, and does not change the pod"
        add_question_options(parser)
        add_host_argument(parser)
        parser.add_argument(
            "--print", action="store_true", dest="prints", help="print the command line, and run nothing"
        )
        parser.add_argument("--tpu", metavar="NAME", default="", help="the TPU that the host belongs to, with --zone")
        parser.add_argument("--zone", metavar="ZONE", default="", help="the zone of the VM or the TPU in Google Cloud")
        _keep_command(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Connect, and return the exit code of the command."""
        from ml_diagnostics_console._ssh.hosts import find_host, route_from_here
        from ml_diagnostics_console._ssh.routes import Machine
        from ml_diagnostics_console._ssh.running import run_route

        if options.tpu and not options.zone:
            raise UsageError("--tpu needs --zone ZONE")
        facts = job_reader(options, console).read()
        machine = Machine(options.tpu, options.zone, (options.project or "") if options.zone else "")
        route = route_from_here(facts, find_host(facts, options.host), options.program, machine)
        if not route.argv:
            console.notify(f"{route.where}: no connection is needed")
            return DONE
        if options.prints:
            console.data(shlex.join(route.argv))
            return DONE
        return run_route(route, console, has_command=bool(options.program))


def _keep_command(parser: argparse.ArgumentParser) -> None:
    """Let a parser keep all that follows `--` as `program`.

    argparse has no positional arguments of any number that may follow options.
    """
    parse = parser.parse_known_args

    def parse_before(arguments: Sequence[str], namespace: argparse.Namespace | None = None) -> Any:
        words = list(arguments)
        at = words.index("--") if "--" in words else len(words)
        found, unknown = parse(words[:at], namespace)
        found.program = words[at + 1 :]
        return found, unknown

    parser.parse_known_args = parse_before  # type: ignore[method-assign, assignment]
