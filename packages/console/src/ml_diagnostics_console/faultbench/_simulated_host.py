"""Start Python as if on a host of its own: another host name, and a wall clock that is off, drifts or is set.

    python _simulated_host.py trainer.py ARGUMENTS
    python _simulated_host.py -m MODULE ARGUMENTS

`FAULTBENCH_HOST` is the name; empty for that of this machine. `FAULTBENCH_CLOCK` is JSON: `offset_seconds`,
`drift_ppm`, and `step_seconds`, which is added once the file `step_file` exists.

A file of its own without imports of this project: it has to run before any library reads a clock or a name. The
companions of a job are other processes, in a bare Python that no variable of the environment changes. So
`sys.executable` becomes a script that starts this file, which inserts itself into their `-c` programs.
"""

import json
import os
import runpy
import shlex
import sys
import time
from pathlib import Path


def simulate(host: str, clock: "dict[str, object]") -> None:
    """Change the name and the wall clock of this process."""
    if host:
        real = os.uname()
        os.uname = lambda: os.uname_result((real.sysname, host, real.release, real.version, real.machine))
    if not clock:
        return
    offset_ns = round(float(str(clock.get("offset_seconds", 0.0))) * 1e9)
    drift = float(str(clock.get("drift_ppm", 0.0))) / 1e6
    step_ns = round(float(str(clock.get("step_seconds", 0.0))) * 1e9)
    step_file = str(clock.get("step_file", ""))
    time_ns, since_ns = time.time_ns, int(str(clock.get("since_ns", 0)))

    def shifted_ns() -> int:
        now_ns = time_ns()
        drifted_ns = round((now_ns - since_ns) * drift) if drift else 0
        stepped_ns = step_ns if step_file and os.access(step_file, os.F_OK) else 0
        return now_ns + offset_ns + drifted_ns + stepped_ns

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9


def main() -> None:
    """Simulate the host, and run the program of the arguments; of a sidecar, insert the same before its program."""
    host, clock = os.environ.get("FAULTBENCH_HOST", ""), os.environ.get("FAULTBENCH_CLOCK", "")
    python = os.environ["FAULTBENCH_PYTHON"]
    arguments = sys.argv[1:]
    if "-c" not in arguments:
        simulate(host, json.loads(clock or "{}"))
        sys.executable = _script(python)
        _run(arguments)
        return
    position = arguments.index("-c") + 1
    prelude = (
        "import json as _json, runpy as _runpy\n"
        f"_runpy.run_path({__file__!r})['simulate']({host!r}, _json.loads({(clock or '{}')!r}))\n"
        "del _json, _runpy\n"
    )
    arguments[position] = prelude + arguments[position]
    os.execv(python, [python, *arguments])


def _run(arguments: "list[str]") -> None:
    """Run a program as Python itself would: a file, or `-m` and a module."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = ""
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _script(python: str) -> str:
    """Write the script that starts a sidecar's Python, and return its path."""
    path = Path(os.environ["FAULTBENCH_SCRIPTS"]) / f"python-{os.getpid()}"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} {shlex.quote(__file__)} "$@"\n')
    path.chmod(0o700)
    return str(path)


if __name__ == "__main__":
    main()
