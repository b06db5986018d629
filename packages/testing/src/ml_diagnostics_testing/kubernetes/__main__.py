"""Run a loopback Kubernetes cluster as a separate process: `python -m ml_diagnostics_testing.kubernetes`."""

import argparse
import shlex
import signal

from ml_diagnostics_testing.kubernetes.server import KubernetesServer


def main() -> None:
    """Print the variables that point kubectl to the cluster, then serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m ml_diagnostics_testing.kubernetes",
        description="Serve a cluster on loopback until interrupted; print shell lines that point kubectl to it.",
    )
    parser.add_argument(
        "pods",
        nargs="*",
        metavar="POD[:PORT=LOCAL]",
        help="a running pod; connections to its PORT go to the port LOCAL of this machine",
    )
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server starts its threads, which inherit the mask
    with KubernetesServer() as server:
        for pod in arguments.pods:
            name, _, ports = pod.partition(":")
            port, _, local = ports.partition("=")
            server.add_pod(name, ports={int(port): int(local)} if local else None)
        for name, value in server.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
