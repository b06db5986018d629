"""`xprofiler capture` on VMs and TPU VMs of a loopback Compute, through the real gcloud and the real ssh."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_testing.faults import Status
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer
from xprofiler.capture.machines import find_machines
from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.settings import GcloudSettings

from ..loopback.compute import ComputeServer, vm_addresses
from .captures import Command, capture_command, session_of
from .typed_commands import Ended

pytest.importorskip("grpc")
pytest.importorskip("googleapiclient")
pytest.importorskip("asyncssh")

from ..loopback import ssh

_MISSING = [program for program in ("gcloud", "ssh", "ssh-keygen") if shutil.which(program) is None]
needs_gcloud = pytest.mark.skipif(bool(_MISSING), reason=f"not on this machine: {', '.join(_MISSING)}")

_MS = 200
_ZONE = "us-central1-a"


class Machines:
    """VMs and TPUs that ssh can connect to, each with a job."""

    def __init__(self, compute: ComputeServer, folder: Path) -> None:
        self.compute = compute
        self.jobs: dict[str, ProfilerServiceServer] = {}
        self.servers: dict[str, ssh.SshServer] = {}
        self._folder = folder
        self._path = os.environ["PATH"]
        self._known: dict[str, ssh.SshServer] = {}
        self._stack = contextlib.ExitStack()

    def add_vm(self, name: str, **fields: object) -> None:
        self._add(name, vm_addresses(self.compute.add_instance(name, _ZONE, **fields)))

    def add_tpu(self, name: str, workers: int) -> None:
        node = self.compute.add_tpu(name, _ZONE, workers=workers)
        for number, endpoint in enumerate(node["networkEndpoints"]):
            address = f"{endpoint['accessConfig']['externalIp']} {endpoint['ipAddress']}"
            self._add(name if workers == 1 else f"{name}-w{number}", address)

    def close(self) -> None:
        self._stack.close()

    def _add(self, name: str, addresses: str) -> None:
        job = self._stack.enter_context(ProfilerServiceServer(storage_url=self.compute.storage.url))
        server = self._stack.enter_context(ssh.SshServer(ports={9012: job.port}))
        self.jobs[name], self.servers[name] = job, server
        self._known[addresses] = server
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", self._path)  # Use the real ssh, not the one that `write_ssh` writes.
            ssh.write_ssh(self._folder, self._known)


@pytest.fixture
def machines(
    compute_server: ComputeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcloud_home: Path
) -> Iterator[Machines]:
    for name, value in compute_server.environment().items():
        monkeypatch.setenv(name, value)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("HOME", str(gcloud_home))
    machines = Machines(compute_server, programs)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    keys = gcloud_home / "keys-of-the-project"
    if keys.exists():  # Otherwise gcloud waits a minute until machines accept a new key.
        compute_server.project_metadata = {"ssh-keys": keys.read_text()}
    yield machines
    machines.close()
    keys.write_text(compute_server.project_metadata.get("ssh-keys", ""))
    (gcloud_home / ".ssh/google_compute_known_hosts").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def gcloud_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with gcloud's ssh key."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def capture(capsys: pytest.CaptureFixture[str]) -> Command:
    return capture_command(capsys)


def statuses(ran: Ended) -> dict[str, str]:
    """Return the row of each host in the table."""
    rows = ran.output.rpartition("  -----")[2].splitlines()[1:]
    return {row.split()[0]: row.split()[1] for row in rows}


@pytest.mark.timing
@needs_gcloud
def test_vms_and_every_worker_of_a_slice_start_together_and_write_to_the_bucket_themselves(
    capture: Command, machines: Machines
) -> None:
    machines.add_vm("vm-1")
    machines.add_tpu("tpu-1", 2)
    ran = capture("-z", _ZONE, "-l", "gs://test-bucket/run", "-f", "jax", "-n", "vm-1", "tpu-1", "-d", _MS)
    assert ran.code == 0, ran.errors
    hosts = ["vm-1", "tpu-1-w0", "tpu-1-w1"]
    for host in hosts:
        assert f"Starting profile capture on host {host}.\n" in ran.errors
    session = session_of(ran)
    assert ran.output.count(f"Profile saved to gs://test-bucket/run/tensorboard and session id is {session}.") == 3
    folder = f"run/tensorboard/plugins/profile/{session}"
    assert machines.compute.storage.names("test-bucket") == [f"{folder}/{host}.xplane.pb" for host in sorted(hosts)]
    asked = [machines.jobs[host].profiles for host in hosts]
    assert [len(profiles) for profiles in asked] == [1, 1, 1]
    assert len({profiles[0].start_ns for profiles in asked}) == 1
    assert statuses(ran) == dict.fromkeys(hosts, "captured")


@needs_gcloud
def test_the_line_of_the_readme_does_what_it_shows(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Run it in a shell and a terminal, unchanged but for `\\` before comments."""
    for name in ("vm_name1", "vm_name2", "vm_name3"):
        machines.add_vm(name)
    line = f"""xprofiler capture \\
-z {_ZONE} \\
-l gs://test-bucket/some-run \\
-f jax \\
-n vm_name1 vm_name2 vm_name3 \\
-d 2000 # duration in ms
"""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    ran = subprocess.run(
        ["sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stdout
    session = ran.stdout.partition("session id is ")[2].partition(".")[0]
    saved = f"Profile saved to gs://test-bucket/some-run/tensorboard and session id is {session}."
    for host in ("vm_name1", "vm_name2", "vm_name3"):
        assert f"Starting profile capture on host {host}.\n{saved}\n\n" in ran.stdout
    folder = f"some-run/tensorboard/plugins/profile/{session}"
    names = [f"{folder}/vm_name{number}.xplane.pb" for number in (1, 2, 3)]
    assert machines.compute.storage.names("test-bucket") == names


def test_the_name_of_a_tpu_may_have_underscores(machines: Machines) -> None:
    machines.compute.add_tpu("vm_name1", _ZONE, workers=2)
    found = find_machines(["vm_name1"], _ZONE, 9012, GoogleApi(GcloudSettings.load(), Console()), may_be_tpus=True)
    assert [target.name for target in found.targets] == ["vm_name1-w0", "vm_name1-w1"]


@needs_gcloud
def test_hosts_without_ssh_or_forwarded_ports_do_not_stop_other_captures(capture: Command, machines: Machines) -> None:
    """One refuses ssh and is reported, one is reached by a relay, and a third cannot write to the bucket."""
    for name in ("vm-1", "vm-2", "vm-3"):
        machines.add_vm(name)
    machines.servers["vm-1"].faults.always(Status(403), on="login")
    machines.servers["vm-2"].faults.always(Status(403), on="forward")
    machines.jobs["vm-3"].has_bucket_access = False
    ports = {name: job.port for name, job in machines.jobs.items()}
    relayed = machines.servers["vm-2"]
    relayed.ports.clear()  # A program on the host connects to the job at the given port.
    for name in ("vm-1", "vm-3"):
        machines.servers[name].ports[ports["vm-2"]] = ports[name]
    ran = capture(
        *("-z", _ZONE, "-l", "gs://test-bucket/run", "-p", ports["vm-2"], "-d", _MS, "--non-tpu-vm", "-v"),
        *("-n", "vm-1", "vm-2", "vm-3"),
    )
    assert ran.code == 1
    assert statuses(ran) == {"vm-1": "failed", "vm-2": "captured", "vm-3": "captured"}
    assert "Failed to profile host vm-1 with error: " in ran.errors
    assert "Permission denied" in ran.errors, ran.errors[-3000:]
    assert any("python3 -c" in request.path for request in relayed.requests if request.operation == "exec")
    assert "No profile of vm-3: capturing again." in ran.errors
    staging = Path(machines.jobs["vm-3"].profiles[1].root).parent
    assert staging.name.startswith("xprofiler-")
    assert not staging.exists()
    assert len(machines.compute.storage.names("test-bucket")) == 2


@needs_gcloud
def test_flags_for_gcloud_apply_to_each_ssh_and_internal_vms_are_reached_through_iap(
    capture: Command, machines: Machines
) -> None:
    machines.add_vm("vm-1", networkInterfaces=[{}])
    ran = capture(
        *("-z", _ZONE, "-l", "gs://test-bucket/run", "-d", _MS, "-n", "vm-1", "--non-tpu-vm", "-v"),
        "--ssh-key-expire-after=1h",
    )
    assert ran.code == 0, ran.errors
    started = [line for line in ran.errors.splitlines() if line.startswith("$ gcloud compute ssh")]
    assert started
    assert all("--tunnel-through-iap" in line and "--ssh-key-expire-after=1h" in line for line in started)


@pytest.mark.parametrize("extra", [(), ("--internal-ip",)])
def test_workers_without_an_address_outside_are_reached_through_iap_unless_the_caller_is_inside(
    machines: Machines, extra: tuple[str, ...]
) -> None:
    machines.compute.add_tpu("tpu-1", _ZONE, networkEndpoints=[{"ipAddress": "10.0.0.2"}, {"ipAddress": "10.0.0.3"}])
    api = GoogleApi(GcloudSettings.load(), Console())
    found = find_machines(["tpu-1"], _ZONE, 9012, api, may_be_tpus=True, extra=extra)
    assert [target.name for target in found.targets] == ["tpu-1-w0", "tpu-1-w1"]
    for number, target in enumerate(found.targets):
        assert target.access is not None
        argv = target.access.forward(40000, 9012)
        assert ("--tunnel-through-iap" in argv) == (not extra)
        assert f"--worker={number}" in argv
        assert argv[argv.index("-L") + 1] == "127.0.0.1:40000:localhost:9012"


def test_a_tpu_of_one_worker_keeps_its_name(machines: Machines) -> None:
    machines.compute.add_tpu("tpu-1", _ZONE, workers=1)
    found = find_machines(["tpu-1"], _ZONE, 9012, GoogleApi(GcloudSettings.load(), Console()), may_be_tpus=True)
    assert [target.file_name for target in found.targets] == ["tpu-1"]


def test_a_vm_called_as_a_worker_of_a_slice_is_refused_before_any_login(capture: Command, machines: Machines) -> None:
    machines.compute.add_tpu("tpu", _ZONE, workers=2)
    machines.compute.add_instance("tpu-w0", _ZONE)
    ran = capture("-z", _ZONE, "-l", "gs://test-bucket/run", "-n", "tpu", "tpu-w0", "-v")
    assert ran.code == 2
    assert "would write to one file" in ran.errors
    assert "$ gcloud compute" not in ran.errors


def test_missing_hosts_are_named_and_nothing_is_started(capture: Command, machines: Machines) -> None:
    ran = capture("-z", _ZONE, "-l", "gs://test-bucket/run", "-n", "vm-1", "vm-2", "-d", _MS)
    assert ran.code == 3
    assert "Host vm-1 does not exist: there is no TPU VM, and no other VM, of that name in us-central1-a" in ran.errors
    assert "Host vm-2 does not exist" in ran.errors
    assert not machines.compute.storage.names("test-bucket")


def test_a_host_without_a_tpu_by_the_users_flag_is_accepted(capture: Command, machines: Machines) -> None:
    machines.compute.add_tpu("vm-1", _ZONE)
    ran = capture("-z", _ZONE, "-l", "gs://test-bucket/run", "-n", "vm-1", "--non-tpu-vm")
    assert ran.code == 3
    assert "there is no VM of that name" in ran.errors
    assert not [request for request in machines.compute.requests if request.operation == "tpu"]


@pytest.mark.parametrize(("fault", "exit_code"), [(Status(401), 4), (Status(403), 4)])
def test_a_refused_search_for_hosts_is_reported_and_nothing_is_started(
    capture: Command, machines: Machines, fault: Status, exit_code: int
) -> None:
    machines.compute.faults.always(fault, on="get")
    ran = capture("-z", _ZONE, "-l", "gs://test-bucket/run", "-n", "vm-1", "--non-tpu-vm")
    assert ran.code == exit_code
    assert "find the VM vm-1" in ran.errors


def test_a_failed_search_for_a_host_does_not_stop_other_captures(machines: Machines) -> None:
    for name in ("vm-1", "vm-2"):
        machines.compute.add_instance(name, _ZONE)
    machines.compute.faults.script([Status(501)], on="get")
    api = GoogleApi(GcloudSettings.load(), Console())
    found = find_machines(["vm-1", "vm-2"], _ZONE, 9012, api, may_be_tpus=False)
    assert len(found.targets) == 1
    (problem,) = found.missing.values()
    assert "find the VM" in problem


def test_a_missing_bucket_is_reported_before_any_request_to_hosts(
    capture: Command, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.add_vm("vm-1")
    monkeypatch.setattr("xprofiler.capture.machines.make_ssh_key", lambda targets, programs: None)
    ran = capture("-z", _ZONE, "-l", "gs://no-such-bucket/run", "-n", "vm-1", "--non-tpu-vm")
    assert ran.code == 3
    assert "the bucket does not exist" in ran.errors
    assert not machines.servers["vm-1"].requests


def test_without_a_zone_gclouds_zone_is_used(
    capture: Command, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = capture("-l", "gs://test-bucket/run", "-n", "vm-1")
    assert (without.code, "give -z ZONE_NAME" in without.errors) == (2, True)
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-central1-b")
    assert "in us-central1-b of" in capture("-l", "gs://test-bucket/run", "-n", "vm-1").errors


@pytest.mark.parametrize("name", ["-n; reboot", "VM", "vm 1", "$(reboot)", "vm-1/..", "", "vm\n1"])
def test_an_invalid_name_of_a_host_is_refused(capture: Command, machines: Machines, name: str) -> None:
    assert capture("-z", _ZONE, "-l", "gs://test-bucket/run", f"-n={name}").code == 2
    assert not machines.compute.requests
