"""Runs that a project of Google Cloud keeps: the records that are not on this machine, and the commands that read them.

The page sends no requests to Cloud Logging but those of the store: its views name the command that does.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["CloudRun", "cloud_run"]

_NOT_HERE: Final = "is not on this machine, and the page does not read it from Cloud Logging."


class CloudRun(NamedTuple):
    """A run of a project.

    Attributes:
        run_id: Its id.
        job: The name of its job.
        project: The project.
        region: The region.
    """

    run_id: str
    job: str
    project: str
    region: str

    @property
    def doctor(self) -> str:
        """The command that judges it."""
        return self._command("doctor")

    @property
    def no_log(self) -> str:
        """The reason why there are no lines of its processes."""
        return f"The output of this run {_NOT_HERE} Show its last lines with: {self._command('logs')}"

    @property
    def no_stacks(self) -> str:
        """The reason why there are no stacks."""
        command = shlex.join(["tpu-stacks", "show", "--job", self.run_id, "--since", "7d"])
        return f"A record of the stacks of this run {_NOT_HERE} Show it with: {self._with_project(command)}"

    @property
    def no_goodput(self) -> str:
        """The reason why there is no goodput."""
        command = shlex.join(["goodput", "report", self.job])
        return f"The goodput of this run {_NOT_HERE} Show it with: {self._with_project(command)}"

    @property
    def no_case_file(self) -> str:
        """The reason why the page makes no case file."""
        words = ["mldiagnostics", "export", self.run_id, "case.html", "--read-from", self.project]
        command = shlex.join([*words, "--region", self.region])
        return f"The doctor's part of a case file {_NOT_HERE} Make the file with: {command}"

    def _command(self, name: str) -> str:
        return shlex.join(["mldiagnostics", name, self.run_id, "--project", self.project, "--region", self.region])

    def _with_project(self, command: str) -> str:
        return f"GOOGLE_CLOUD_PROJECT={shlex.quote(self.project)} {command}"


def cloud_run(run: RunData) -> CloudRun | None:
    """Return a run as its project keeps it; None for a run of this machine."""
    return None if run.project is None else CloudRun(run.id, run.name, *run.project)
