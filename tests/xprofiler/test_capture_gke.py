"""`xprofiler capture -o gke`: pods of a loopback cluster, through the real kubectl."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_common.storage import GoogleCloudStorage
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Skew
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer
from xprofiler.capture.capturing import Capture
from xprofiler.capture.pods import find_pods
from xprofiler.capture.session import Session
from xprofiler.gcloud.kubectl import Cluster
from xprofiler.gcloud.processes import Programs

from ..jax_jobs import jax_jobs, may_crash
from ..loopback.kubernetes import KubernetesServer
from .captures import Command, SlowTunnel, capture_command, opened_by_xprof, session_of

pytest.importorskip("grpc")
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

_MS = 200
_PODS = ("pod_1", "pod_2", "pod_3")


@pytest.fixture
def cluster(kubernetes_server: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> KubernetesServer:
    for name, value in kubernetes_server.environment().items():
        monkeypatch.setenv(name, value)
    return kubernetes_server


@pytest.fixture
def bucket(cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> CloudStorageServer:
    settings = {"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true", "CLOUDSDK_CORE_PROJECT": "test-project"}
    for name, value in {**cloud_storage_server.environment(), **settings}.items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    return cloud_storage_server


@pytest.fixture
def jobs(cluster: KubernetesServer) -> Iterator[list[ProfilerServiceServer]]:
    """Jobs in three pods, each with its own port 9012."""
    servers = [ProfilerServiceServer() for _ in _PODS]
    for name, server in zip(_PODS, servers, strict=True):
        cluster.add_pod(name, containers=("main", "side"), ports={9012: server.port})
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def capture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    return capture_command(capsys)


def commands_in(cluster: KubernetesServer, pod: str) -> list[tuple[str, ...]]:
    return [command.argv for command in cluster.pod(pod).commands]


@pytest.mark.timing
def test_all_pods_start_together_and_write_to_the_bucket_themselves(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], bucket: CloudStorageServer
) -> None:
    ran = capture("-z", "us-central1-a", "-o", "gke", "-l", "gs://bucket/run", "-f", "jax", "-n", *_PODS, "-d", _MS)
    assert ran.code == 0, ran.errors
    for pod in _PODS:
        assert f"Starting profile capture on {pod}.\n" in ran.errors
    session = session_of(ran)
    assert ran.output.count(f"Profile saved to gs://bucket/run/tensorboard and session id is {session}.\n\n") == 3
    folder = f"run/tensorboard/plugins/profile/{session}"
    assert bucket.names("bucket") == [f"{folder}/{pod}.xplane.pb" for pod in _PODS]
    assert len({job.profiles[0].start_ns for job in jobs}) == 1
    assert [job.profiles[0].root for job in jobs] == ["gs://bucket/run/tensorboard/plugins/profile"] * 3
    assert [commands_in(cluster, pod) for pod in _PODS] == [[("date", "+%s")], [], []]
    assert all(job.requests[0].time < job.profiles[0].start_ns / 1e9 for job in jobs)


@pytest.mark.timing
@pytest.mark.parametrize("ahead", [-90, 90])
def test_with_a_wrong_local_clock_the_pods_start_together_by_theirs(
    capture: Command, cluster: KubernetesServer, tmp_path: Path, ahead: int
) -> None:
    """Otherwise pods with a slow clock would miss the start time, and those with a fast clock would start at once."""
    (tmp_path / "bin").mkdir()
    date = tmp_path / "bin/date"
    date.write_text(f'#!/bin/sh\nexpr $(/bin/date "$1") + {ahead}\n')
    date.chmod(0o755)
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(ProfilerServiceServer()) for _ in _PODS]
        slow = stack.enter_context(SlowTunnel(jobs[1].port, 0.3))
        for name, job in zip(_PODS, jobs, strict=True):
            job.faults.always(Skew(ahead))
            port = slow.port if job is jobs[1] else job.port
            environment = {"PATH": f"{date.parent}:{os.environ['PATH']}"}
            cluster.add_pod(name, environment=environment, ports={9012: port})
        ran = capture("-o", "gke", "-l", tmp_path / "logs", "-n", *_PODS, "-d", _MS)
    assert ran.code == 0, ran.errors
    assert re.search(r"The clock of pod_1 is (8[5-9]|9\d) s ", ran.errors)
    assert [len(job.profiles) for job in jobs] == [1, 1, 1]
    assert all(job.requests[0].time + ahead < job.profiles[0].start_ns / 1e9 for job in jobs)
    assert "Note" not in ran.errors


def test_pods_without_a_readable_clock_are_still_captured(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], bucket: CloudStorageServer
) -> None:
    cluster.denied.add("create pods/exec")
    ran = capture("-o", "gke", "-l", "gs://bucket/run", "-n", *_PODS, "-d", _MS)
    assert ran.code == 0, ran.errors
    assert "The clock of" not in ran.errors


def test_files_of_pods_without_access_to_the_bucket_are_copied_there(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], bucket: CloudStorageServer
) -> None:
    for job in jobs[:2]:
        job.has_bucket_access = False
    ran = capture("-o", "gke", "-l", "gs://bucket/run", "-n", *_PODS, "-d", _MS)
    assert ran.code == 0, ran.errors
    folder = f"run/tensorboard/plugins/profile/{session_of(ran)}"
    assert bucket.names("bucket") == [f"{folder}/{pod}.xplane.pb" for pod in _PODS]
    assert "No profile of pod_1, pod_2: capturing again." in ran.errors
    staging = Path(jobs[0].profiles[1].root)
    assert staging.parent.name.startswith("xprofiler-")
    assert not staging.parent.exists()
    assert not commands_in(cluster, "pod_3")


@may_crash
def test_a_real_job_that_cannot_reach_the_bucket_is_captured(
    cluster: KubernetesServer,
    bucket: CloudStorageServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """JAX retries for minutes if its connections are refused; a capture must not wait for that."""
    pytest.importorskip("jax")
    session = Session("gs://bucket/run", "session")
    with jax_jobs(1, {"https_proxy": "http://127.0.0.1:9", "NO_GCE_CHECK": "true"}) as (port,):
        cluster.add_pod("pod_1", ports={9012: port})
        with Programs(Console()) as programs:
            targets = find_pods(["pod_1"], Cluster(), None, 9012, programs).targets
        storage, service = GoogleCloudStorage(), ProfilerService()
        outcomes = Capture(session, _MS, storage, Console(), service, direct_extra_seconds=1.0).run(targets)
        storage.close()
    assert [outcome.problem for outcome in outcomes] == [""]
    assert "capturing again" in capsys.readouterr().err
    (name,) = bucket.names("bucket")
    copy = tmp_path / "copy.xplane.pb"
    copy.write_bytes(bucket.read("bucket", name))
    assert opened_by_xprof([copy], tmp_path / "copies")["tasks"].startswith("1 ")


@may_crash
def test_pods_can_be_captured_to_a_local_folder_without_a_bucket(
    capture: Command, cluster: KubernetesServer, tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    with jax_jobs(2) as ports:
        for pod, port in zip(_PODS, ports, strict=False):
            cluster.add_pod(pod, ports={9012: port})
        ran = capture("-o", "gke", "-l", tmp_path / "logs", "-n", *_PODS[:2], "-d", _MS)
    assert ran.code == 0, ran.errors
    folder = tmp_path / "logs/tensorboard/plugins/profile" / session_of(ran)
    paths = sorted(folder.iterdir())
    assert [path.name for path in paths] == ["pod_1.xplane.pb", "pod_2.xplane.pb"]
    assert opened_by_xprof(paths, tmp_path / "copies")["tasks"].startswith("2 ")


def test_a_relay_in_the_pod_is_used_if_no_port_can_be_forwarded(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    cluster.denied.add("create pods/portforward")
    ran = capture("-o", "gke", "-l", tmp_path, "-n", "pod_1", "-p", jobs[0].port, "-d", _MS, "-v")
    assert ran.code == 0, ran.errors
    assert "its port was not forwarded" in ran.errors
    assert "forbidden" in ran.errors
    programs = [argv for argv in commands_in(cluster, "pod_1") if argv[:2] == ("python3", "-c")]
    assert programs
    assert all(argv[3:] == (str(jobs[0].port),) for argv in programs)


def test_a_closed_port_in_the_pod_is_reported(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    jobs[0].die()
    missings = jobs[0].port
    cluster.pod("pod_2").ports = {missings: jobs[1].port}
    ran = capture("-o", "gke", "-l", tmp_path, "-n", *_PODS[:2], "-p", missings, "-d", _MS)
    assert ran.code == 1
    assert f"Failed to profile host pod_1 with error: nothing answers at port {missings} there" in ran.errors
    assert [line.split()[1] for line in ran.output.splitlines()[-2:]] == ["failed", "captured"]


def test_a_pod_that_dies_during_the_capture_is_reported_and_the_others_are_captured(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    cluster.pod("pod_1").dies_after_seconds = 0.6
    ran = capture("-o", "gke", "-l", tmp_path, "-n", *_PODS, "-d", "1500")
    assert ran.code == 1
    assert "Failed to profile host pod_1 with error: " in ran.errors
    assert [line.split()[1] for line in ran.output.splitlines()[-3:]] == ["failed", "captured", "captured"]


def test_missing_pods_are_reported_and_the_others_are_captured(
    capture: Command, jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    ran = capture("-o", "gke", "-l", tmp_path, "-n", "none", "pod_2", "-d", _MS)
    assert ran.code == 1
    assert "Pod none does not exist" in ran.errors
    assert "Failed to profile host none with error: " in ran.errors
    assert [line.split()[:2] for line in ran.output.splitlines()[-2:]] == [["pod_2", "captured"], ["none", "failed"]]


def test_without_a_pod_nothing_is_started(capture: Command, jobs: list[ProfilerServiceServer], tmp_path: Path) -> None:
    ran = capture("-o", "gke", "-l", tmp_path / "logs", "-n", "none", "missing", "-d", _MS)
    assert ran.code == 3
    assert ran.output == ""
    assert "Pod none does not exist" in ran.errors
    assert "Pod missing does not exist" in ran.errors
    assert not (tmp_path / "logs").exists()


def test_the_callers_namespace_context_and_container_are_used(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    cluster.add_pod("pod-9", namespace="team", containers=("main", "trainer"), ports={9012: jobs[0].port})
    options = ("--namespace", "team", "--context", "test-cluster", "--container", "trainer")
    ran = capture("-o", "gke", "-l", tmp_path, "-n", "pod-9", "-d", _MS, *options)
    assert ran.code == 0, ran.errors
    assert {command.container for command in cluster.pod("pod-9", "team").commands} == {"trainer"}
    assert capture("-o", "gke", "-l", tmp_path, "-n", "pod-9", "-d", _MS).code == 3
    other = capture("-o", "gke", "-l", tmp_path, "-n", "pod-9", "--namespace", "team", "--container", "missing")
    assert (other.code, "has no container missing; it has main, trainer" in other.errors) == (3, True)
    elsewhere = capture("-o", "gke", "-l", tmp_path, "-n", "pod-9", "--context", "elsewhere")
    assert (elsewhere.code, "context" in elsewhere.errors) == (3, True)


def test_a_missing_permission_to_list_pods_is_reported(
    capture: Command, cluster: KubernetesServer, jobs: list[ProfilerServiceServer], tmp_path: Path
) -> None:
    cluster.denied.add("get pods")
    ran = capture("-o", "gke", "-l", tmp_path, "-n", "pod_1", "-d", _MS)
    assert ran.code == 4
    assert "forbidden" in ran.errors


def test_without_a_cluster_the_message_names_the_command_to_get_one(
    capture: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = capture("-o", "gke", "-l", tmp_path, "-n", "pod_1", "-d", _MS)
    assert ran.code == 1
    assert "gcloud container clusters get-credentials" in ran.errors


def test_without_kubectl_the_message_names_how_to_install_it(
    capture: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = capture("-o", "gke", "-l", tmp_path, "-n", "pod_1", "-d", _MS)
    assert ran.code == 3
    assert "https://kubernetes.io/docs/tasks/tools/" in ran.errors
