"""The entry point of the command `mldiagnostics`, also as `python -m google_cloud_mldiagnostics`."""

import sys

from ml_diagnostics_common.command import run_command

__all__ = ["main"]


def main() -> int:
    """Run the command with the arguments of this process, and return its exit code."""
    return run_command("google_cloud_mldiagnostics.cli")


if __name__ == "__main__":
    sys.exit(main())
