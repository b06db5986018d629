"""`mldiagnostics release`: ends the hold of a failed job that `run --hold-on-failure` keeps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE

from ml_diagnostics_console._cli.questions import add_host_argument, add_question_options, job_reader

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["ReleaseCommand"]


class ReleaseCommand:
    """Releases a host."""

    name = "release"
    summary = "release a host that is held for debugging after a failure"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.epilog = (
            "it removes a file in ML_DIAGNOSTICS_DIR, on this machine or a shared disk; in a pod it sends SIGTERM to "
            "the process that holds it"
        )
        add_question_options(parser)
        add_host_argument(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Release the host, and return the exit code."""
        from ml_diagnostics_console._ssh.releasing import release_by_file, release_by_signal

        # By its file first: it needs neither the run nor the cluster.
        released = release_by_file(options.run, options.host)
        if not released:
            facts = job_reader(options, console).read()
            released = release_by_file(facts.display_name, options.host, facts) or release_by_signal(
                facts, options.host, console
            )
        for text in released:
            console.notify(text)
        return DONE
