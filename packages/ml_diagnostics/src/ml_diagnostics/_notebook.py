"""The IPython extension: `%load_ext ml_diagnostics`.

%%instrument NAME   runs the cell as a job, which the cell calls `job`
%goodput [JOB]      shows how a job spent its time: the given one, this kernel's, or the last
%mlrun [JOB]       shows what a job did: its metrics, attempts and configs
%stacks [FILE]      shows the stacks of all threads of the kernel, or writes them to a file
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import tempfile
from pathlib import Path
from typing import Any

from ml_diagnostics._job import current, instrument

__all__ = ["register"]


def register(shell: Any) -> None:
    """Add the magics to a shell of IPython."""
    for function in (goodput, mlrun, stacks):
        shell.register_magic_function(function, "line", function.__name__)

    def run_instrumented(line: str, cell: str) -> None:
        """Run the cell as a job: `%%instrument NAME`; the cell calls the job `job`."""
        job = instrument(line.strip())
        _refuse_await(shell, cell)
        with job as entered:
            shell.user_ns["job"] = entered
            result = shell.run_cell(cell)
            error = result.error_before_exec or result.error_in_exec
            if error is not None:  # The cells after this one must not run, and the job must end as failed.
                _show_no_more(shell, error)
                raise error

    shell.register_magic_function(run_instrumented, "cell", "instrument")


def _refuse_await(shell: Any, cell: str) -> None:
    """Raise an error that names the alternative if the cell awaits while the loop of the kernel runs.

    IPython calls a magic in that loop, which cannot run the cell before the magic returns.
    """
    from IPython.core.error import UsageError

    try:
        asyncio.get_running_loop()
        transformed = shell.transform_cell(cell)
    except Exception:
        return  # No loop runs, or IPython reports what is wrong with the cell.
    if shell.should_run_async(cell, transformed_cell=transformed):
        raise UsageError(
            "%%instrument cannot run a cell that awaits. Start the job in the cell instead: "
            "with ml_diagnostics.instrument('NAME') as job: ..."
        )


def _show_no_more(shell: Any, error: BaseException) -> None:
    """Leave out the traceback of an error that IPython has shown when it is raised again."""
    show = shell.showtraceback

    def show_others(*args: Any, **kwargs: Any) -> None:
        shell.showtraceback = show
        if sys.exc_info()[1] is not error:
            show(*args, **kwargs)

    shell.showtraceback = show_others


def goodput(line: str) -> Any:
    """Show how a job spent its time: `%goodput [JOB]`; without a name, this kernel's, or the last of this machine."""
    from ml_goodput_measurement.report import report

    return report(line.strip() or current().name or "last")


def mlrun(line: str) -> Any:
    """Show what a job did: `%mlrun [JOB]`; without a name, this kernel's, or the last of this machine."""
    from google_cloud_mldiagnostics.run_page import run_page

    return run_page(line.strip() or current().name or "last")


def stacks(line: str) -> None:
    """Show the stacks of all threads of the kernel, or write them to a file: `%stacks [FILE]`."""
    name = line.strip()
    if name:
        with Path(name).open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)
        print(f"The stacks of all threads are in {Path(name).resolve()}.")
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        sys.stdout.write(file.read())
