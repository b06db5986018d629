"""What hosts XProf in a pod: run by itself, as `python -c` of this text, where xprof is installed.

Arguments: the log directory and the port. The pod's service reaches it, so it listens on the pod's address; but without
xprof's gRPC server, and without its button to capture.
"""

import sys

from xprof import server


def main(logs: str, port: str) -> None:
    """Hosts XProf until the pod ends."""
    context = server.TBContext(logs, server.DataProvider(logs), server.TBContext.Flags(False))
    context.hide_capture_profile_button = True
    server.run_server(server.ProfilePluginLoader().load(context), "0.0.0.0", int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
