"""The command `ml-diagnostics`: a training program as it is, with a report of where its time goes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ml_diagnostics_common.command.program import Command, Program
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_diagnostics._parts import LONGEST_NAME, checked_job_name
from ml_diagnostics._version import __version__

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["job_name_of", "main"]

_JOB_VARIABLE: Final = "ML_DIAGNOSTICS_JOB"
_VALUED_OPTIONS: Final = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python with a value of their own, which is not the name of the script."""
_FLAGS_WITHOUT_PATH: Final = "IES"
"""Flags of Python that have it ignore PYTHONPATH or `sitecustomize`."""
_LAUNCHERS: Final = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_LAUNCHERS_OF_MODULES: Final = ("torchrun", "accelerate", "deepspeed", "uv")
_MODULE_OPTIONS: Final = ("-m", "--module")
"""Options of launchers; others have a `-m` that means something else, such as Slurm's `srun`."""
_SCRIPTS: Final = (".py", ".sh")
_NOT_FOUND: Final = 127
"""The exit code of shells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `ml-diagnostics`; None takes those of this process.
    """
    description = "Where the time of a training job goes, without a change to its program."
    return Program("ml-diagnostics", description, __version__, _commands).main(arguments)


def _commands() -> Iterator[Command]:
    yield RunCommand()


class RunCommand:
    """Runs a training program, and infers its goodput."""

    name = "run"
    summary = "run a training program as it is, and infer where its time goes: see `goodput report NAME`"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.epilog = "exits as the program does; 127 if it does not exist, 126 if it cannot be run"
        parser.add_argument(
            "--name",
            metavar="NAME",
            type=_name,
            help="the name of the job in all reports, the same after a restart "
            "(default: ML_DIAGNOSTICS_JOB, else the name of the script)",
        )
        parser.add_argument("--no-upload", action="store_true", help="write the exit reason to the journal only")
        parser.add_argument("job", nargs="+", metavar="CMD", help="the program and its arguments, after `--`")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run the program to its end, and exit as it did."""
        from shlex import quote
        from shutil import which

        name = options.name or os.environ.get(_JOB_VARIABLE) or job_name_of(options.job)
        if not options.job[0] or (which(options.job[0]) is None and not Path(options.job[0]).exists()):
            console.warn(f"cannot run {options.job[0]!a}: no such program")
            return _NOT_FOUND
        os.environ.update(_environment(name))
        _announce(console, f"job {name!r}; afterwards, or while it runs: goodput report {quote(name)}")
        ignoring = next((flag for flag in _python_command(options.job).flags if flag in _FLAGS_WITHOUT_PATH), None)
        if ignoring is not None:
            _announce(
                console, f"Python's option -{ignoring} leaves out what infers goodput: the program runs without it"
            )
        try:
            from cloud_tpu_diagnostics.__main__ import main as run_with_parent
        except ImportError:
            return _run_alone(options.job)
        if not hasattr(os, "posix_spawnp"):
            return _run_alone(options.job)
        upload = ["--no-upload"] if options.no_upload else []
        # The program keeps its own streams: with the console recorded, they would end with this command.
        return run_with_parent(["run", "--no-console", *upload, "--", *options.job])


def job_name_of(command: Sequence[str]) -> str:
    """Return the name of a job that the user gave none: that of the script or the module, without a suffix.

    Args:
        command: The program and its arguments.
    """
    program = Path(command[0]).name
    python = _python_command(command)
    if not python.kind or python.module in _LAUNCHERS:
        own = next((index for index, word in enumerate(command) if python.kind and word.endswith(python.module)), 0)
        launched = _launched_name(command[own + 1 :], bool(python.kind) or program in _LAUNCHERS_OF_MODULES)
        return _shortened(launched or python.module or Path(program).stem or program)
    if python.kind == "script":
        return _shortened(_name_of_script(python.value))
    return _shortened(_name_of_module(python.module) or program)


def _launched_name(arguments: Sequence[str], runs_modules: bool) -> str:
    """Return the name of the first script or module among the arguments of a launcher; empty for none."""
    for index, word in enumerate(arguments):
        following = "".join(arguments[index + 1 : index + 2])
        if word.endswith(_SCRIPTS):
            return _name_of_script(word)
        if runs_modules and word in _MODULE_OPTIONS and not following.startswith("-"):
            return _name_of_module(following)
        if Path(word).name.rstrip(".0123456789") == "python":
            return job_name_of(arguments[index:])
    return ""


class _PythonCommand(NamedTuple):
    """A command line of Python: its flags of one letter, and what it runs."""

    flags: str
    kind: str
    """`script`, `m` for a module, `c` for code, or `stdin`; empty for another program."""
    value: str

    @property
    def module(self) -> str:
        """The name of the module that is run; empty for none."""
        return self.value if self.kind == "m" else ""


def _python_command(command: Sequence[str]) -> _PythonCommand:
    if not Path(command[0]).name.startswith("python"):
        return _PythonCommand("", "", "")
    flags, words = "", iter(command[1:])
    for word in words:
        if word in _VALUED_OPTIONS:
            next(words, "")
        elif word == "-" or not word.startswith("-"):
            return _PythonCommand(flags, "stdin" if word == "-" else "script", word)
        elif not word.startswith("--"):
            for index, letter in enumerate(word[1:], 2):
                if letter in "mc":
                    return _PythonCommand(flags, letter, word[index:] or next(words, ""))
                if letter in "WX":
                    break  # The rest is its value.
                flags += letter
    return _PythonCommand(flags, "stdin", "")


def _name_of_script(script: str) -> str:
    path = Path(script)
    is_package = path.stem in ("__main__", "main", "") and path.absolute().parent.name
    return path.absolute().parent.name if is_package else path.stem


def _name_of_module(module: str) -> str:
    return module.removesuffix(".__main__")


def _announce(console: Console, text: str) -> None:
    """Print a line on standard error, if that can be written: the program runs in any case."""
    from ml_diagnostics_common.command.console import Console

    try:
        # Without the name of the command, which would make an error message of it, red on a terminal.
        Console(is_quiet=console.is_quiet).notify(f"ml-diagnostics: {text}")
    except (OSError, ValueError):
        # Python would exit with another code because of what is left in the buffer. The program has the descriptor.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _environment(name: str) -> dict[str, str]:
    """Return the variables with which each Python program of the job starts our start-up module."""
    from ml_diagnostics import _inference

    paths = [_inference.STARTUP_FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {_JOB_VARIABLE: name, "PYTHONPATH": os.pathsep.join(paths)}


def _run_alone(command: Sequence[str]) -> int:
    """Run a program where no parent can record its exit reason; return its exit code."""
    if hasattr(os, "posix_spawnp"):
        sys.stdout.flush()
        os.execvp(command[0], list(command))
    import subprocess

    return subprocess.run(list(command), check=False).returncode


def _name(text: str) -> str:
    try:
        return checked_job_name(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _shortened(name: str) -> str:
    return name[:LONGEST_NAME]


if __name__ == "__main__":
    sys.exit(main())
