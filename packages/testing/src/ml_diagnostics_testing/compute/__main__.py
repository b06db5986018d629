"""Serve a Compute in a process of its own: `python -m ml_diagnostics_testing.compute`."""

import argparse
import json
import shlex
import signal
from pathlib import Path

from ml_diagnostics_testing.compute.server import ComputeServer


def main() -> None:
    """Print the variables that redirect clients, then serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m ml_diagnostics_testing.compute",
        description="Serve a Compute on loopback until interrupted; print shell lines that redirect clients.",
    )
    parser.add_argument("--project", default="test-project", help="the project there is (default: %(default)s)")
    parser.add_argument("--bucket", action="append", metavar="NAME", help="a bucket there is; may be given again")
    parser.add_argument(
        "--preload",
        type=Path,
        metavar="FILE",
        help="VMs that there are: JSON, one a line, each with its name, its zone, and more of the API's fields",
    )
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server's threads begin: they inherit it
    vms = arguments.preload.read_text(encoding="utf-8").splitlines() if arguments.preload else []
    with ComputeServer(arguments.project, buckets=arguments.bucket or ["test-bucket"]) as server:
        for line in vms:
            server.add_instance(**json.loads(line))
        for name, value in server.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
