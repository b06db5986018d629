"""The parts of a command line program. Only commands import this package, never a library inside of a training job."""

import sys
from importlib import import_module

__all__ = ["run_command"]


def run_command(module: str) -> int:
    """Run the `main` of a command's module, and return its exit code.

    Ctrl-C ends it without a traceback also while the module is imported. So callers import nothing else before.
    """
    try:
        code: int = import_module(module).main()
    except KeyboardInterrupt:
        if sys.stderr is not None:  # None: it is closed, and print() would use standard output.
            print("interrupted", file=sys.stderr)
        return 130  # As `errors.INTERRUPTED`, which may not be imported yet.
    return code
