"""The entry point of the command `ml-diagnostics`, also as `python -m ml_diagnostics`."""

import sys

from ml_diagnostics_common.command import run_command

__all__ = ["main"]


def main() -> int:
    """Run the command with the arguments of this process, and return its exit code."""
    return run_command("ml_diagnostics.cli")


if __name__ == "__main__":
    sys.exit(main())
