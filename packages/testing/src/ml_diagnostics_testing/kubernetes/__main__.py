"""Serve a Kubernetes cluster in a process of its own: `python -m ml_diagnostics_testing.kubernetes`."""

import argparse
import shlex
import signal

from ml_diagnostics_testing.kubernetes.server import KubernetesServer


def main() -> None:
    """Print the variables that lead kubectl here, then serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m ml_diagnostics_testing.kubernetes",
        description="Serve a cluster on loopback until interrupted; print shell lines that lead kubectl to it.",
    )
    parser.add_argument(
        "pods",
        nargs="*",
        metavar="POD[:PORT=OURS]",
        help="a pod that runs; PORT is its own, and OURS the one of this machine that stands for it",
    )
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server's threads begin: they inherit it
    with KubernetesServer() as server:
        for pod in arguments.pods:
            name, _, ports = pod.partition(":")
            port, _, ours = ports.partition("=")
            server.add_pod(name, ports={int(port): int(ours)} if ours else None)
        for name, value in server.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
