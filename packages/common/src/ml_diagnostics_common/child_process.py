"""A process of ours beside the job: the Python that it runs, what that is given, and how each sees the other die."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.process_hooks import PROCESS_START_LOCK

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "child_environment",
    "exists",
    "has_ended",
    "module_folders",
    "process_descriptor",
    "process_started_ns",
    "program_of",
    "python_command",
    "start_detached",
    "start_mark",
]

_PROC = Path("/proc")
_ENDED_STATES = (b"Z", b"X")


def python_command(*, is_bare: bool = False) -> list[str]:
    """Returns the command of a Python that looks for modules as this one was told to.

    Args:
        is_bare: Without the `site` module, which runs what others put into .pth files, and without the variables of the
            environment that change Python: a start in half the time and memory. It finds what `module_folders` tells.

    Raises:
        FileNotFoundError: This process does not know the Python that it runs in.
    """
    if not sys.executable:
        raise FileNotFoundError("this Python does not know its own executable (sys.executable is empty)")
    # Warnings are for those who develop what the child imports, and must not be errors there.
    command = [sys.executable, "-W", "ignore"]
    if is_bare:
        # Without PYTHONHOME it might not even find its standard library.
        return [*command, *(["-s", "-S"] if os.environ.get("PYTHONHOME") else ["-I", "-S"])]
    flags = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site, "-S": sys.flags.no_site}
    return [*command, *(flag for flag, is_set in flags.items() if is_set)]


def program_of(module: str) -> str:
    """Returns a program for `-c` that runs `main` of a module; its arguments are `module_folders`.

    The folder that a job runs in may hold a logging.py or a json.py of its own. So the job's path comes after the
    child's.
    """
    return (
        "import sys\n"
        "sys.path[:] = [folder for folder in sys.path if folder]\n"
        "sys.path += [folder for folder in sys.argv[1:] if folder not in sys.path]\n"
        f"from {module} import main\n"
        "main()\n"
    )


def start_detached(
    module: str,
    inherited: Iterable[int],
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    variables: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start `main` of a module in a process that is not a child of this one, which may wait for all its children.

    It is in a session of its own: out of reach of Ctrl-C, and of what ends this process's group.

    Args:
        module: Its name; it is imported in a bare Python (see `python_command`).
        inherited: Descriptors that it has under the same numbers.
        stdin: A descriptor; None is /dev/null.
        stdout: The same, also for its stderr.
        variables: Added to `child_environment`.

    Returns:
        The process that starts it and ends at once; the caller waits for that.

    Raises:
        OSError: It cannot be started.
    """
    if getattr(sys, "frozen", False):
        raise FileNotFoundError("this program is frozen (sys.frozen): there is no Python to run another process with")
    program = "import os\nif os.fork(): os._exit(0)\n" + program_of(module)
    with PROCESS_START_LOCK.held():
        import subprocess  # Not by every program that imports this module.

        return subprocess.Popen(
            [*python_command(is_bare=True), "-c", program, *module_folders()],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=subprocess.STDOUT,
            pass_fds=list(inherited),
            env=child_environment(**variables),
            start_new_session=True,
        )


def child_environment(**additional: str) -> dict[str, str]:
    """Returns this process's environment for a child that shall use the same diagnostics folder.

    Args:
        additional: Further variables.
    """
    names = list(os.environ)  # At once: threads may change it meanwhile.
    values = ((name, os.environ.get(name)) for name in names)
    return {
        **{name: value for name, value in values if value is not None},
        # Whatever the child's working directory, it reads this process's journal.
        "ML_DIAGNOSTICS_DIR": str(diagnostics_directory()),
        **additional,
    }


def module_folders() -> list[str]:
    """Returns where this process finds its modules; the empty entry is the folder that it runs in."""
    try:
        here = str(Path.cwd())
    except OSError:  # It was deleted.
        here = ""
    folders = [folder or here for folder in sys.path if isinstance(folder, str)]
    return [folder for folder in folders if folder and _can_be_an_argument(folder)]


def _can_be_an_argument(folder: str) -> bool:
    try:
        return b"\0" not in os.fsencode(folder)
    except UnicodeEncodeError:
        return False


def process_descriptor(pid: int) -> int | None:
    """Returns a descriptor that polls as readable once the process is dead; None where the system has none."""
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        return None


def exists(pid: int) -> bool:
    """Whether there is a process of that number, if only one that waits to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # It is somebody else's.
        pass
    return True


def process_started_ns(pid: int) -> int | None:
    """Return when a process started, by the wall clock: distinguishes a process from a later one with the same pid.

    Whole seconds; 0 where the system does not know it; None if there is no such process, or it waits to be reaped.
    """
    try:
        ticks = _start_ticks(pid)
        if ticks is None:
            return None
        lines = (_PROC / "stat").read_bytes().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith(b"btime"))
        return (boot + ticks // os.sysconf("SC_CLK_TCK")) * 1_000_000_000
    except (FileNotFoundError, ProcessLookupError):
        return None if (_PROC / "self").exists() or not exists(pid) else 0
    except (OSError, ValueError, IndexError, StopIteration):
        return 0 if exists(pid) else None


def start_mark(pid: int) -> str:
    """Return when a process started, in the kernel's ticks since boot.

    Empty where the system does not know it, or the process has ended. It costs one small file.
    """
    try:
        ticks = _start_ticks(pid)
    except (OSError, IndexError, ValueError):
        return ""
    return "" if ticks is None else str(ticks)


def pid_namespace() -> str:
    """Return an id of the process numbers that this process sees: those of one boot, in one container.

    Without dashes; "0" where the system does not know it.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        return f"{boot}{(_PROC / 'self/ns/pid').stat().st_ino:x}"
    except OSError:
        return "0"


def _start_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat (proc(5)): the kernel's ticks from its boot to the process's start.

    None for a process that has ended: a parent that is slow to ask for its status keeps it listed.

    Raises:
        OSError: There is no such process, or no /proc.
        IndexError, ValueError: The file has another form.
    """
    # The name, in brackets before the other fields, may have anything in it.
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return None if fields[0] in _ENDED_STATES else int(fields[19])


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits to be reaped, as far as the system tells it."""
    descriptor = process_descriptor(pid)
    if descriptor is None:
        return not exists(pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(0))
    finally:
        os.close(descriptor)
