"""Run a loopback Cloud Logging as a separate process: `python -m ml_diagnostics_testing.cloud_logging`."""

import argparse
import json
import shlex
import signal
from pathlib import Path

from ml_diagnostics_testing.cloud_logging._server import CloudLoggingServer


def main() -> None:
    """Print the variables that redirect clients, then serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m ml_diagnostics_testing.cloud_logging",
        description="Serve Cloud Logging on loopback until interrupted; print shell lines that redirect clients to it.",
    )
    parser.add_argument(
        "--project", default="test-project", help="the project in the printed variables (default: %(default)s)"
    )
    parser.add_argument("--preload", type=Path, metavar="FILE", help="entries to store first: one JSON object per line")
    parser.add_argument(
        "--log-id", default="preloaded", help="the log of entries without logName (default: %(default)s)"
    )
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server starts its threads, which inherit the mask
    with CloudLoggingServer(arguments.project) as server:
        if arguments.preload is not None:
            with arguments.preload.open(encoding="utf-8") as lines:
                server.preload(map(json.loads, lines), log_id=arguments.log_id)
        for name, value in server.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
