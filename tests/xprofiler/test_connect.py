"""`xprofiler connect`: the real gcloud and the real ssh, to a machine on loopback with a running XProf."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_testing.faults import Hang, Status
from xprofiler.viewers.ssh_tunnel import private_folder

from ..loopback.compute import ComputeServer, vm_addresses
from ..waiting import LONG_SECONDS, bound_port, free_port, wait_until
from .viewer_cloud import LOGS, READY, ZONE, ViewerCloud

pytest.importorskip("asyncssh")
if not all(map(shutil.which, ("gcloud", "ssh", "ssh-keygen"))):
    pytest.skip("needs gcloud and ssh", allow_module_level=True)

from ..loopback.ssh import SshServer, write_ssh  # It needs asyncssh.

CONNECT = ("connect", "-z", ZONE, "-l", LOGS)


class Machine:
    """A viewer VM that accepts ssh, and its XProf."""

    def __init__(self, cloud: ViewerCloud, folder: Path) -> None:
        self.cloud = cloud
        self.xprof = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        self.xprof.RequestHandlerClass = _Page
        threading.Thread(target=self.xprof.serve_forever, daemon=True).start()
        self.ssh = SshServer(ports={6006: self.xprof.server_port})
        self.folder = folder
        self.port = free_port()

    def add(self, name: str = "xprof-1", **fields: object) -> None:
        instance = self.cloud.add_viewer(name, **fields)
        write_ssh(self.folder, {" ".join(_texts(vm_addresses(instance))): self.ssh})

    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(self.folder)}

    def close(self) -> None:
        self.ssh.close()
        self.xprof.shutdown()
        self.xprof.server_close()


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"XProf")

    def log_message(self, *_: object) -> None:
        pass


def _texts(addresses: object) -> list[str]:
    return [addresses] if isinstance(addresses, str) else [str(address) for address in addresses]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def key_folder() -> Iterator[Path]:
    """A home with gcloud's ssh key, which takes a second to create."""
    with tempfile.TemporaryDirectory(prefix="home-") as folder:
        yield Path(folder)


@pytest.fixture
def machine(compute_server: ComputeServer, tmp_path: Path, key_folder: Path) -> Iterator[Machine]:
    cloud = ViewerCloud(compute_server, tmp_path)
    cloud.home = key_folder
    (key_folder / ".ssh" / "google_compute_known_hosts").unlink(missing_ok=True)  # Key of the previous machine.
    with tempfile.TemporaryDirectory(prefix="x-") as short:  # A socket's path is short.
        machine = Machine(cloud, Path(short))
        yield machine
        cloud.run(*CONNECT, "--disconnect", **machine.environment())
        machine.close()


def _fetch(port: int) -> bytes:
    with urllib.request.urlopen(f"http://localhost:{port}/", timeout=LONG_SECONDS) as answer:
        body: bytes = answer.read()
        return body


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_connects_prints_the_address_and_disconnects(machine: Machine) -> None:
    machine.add()
    arguments = (*CONNECT, "-p", str(machine.port))
    ended = machine.cloud.run(*arguments, **machine.environment())
    assert ended.returncode == 0, ended.stderr
    url = f"http://localhost:{machine.port}"
    assert ended.stdout == f"URL: {url}\n\nxprofiler instance can be accessed at {url}.\n"
    assert ended.stderr.startswith(
        "CONNECTING TO VM...\nNote: The initial SSH connection can take a while when connecting to a VM on a new "
        "project for the first time.\n"
    )
    assert "Connected successfully!\n" in ended.stderr
    assert _fetch(machine.port) == b"XProf"
    again = machine.cloud.run(*arguments, **machine.environment())
    assert (again.returncode, again.stdout) == (0, ended.stdout)
    assert len(machine.ssh.connections) == 1
    gone = machine.cloud.run(*CONNECT, "-d", **machine.environment())
    assert (gone.returncode, gone.stdout) == (0, "")
    assert gone.stderr.startswith("DISCONNECTING FROM VM...\n")
    assert not _answers(machine.port)
    assert machine.cloud.run(*CONNECT, "-d", **machine.environment()).returncode == 3


def test_another_port_is_used_if_it_is_in_use(machine: Machine) -> None:
    machine.add()
    with bound_port(listening=True) as taken:
        ended = machine.cloud.run(*CONNECT, "-p", str(taken), **machine.environment())
    assert ended.returncode == 0, ended.stderr
    assert f"note: port {taken} of this machine is in use" in ended.stderr
    port = int(ended.stdout.split("localhost:")[1].split()[0])
    assert port != taken
    assert _fetch(port) == b"XProf"


def test_a_vm_without_an_external_address_is_reached_through_iap(machine: Machine) -> None:
    machine.add(networkInterfaces=[{}])
    ended = machine.cloud.run(*CONNECT, "-v", "-p", str(machine.port), **machine.environment())
    assert "gcloud compute ssh xprof-1 " in ended.stderr
    assert "--tunnel-through-iap" in ended.stderr


def test_it_prints_no_success_without_an_answer(machine: Machine) -> None:
    machine.add()
    with bound_port() as machine.ssh.ports[6006]:
        running = machine.cloud.start(*CONNECT, "-p", str(machine.port), **machine.environment())
        wait_until(lambda: any(request.operation == "forward" for request in machine.ssh.requests))
        running.interrupt(signal.SIGINT)
        assert running.end() == 130
    assert "Connected successfully" not in running.errors
    wait_until(lambda: not machine.ssh.connections)
    assert not _answers(machine.port)


def test_a_host_that_refuses_ssh_is_reported(machine: Machine) -> None:
    machine.add()
    machine.cloud.run(*CONNECT, "-p", str(machine.port), **machine.environment())  # Creates a key.
    machine.cloud.run(*CONNECT, "-d", **machine.environment())
    machine.ssh.faults.always(Status(403), on="login")
    ended = machine.cloud.run(*CONNECT, "-p", str(machine.port), **machine.environment())
    assert ended.returncode == 1
    assert "Permission denied" in ended.stderr
    assert f"gcloud compute ssh xprof-1 --zone={ZONE} --troubleshoot" in ended.stderr
    assert not _answers(machine.port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("mode", [(), ("--foreground",)])
def test_no_ssh_remains_if_it_is_ended_during_the_login(machine: Machine, number: int, mode: tuple[str, ...]) -> None:
    machine.add()
    machine.ssh.faults.always(Hang(), on="login")
    running = machine.cloud.start(*CONNECT, *mode, "-p", str(machine.port), **machine.environment())
    wait_until(lambda: any(request.operation == "login" for request in machine.ssh.requests))
    running.interrupt(number)
    assert running.end() == 130
    wait_until(lambda: not machine.ssh.connections)


def test_a_tunnel_at_another_port_than_requested_is_reported(machine: Machine) -> None:
    machine.add()
    machine.cloud.run(*CONNECT, "-p", str(machine.port), **machine.environment())
    again = machine.cloud.run(*CONNECT, "-p", str(free_port()), **machine.environment())
    assert f"note: it uses port {machine.port}; to use another, close it first: --disconnect\n" in again.stderr
    assert f"http://localhost:{machine.port}." in again.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_in_the_foreground_it_runs_until_it_is_ended(machine: Machine, number: int) -> None:
    machine.add()
    running = machine.cloud.start(*CONNECT, "--foreground", "-p", str(machine.port), **machine.environment())
    running.wait_for("Press Ctrl-C")
    assert _fetch(machine.port) == b"XProf"
    running.interrupt(number)
    assert running.end() == 130
    wait_until(lambda: not _answers(machine.port))


def test_other_flags_go_to_gcloud(machine: Machine) -> None:
    machine.add()
    assert machine.cloud.run(*CONNECT, "--project=other", **machine.environment()).returncode == 2
    ended = machine.cloud.run(*CONNECT, "--ssh-key-expire-after=1h", "-v", **machine.environment())
    assert " --ssh-key-expire-after=1h " in ended.stderr


@pytest.mark.parametrize(("arguments", "code"), [(("-p", "0"), 2), (("--host-port", "x"), 2), (("-m", "telnet"), 2)])
def test_unknown_arguments_are_refused(machine: Machine, arguments: tuple[str, ...], code: int) -> None:
    assert machine.cloud.run(*CONNECT, *arguments).returncode == code


def test_a_log_directory_without_a_vm_is_reported(machine: Machine) -> None:
    ended = machine.cloud.run(*CONNECT)
    assert ended.returncode == 3
    assert "No VM name found associated with the log directory." in ended.stderr


def test_a_stopped_vm_is_reported(machine: Machine) -> None:
    machine.cloud.add_viewer("xprof-1", status="TERMINATED")
    ended = machine.cloud.run(*CONNECT)
    assert ended.returncode == 3
    assert "TERMINATED" in ended.stderr


# --- The link ---


def test_the_proxy_mode_prints_the_link(machine: Machine) -> None:
    labels = {"xprofiler_version": "1-0-0", "tb_backend_id": "4f1e"}
    machine.cloud.add_viewer("xprof-1", labels=labels)
    ended = machine.cloud.run(*CONNECT, "-m", "proxy")
    assert (ended.returncode, ended.stdout) == (0, "https://4f1e-dot-us-central1.notebooks.googleusercontent.com\n")


def test_a_missing_label_of_a_killed_creator_is_added(machine: Machine) -> None:
    machine.cloud.add_viewer("xprof-1")
    without = machine.cloud.run(*CONNECT, "-m", "proxy")
    assert (without.returncode, without.stdout) == (3, "")
    machine.cloud.set_status("xprof-1", READY)
    ended = machine.cloud.run(*CONNECT, "-m", "proxy")
    assert ended.stdout == "https://4f1e-dot-us-central1.notebooks.googleusercontent.com\n"
    assert machine.cloud.compute.instance("xprof-1")["labels"]["tb_backend_id"] == "4f1e"


# --- The folder of control sockets ---


def test_the_folder_of_sockets_is_this_users_alone(tmp_path: Path) -> None:
    folder = private_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(CommandError, match="not a folder of yours alone"):
        private_folder({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_foreign_link_is_not_used_as_a_folder_of_sockets(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"xprofiler-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CommandError, match="not a folder of yours alone"):
        private_folder({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_command_that_may_prompt_is_ended_with_its_ssh(machine: Machine) -> None:
    machine.add()
    ours, theirs = os.openpty()
    argv = [sys.executable, "-m", "xprofiler", *CONNECT, "--foreground", "-p", str(machine.port)]
    environment = machine.cloud.environment(**machine.environment())
    with subprocess.Popen(argv, stdin=theirs, stderr=subprocess.DEVNULL, stdout=theirs, env=environment) as process:
        received = b""
        while b"can be accessed" not in received:
            received += os.read(ours, 4096)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
    wait_until(lambda: not machine.ssh.connections)
    os.close(ours)
    os.close(theirs)
