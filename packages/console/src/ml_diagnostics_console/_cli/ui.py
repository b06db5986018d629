"""`mldiagnostics ui`: the page of runs, on this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import DONE, CommandError, UsageError
from ml_diagnostics_common.command.options import whole_number

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.reading import RunSource
    from ml_diagnostics_common.command.console import Console

__all__ = ["UiCommand", "require_web", "source_of"]

_NEEDED: Final = ("starlette", "uvicorn", "h11", "numpy", "rcssmin", "rjsmin")


class UiCommand:
    """Serves the page until Ctrl-C."""

    name = "ui"
    summary = "open the page of runs: what is wrong, where the time went, curves, stacks, profiles, logs"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "run",
            nargs="?",
            default="",
            metavar="RUN",
            help="open this run: its id, the start of it, or 'last' (default: the list of runs)",
        )
        parser.add_argument(
            "--port", type=whole_number(0, 65535), default=0, help="the port; any free one for 0 (default: 0)"
        )
        parser.add_argument("--no-browser", action="store_true", help="open no browser")
        parser.add_argument(
            "--read-from", metavar="PROJECT", help="read this Google Cloud project, too (default: this machine alone)"
        )
        parser.add_argument("--region", metavar="REGION", help="the region of its runs (default: us-central1)")
        parser.add_argument(
            "--mirror",
            metavar="URL",
            help="the mirror of a fleet, for the page Fleet: gs://bucket/prefix, or a folder (default: "
            "ML_DIAGNOSTICS_MIRROR)",
        )
        parser.add_argument(
            "--host",
            metavar="ADDRESS",
            default="",
            help="listen on this address of this machine; the URL then has a token (default: 127.0.0.1 and ::1)",
        )
        parser.add_argument(
            "--token", action="store_true", help="ask for a token on 127.0.0.1, too, where others use this machine"
        )

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Serve until Ctrl-C or a signal that counts as that, which is the normal end: exit code 0."""
        import contextlib
        from urllib.parse import quote

        require_web("mldiagnostics ui")
        if options.region and not options.read_from:
            raise UsageError("--region needs --read-from")
        from google_cloud_mldiagnostics.control_plane import resource_id
        from ml_diagnostics_common.environment import configured_mirror

        from ml_diagnostics_console._web.fleet_reports import mirror_path
        from ml_diagnostics_console._web.serving import listen, serve

        mirror = mirror_path(configured_mirror() if options.mirror is None else options.mirror)
        source = source_of(options.read_from, options.region, console)
        path = f"/runs/{quote(resource_id(source.find(options.run)), safe='')}" if options.run else "/"
        listener = listen(options.host, options.port, has_token=options.token)
        url = listener.url(path)
        try:
            console.data(url)
            with contextlib.suppress(OSError):  # The terminal may be closed.
                console.notify("Press Ctrl-C to end it.")
            opens = not options.no_browser and not options.host
            serve(
                source,
                listener,
                console.warn,
                on_ready=lambda: _open_browser(url) if opens else None,
                mirror=mirror,
            )
        except KeyboardInterrupt:
            pass
        finally:
            listener.close()
        return DONE


def require_web(command: str) -> None:
    """Check that the parts of the page are installed, without importing them.

    Raises:
        CommandError: One of them is not.
    """
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        needed = f"`{command}` needs {', '.join(missing)}"
        raise CommandError(f"{needed}; install it with: pip install 'ml-diagnostics-console[web]'")


def source_of(project: str | None, region: str | None, console: Console) -> RunSource:
    """Return the runs of this machine, or of a project.

    Raises:
        ConfigurationError: The value of ML_DIAGNOSTICS_BACKEND is not valid.
        CredentialsError: A project is given, and there are no credentials.
    """
    from google_cloud_mldiagnostics.reading import CloudSource, LocalSource
    from ml_diagnostics_common.environment import configured_backend

    configured_backend()  # Reject an invalid value also if only this machine is read, as the other commands do.
    if project:
        return CloudSource(project, region, console.warn, console.notify)
    return LocalSource(console.warn)


def _open_browser(url: str) -> None:
    """Open a browser where one can be seen; from a thread, since some browsers keep the program waiting."""
    import os
    import sys
    import threading
    import webbrowser

    can_be_seen = sys.platform in ("darwin", "win32") or any(
        map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
    )
    if can_be_seen:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
