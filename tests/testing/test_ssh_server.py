"""The loopback ssh server before the real ssh, and before gcloud's."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.faults import Hang, Reset, Status

from ..loopback.compute import ComputeServer, vm_addresses
from ..waiting import LONG_SECONDS, bound_port, free_port, wait_until

pytest.importorskip("asyncssh")
from ..loopback.ssh import SshServer, write_ssh

pytestmark = pytest.mark.skipif(
    not shutil.which("ssh") or not shutil.which("ssh-keygen"), reason="ssh is not installed"
)
needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

ADDRESS = "203.0.113.9"
QUIET = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "machine").mkdir()
    with SshServer(folder=tmp_path / "machine", environment={"HOST_INDEX": "3"}) as server:
        yield server


@pytest.fixture
def ssh(machine: Any, tmp_path: Path) -> Any:
    """The beginning of a command that leads to the machine."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    program = write_ssh(tmp_path, {ADDRESS: machine})
    return [str(program), "-i", str(key), "-o", "BatchMode=yes", *QUIET]


def run(command: Any, **options: Any) -> Any:
    return subprocess.run(command, capture_output=True, timeout=100, check=False, **options)


def connect(port: Any) -> Any:
    """Connect as soon as the port is open."""

    def connection() -> Any:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=LONG_SECONDS)

    return wait_until(connection)


@pytest.fixture
def echo() -> Iterator[Any]:
    """A port that echoes the request, once for each connection."""

    def serve(listener: Any) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"received " + connection.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


# --- Commands --------------------------------------------------------------------------------------------


def test_a_command_runs_in_the_folder_of_the_machine(ssh: Any, machine: Any, tmp_path: Path) -> None:
    done = run([*ssh, f"me@{ADDRESS}", "pwd; echo $HOST_INDEX; echo no >&2; exit 7"])
    assert done.stdout.decode().split() == [str(tmp_path / "machine"), "3"]
    assert done.stderr == b"no\n"
    assert done.returncode == 7
    (record,) = machine.requests_for("exec")
    assert record.status == 7
    assert machine.requests_for("login")[0].path == "me"


def test_bytes_are_forwarded_unchanged(ssh: Any) -> None:
    data = bytes(range(256)) * 4096
    done = run([*ssh, ADDRESS, "cat"], input=data)
    assert done.stdout == data
    assert done.returncode == 0


def test_a_command_that_dies_of_a_signal_is_reported(ssh: Any) -> None:
    assert run([*ssh, ADDRESS, "kill -KILL $$"]).returncode == 255


def test_commands_run_side_by_side(ssh: Any) -> None:
    # Each ends only when the other has started.
    commands = ["touch a; until [ -e b ]; do sleep 0.01; done", "touch b; until [ -e a ]; do sleep 0.01; done"]
    processes = [subprocess.Popen([*ssh, ADDRESS, command]) for command in commands]
    assert [process.wait(30) for process in processes] == [0, 0]


def test_a_command_outlives_its_connection_but_not_the_machine(ssh: Any, machine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "machine"
    process = subprocess.Popen(
        [*ssh, ADDRESS, "echo $$ > pid; until [ -e on ]; do sleep 0.01; done; touch went; sleep 99"]
    )
    wait_until(lambda: (folder / "pid").read_text().strip())
    process.kill()
    process.wait()
    (folder / "on").touch()
    wait_until((folder / "went").exists)
    machine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


# --- Ports -----------------------------------------------------------------------------------------------


def test_a_forwarded_port_leads_where_the_machine_has_it(ssh: Any, machine: Any, echo: Any) -> None:
    machine.ports[9012] = echo
    local = free_port()
    with subprocess.Popen([*ssh, "-N", "-L", f"{local}:localhost:9012", ADDRESS]) as process:
        for word in (b"one", b"two"):
            with connect(local) as connection:
                connection.sendall(word)
                assert connection.recv(100) == b"received " + word
        process.kill()  # SIGTERM may be missed: ssh 9.2 checks for it, then polls
    assert [record.path for record in machine.requests_for("forward")] == ["localhost:9012"] * 2


def test_a_closed_port_is_refused(ssh: Any, machine: Any) -> None:
    with bound_port() as silent:
        machine.ports[9012] = silent
        local = free_port()
        with subprocess.Popen([*ssh, "-N", "-L", f"{local}:localhost:9012", ADDRESS]) as process:
            with connect(local) as connection:
                assert connection.recv(1) == b""
            process.kill()  # SIGTERM may be missed: ssh 9.2 checks for it, then polls


def test_a_master_connection_is_used_again_and_ended(ssh: Any, machine: Any, echo: Any, tmp_path: Path) -> None:
    machine.ports[6006] = echo
    control, local = str(tmp_path / "control"), free_port()
    tunnel = run([*ssh, "-f", "-N", "-M", "-S", control, "-L", f"{local}:localhost:6006", ADDRESS])
    assert tunnel.returncode == 0, tunnel.stderr
    with connect(local) as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"received hello"
    assert run([*ssh, "-S", control, ADDRESS, "echo again"]).stdout == b"again\n"
    assert len(machine.requests_for("login")) == 1
    assert run([*ssh, "-S", control, "-O", "exit", ADDRESS]).returncode == 0
    wait_until(lambda: not machine.connections)


# --- Faults ----------------------------------------------------------------------------------------------


def test_a_machine_may_refuse_a_login(ssh: Any, machine: Any) -> None:
    machine.faults.script([Status(403)], on="login")
    done = run([*ssh, ADDRESS, "true"])
    assert done.returncode == 255
    assert b"Permission denied" in done.stderr
    assert run([*ssh, ADDRESS, "true"]).returncode == 0


def test_a_machine_that_is_gone_refuses_connections(ssh: Any, machine: Any) -> None:
    machine.close()
    done = run([*ssh, ADDRESS, "true"])
    assert done.returncode == 255
    assert b"Connection refused" in done.stderr


def test_no_other_address_is_asked(ssh: Any) -> None:
    done = run([*ssh, "198.51.100.77", "true"])
    assert done.returncode == 255
    assert b"Connection refused" in done.stderr


def test_a_connection_may_break_instead_of_a_command(ssh: Any, machine: Any, tmp_path: Path) -> None:
    machine.faults.script([Reset()], on="exec")
    assert run([*ssh, ADDRESS, "touch ran"]).returncode == 255
    assert not (tmp_path / "machine" / "ran").exists()


def test_a_machine_may_send_nothing_until_it_is_released(ssh: Any, machine: Any) -> None:
    machine.faults.script([Hang()], on="exec")
    with subprocess.Popen([*ssh, ADDRESS, "true"]) as process:
        wait_until(lambda: machine.requests_for("exec"))
        assert process.poll() is None
        machine.faults.release()
        assert process.wait(LONG_SECONDS) == 255


def test_a_forwarded_connection_may_be_refused(ssh: Any, machine: Any, echo: Any) -> None:
    machine.ports[9012] = echo
    machine.faults.script([Status(503)], on="forward")
    local = free_port()
    with subprocess.Popen([*ssh, "-N", "-L", f"{local}:localhost:9012", ADDRESS]) as process:
        with connect(local) as connection:
            assert connection.recv(1) == b""
        with connect(local) as connection:
            connection.sendall(b"again")
            assert connection.recv(100) == b"received again"
        process.kill()  # SIGTERM may be missed: ssh 9.2 checks for it, then polls


# --- gcloud ----------------------------------------------------------------------------------------------


@pytest.fixture
def gcloud(compute_server: ComputeServer, tmp_path: Path) -> Any:
    environment = {
        **os.environ,
        **compute_server.environment(),
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }
    return lambda *arguments: run(["gcloud", *arguments], env=environment, stdin=subprocess.DEVNULL)


@needs_gcloud
def test_gcloud_gives_its_key_to_the_project_and_logs_in_with_it(
    gcloud: Any, compute_server: ComputeServer, machine: Any, tmp_path: Path
) -> None:
    vm = compute_server.add_instance("a")
    machine.authorized_keys = lambda: compute_server.project_metadata.get("ssh-keys", "")
    write_ssh(tmp_path, {vm_addresses(vm): machine})
    done = gcloud("compute", "ssh", "a", "--zone=us-central1-a", "--command=echo hello; exit 3")
    assert done.stdout.endswith(b"hello\n"), done.stderr
    assert done.returncode == 3
    assert "ssh-rsa" in compute_server.project_metadata["ssh-keys"]

    compute_server.project_metadata = {}
    machine.authorized_keys = lambda: ""
    done = run([str(tmp_path / "ssh"), "-i", str(tmp_path / ".ssh/google_compute_engine"), *QUIET, ADDRESS, "true"])
    assert done.returncode == 255


@needs_gcloud
def test_gcloud_reaches_a_vm_without_an_address_and_each_worker_of_a_tpu(
    gcloud: Any, compute_server: ComputeServer, machine: Any, tmp_path: Path
) -> None:
    vm = compute_server.add_instance("inside", networkInterfaces=[{}])
    workers = compute_server.add_tpu("slice", workers=2)["networkEndpoints"]
    outside = [worker["accessConfig"]["externalIp"] for worker in workers]
    with SshServer(environment={"HOST_INDEX": "0"}) as first, SshServer(environment={"HOST_INDEX": "1"}) as second:
        write_ssh(tmp_path, {vm_addresses(vm): machine, outside[0]: first, outside[1]: second})
        done = gcloud("compute", "ssh", "inside", "--zone=us-central1-a", "--command=echo $HOST_INDEX")
        assert done.stdout.endswith(b"3\n"), done.stderr
        tpu = ("compute", "tpus", "tpu-vm", "ssh", "slice", "--zone=us-central1-a")
        done = gcloud(*tpu, "--worker=all", "--command=echo $HOST_INDEX")
        assert sorted(done.stdout.split()) == [b"0", b"1"], done.stderr
        done = gcloud(*tpu, "--worker=1", "--command=echo $HOST_INDEX")
        assert done.stdout == b"1\n", done.stderr
