"""`xprofiler serve -l PATH`: XProf and a summary page on this machine, for a local or gs:// log directory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from xprofiler.arguments import whole_number
from xprofiler.exceptions import DONE, UsageError

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["ServeCommand"]

_PORT = 6006


class ServeCommand:
    """Serves a log directory on loopback until Ctrl-C."""

    name = "serve"
    summary = "look at profiles on this machine: XProf, and a summary page that needs no internet"
    passes_on = False

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""
        parser.add_argument(
            "-l", "--log-directory", metavar="PATH", required=True, help="a folder of this machine, or gs://bucket/path"
        )
        parser.add_argument(
            "-p",
            "--port",
            type=whole_number(0, 65535),
            default=_PORT,
            help="of 127.0.0.1; the next free one where it is taken, any for 0 (default: %(default)s)",
        )
        parser.add_argument("--no-browser", action="store_true", help="open no browser")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Serve; Ctrl-C, and what counts as that, is the way to end it, so it ends it well."""
        import contextlib
        from pathlib import Path

        from xprofiler.log_directory import LogDirectory
        from xprofiler.serve.server import Server

        place = LogDirectory.parse(options.log_directory, may_be_local=True).path
        if Path(place).is_file():
            raise UsageError(f"{place} is a file: give the folder that has plugins/profile, or see `xprofiler summary`")
        with Server(place, options.port, console) as server:
            _tell_what_is_there(place, console)
            url = server.wait_until_ready()
            if options.port not in (0, server.port):
                console.notify(f"Port {options.port} is taken; using {server.port}.")
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


def _tell_what_is_there(place: str, console: Console) -> None:
    from xprofiler.summary.profiles import find_profiles
    from xprofiler.waiting import told_if_slow

    with told_if_slow(console, f"Waiting for an answer about {place} ..."):
        profiles = find_profiles(place)
    if profiles:
        console.notify(f"Found {len(profiles)} session(s) in {place}, the newest {profiles[0].name}.")
    else:
        console.notify(f"There is no profile in {place} yet; reload the page when there is one.")


def _open_browser(url: str, console: Console) -> None:
    import webbrowser

    from xprofiler.serve.server import has_display

    if has_display():
        console.detail(f"Opening {url} in a browser")
        webbrowser.open(url)
