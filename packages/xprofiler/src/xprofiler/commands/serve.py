"""`xprofiler serve -l PATH`: serve XProf and a summary page on this machine, for a local or gs:// log directory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE, UsageError
from ml_diagnostics_common.command.options import whole_number

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["ServeCommand"]

_PORT = 6006


class ServeCommand:
    """Serves a log directory on loopback until Ctrl-C."""

    name = "serve"
    summary = "view profiles on this machine: XProf, and a summary page that needs no internet"
    passes_on = False

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "-l",
            "--log-directory",
            metavar="PATH",
            required=True,
            help="a folder of this machine, or gs://bucket/path; or a run of this machine, or 'last'",
        )
        parser.add_argument(
            "-p",
            "--port",
            type=whole_number(0, 65535),
            default=_PORT,
            help="the port of 127.0.0.1; the next free one if it is in use, any for 0 (default: %(default)s)",
        )
        parser.add_argument("--no-browser", action="store_true", help="open no browser")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Serve until Ctrl-C or a signal that counts as that, which is the normal end: exit code 0."""
        import contextlib
        from pathlib import Path

        from xprofiler.log_directory import LogDirectory
        from xprofiler.serve.server import Server
        from xprofiler.summary.profiles import path_of_run

        path = LogDirectory.parse(path_of_run(options.log_directory), may_be_local=True).path
        if Path(path).is_file():
            raise UsageError(f"{path} is a file: use the folder that has plugins/profile, or see `xprofiler summary`")
        with Server(path, options.port, console) as server:
            _report_profiles(path, console)
            url = server.wait_until_ready()
            if options.port not in (0, server.port):
                console.notify(f"Port {options.port} is in use; using {server.port}.")
            try:
                console.data(url)
                console.notify("Press Ctrl-C to end it.")
                if not options.no_browser:
                    _open_browser(url, console)
                server.wait()
            except KeyboardInterrupt:
                with contextlib.suppress(OSError):  # The terminal may be closed.
                    console.notify()
        return DONE


def _report_profiles(path: str, console: Console) -> None:
    from xprofiler.cli import notify_if_slow
    from xprofiler.summary.profiles import find_profiles

    with notify_if_slow(console, f"Waiting for an answer about {path} ..."):
        profiles = find_profiles(path)
    if profiles:
        console.notify(f"Found {len(profiles)} session(s) in {path}, the newest {profiles[0].name}.")
    else:
        console.notify(f"{path} has no profile yet; reload the page when there is one.")


def _open_browser(url: str, console: Console) -> None:
    import webbrowser

    from xprofiler.serve.server import has_display

    if has_display():
        console.detail(f"Opening {url} in a browser")
        webbrowser.open(url)
