"""`xprofiler connect`: open a tunnel to a viewer VM, or print its link through the proxy."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE, CommandError, NotFoundError, UsageError
from ml_diagnostics_common.command.options import port

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from xprofiler.gcloud.api import GoogleApi
    from xprofiler.gcloud.command_lines import SshTarget
    from xprofiler.gcloud.processes import Programs
    from xprofiler.log_directory import LogDirectory
    from xprofiler.viewers.ssh_tunnel import SshTunnel
    from xprofiler.viewers.viewer import Viewer

__all__ = ["ConnectCommand"]

_XPROF_PORT = 6006
_ANSWER_SECONDS = 20.0


class ConnectCommand:
    """Connects to a viewer."""

    name = "connect"
    summary = "open a tunnel to a VM that hosts XProf"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add = parser.add_argument
        add(
            "-l",
            "--log-directory",
            metavar="GS_PATH",
            required=True,
            help="the log directory of the VM: gs://bucket/path",
        )
        add("-z", "--zone", metavar="ZONE_NAME", required=True, help="the zone of the VM")
        add(
            "-m",
            "--mode",
            choices=("ssh", "proxy"),
            default="ssh",
            help="ssh opens a tunnel; proxy prints the link, for small profiles (default: %(default)s)",
        )
        add(
            "-p",
            "--port",
            metavar="LOCAL_PORT",
            type=port,
            default=_XPROF_PORT,
            help="the local port; if it is in use, another one (default: %(default)s)",
        )
        add(
            "--host-port",
            metavar="HOST_PORT",
            type=port,
            default=_XPROF_PORT,
            help="the port of XProf on the VM (default: %(default)s)",
        )
        add("-d", "--disconnect", action="store_true", help="close the tunnel")
        add("-u", "--use-ssh-proxy", action="store_true", help="go through corp-ssh-helper")
        add(
            "--foreground",
            action="store_true",
            default=os.name == "nt",
            help="keep the tunnel open until Ctrl-C, instead of in the background",
        )

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Connect, and print the URL."""
        from xprofiler.gcloud.processes import Programs
        from xprofiler.log_directory import LogDirectory

        log_directory = LogDirectory.parse(options.log_directory)
        _refuse_flags(options)
        with Programs(console) as programs:
            if options.disconnect:
                return _disconnect(options, log_directory, console, programs)
            return _connect(options, log_directory, console, programs)


def _refuse_flags(options: argparse.Namespace) -> None:
    """Reject flags for gcloud if it is not used.

    Raises:
        UsageError: Such flags are given.
    """
    if options.extra and (options.mode == "proxy" or options.disconnect):
        raise UsageError(f"gcloud is not used for this: remove {' '.join(options.extra)}")


def _connect(options: argparse.Namespace, log_directory: LogDirectory, console: Console, programs: Programs) -> int:
    from xprofiler.gcloud.api import GoogleApi
    from xprofiler.gcloud.command_lines import SshTarget
    from xprofiler.gcloud.settings import GcloudSettings

    api = GoogleApi(GcloudSettings.load(), console)
    viewer = _find(options.zone, log_directory, api, console)
    if options.mode == "proxy":
        return _print_link(viewer, api, console)
    console.notify(
        "CONNECTING TO VM...\n"
        "Note: The initial SSH connection can take a while when connecting to a VM on a new project for the first time."
    )
    target = SshTarget(
        viewer.name,
        viewer.zone,
        project=api.project,
        through_iap=not viewer.has_external_address,
        proxy_through_ssh_helper=options.use_ssh_proxy,
    )
    if options.foreground:
        return _hold_tunnel(target, options, console, programs)
    tunnel = _open_tunnel(target, viewer, options, console, programs)
    _print_url(tunnel.url, console)
    where = shlex.quote(viewer.log_directory)
    console.notify(f"The tunnel stays open. To close it: xprofiler connect -z {viewer.zone} -l {where} --disconnect")
    return DONE


def _find(zone: str, log_directory: LogDirectory, api: GoogleApi, console: Console) -> Viewer:
    from xprofiler.viewers.on_compute import ViewersOnCompute
    from xprofiler.viewers.viewer import Sought

    found = ViewersOnCompute(api).find(Sought([zone], [log_directory.path]))
    running = [viewer for viewer in found if viewer.status == "RUNNING"]
    if not found:
        raise NotFoundError(
            "No VM name found associated with the log directory. "
            f"Search with 'xprofiler list -z {zone}', or create one with 'xprofiler create'"
        )
    if not running:
        raise NotFoundError(f"the VM {found[0].name} is not running ({found[0].status}); start it, or create another")
    if len(running) > 1:
        console.notify(f"note: {len(running)} VMs show {log_directory}; using {running[0].name}")
    return running[0]


def _print_link(viewer: Viewer, api: GoogleApi, console: Console) -> int:
    from xprofiler.viewers.instances import Instances
    from xprofiler.viewers.status import label_with_status, read_status
    from xprofiler.viewers.viewer import BACKEND_LABEL, viewer_url

    url = viewer.url
    if url is None:
        status = read_status(viewer, api.storage)
        url = viewer_url(status.labels.get(BACKEND_LABEL), viewer.zone)
        if url is None:
            raise NotFoundError(f"{viewer.name} is not registered with the proxy (yet); try --mode ssh")
        label_with_status(viewer, status, Instances(api))
    console.data(url)
    return DONE


def _open_tunnel(
    target: SshTarget, viewer: Viewer, options: argparse.Namespace, console: Console, programs: Programs
) -> SshTunnel:
    from xprofiler.gcloud.command_lines import ssh
    from xprofiler.viewers.ssh_tunnel import SshTunnel, private_folder, wait_until_answered

    folder = private_folder()
    for tunnel in SshTunnel.all_noted(folder):
        if (tunnel.vm_name, tunnel.zone) == (viewer.name, viewer.zone) and tunnel.is_open(folder, programs):
            console.notify(f"A tunnel to {viewer.name} is already open.")
            if tunnel.port != options.port:
                console.notify(f"note: it uses port {tunnel.port}; to use another, close it first: --disconnect")
            wait_until_answered(tunnel.url, _ANSWER_SECONDS)
            return tunnel
    tunnel = SshTunnel(viewer.name, viewer.zone, viewer.log_directory, _port(options.port, console))
    tunnel.close(folder, programs)  # Removes files of a broken tunnel.
    try:
        argv = ssh(target, options=tunnel.options(folder, options.host_port), extra=options.extra)
        code = programs.run_at_terminal(argv)
        if code:
            raise CommandError(
                f"gcloud could not open a tunnel to {viewer.name} (exit code {code}); for advice: "
                f"'gcloud compute ssh {viewer.name} --zone={viewer.zone} --troubleshoot'"
            )
        tunnel.note(folder)
        wait_until_answered(tunnel.url, _ANSWER_SECONDS, lambda: tunnel.is_open(folder, programs))
    except BaseException:
        tunnel.close(folder, programs)
        raise
    return tunnel


def _hold_tunnel(target: SshTarget, options: argparse.Namespace, console: Console, programs: Programs) -> int:
    from xprofiler.gcloud.command_lines import ssh
    from xprofiler.viewers.ssh_tunnel import forwarding, wait_until_answered

    port = _port(options.port, console)
    argv = ssh(target, options=forwarding(port, options.host_port), extra=options.extra)
    process = programs.start(argv, stdin=None, stdout=2, stderr=2, may_ask=True)
    wait_until_answered(f"http://localhost:{port}", 3 * _ANSWER_SECONDS, lambda: process.poll() is None)
    _print_url(f"http://localhost:{port}", console)
    console.notify("Press Ctrl-C to close it.")
    process.wait()
    raise CommandError(f"the tunnel to {target.name} broke; connect again")


def _port(wanted: int, console: Console) -> int:
    from xprofiler.viewers.ssh_tunnel import free_port

    port = free_port(wanted)
    if port != wanted:
        console.notify(f"note: port {wanted} of this machine is in use; using {port} instead")
    return port


def _print_url(url: str, console: Console) -> None:
    console.notify("Connected successfully!")
    console.data(f"URL: {url}\n\nxprofiler instance can be accessed at {url}.")


def _disconnect(options: argparse.Namespace, log_directory: LogDirectory, console: Console, programs: Programs) -> int:
    from xprofiler.viewers.ssh_tunnel import SshTunnel, private_folder

    console.notify("DISCONNECTING FROM VM...")
    folder = private_folder()
    noted = [
        tunnel
        for tunnel in SshTunnel.all_noted(folder)
        if (tunnel.zone, tunnel.log_directory) == (options.zone, log_directory.path)
    ]
    closed = [tunnel for tunnel in noted if tunnel.close(folder, programs)]
    if not closed:
        raise NotFoundError(f"no tunnel is open to a VM in zone {options.zone} that shows {log_directory}")
    for tunnel in closed:
        console.notify(f"Disconnected from {tunnel.vm_name}: {tunnel.url} is closed.")
    return DONE
