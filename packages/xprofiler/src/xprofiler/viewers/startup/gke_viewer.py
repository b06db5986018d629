"""Host XProf in a pod. Runs as `python -c` of this file, in a container with xprof.

Arguments: the log directory and the port. It listens on all of the pod's addresses, so that the service can connect,
but without xprof's gRPC server, and without the capture button.
"""

import sys

from xprof import server


def main(logs: str, port: str) -> None:
    """Host XProf until the pod ends."""
    context = server.TBContext(logs, server.DataProvider(logs), server.TBContext.Flags(False))
    context.hide_capture_profile_button = True
    server.run_server(server.ProfilePluginLoader().load(context), "0.0.0.0", int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
