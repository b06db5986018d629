"""Run a loopback control plane as a separate process: `python -m ml_diagnostics_testing.control_plane`."""

import argparse
import shlex
import signal

from ml_diagnostics_testing.control_plane.server import ControlPlaneServer


def main() -> None:
    """Print the variables that redirect clients, then serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m ml_diagnostics_testing.control_plane",
        description="Serve a control plane on loopback until interrupted; print shell lines that redirect clients.",
    )
    parser.add_argument(
        "--project", default="test-project", help="the project in the printed variables (default: %(default)s)"
    )
    parser.add_argument(
        "--operation-polls",
        type=int,
        default=0,
        metavar="N",
        help="how many polls it takes until an operation is done (default: %(default)s)",
    )
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server starts its threads, which inherit the mask
    with ControlPlaneServer(arguments.project) as server:
        server.operation_polls = arguments.operation_polls
        for name, value in server.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
