"""Run a loopback Compute Engine as a separate process: `python -m ml_diagnostics_testing.compute`."""

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
        description="Serve Compute Engine on loopback until interrupted; print shell lines that redirect clients.",
    )
    parser.add_argument("--project", default="test-project", help="the only project (default: %(default)s)")
    parser.add_argument("--bucket", action="append", metavar="NAME", help="an initial bucket; repeatable")
    parser.add_argument(
        "--preload",
        type=Path,
        metavar="FILE",
        help="initial VMs: one JSON object per line, with name, zone and other fields of the API",
    )
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server starts its threads, which inherit the mask
    vms = arguments.preload.read_text(encoding="utf-8").splitlines() if arguments.preload else []
    with ComputeServer(arguments.project, buckets=arguments.bucket or ["test-bucket"]) as server:
        for line in vms:
            server.add_instance(**json.loads(line))
        for name, value in server.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
