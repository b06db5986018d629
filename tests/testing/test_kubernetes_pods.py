"""Commands in the pods of a loopback cluster, and connections to their ports, by the real kubectl."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_testing.faults import Delay, Hang, Reset, Status, Truncate
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ..loopback.kubernetes import KubernetesServer, Pod
from ..loopback.kubernetes.spdy import Session
from ..waiting import bound_port, wait_until
from .kubectl import OVER_SPDY, Kubectl, needs_kubectl

pytestmark = needs_kubectl
PAGE = bytes(range(256)) * 4000


@pytest.fixture(params=["websocket", "spdy"])
def kubectl(request: pytest.FixtureRequest, kubernetes_server: KubernetesServer) -> Kubectl:
    return Kubectl(kubernetes_server, OVER_SPDY if request.param == "spdy" else {})


@pytest.fixture
def new_kubectl(kubernetes_server: KubernetesServer) -> Kubectl:
    return Kubectl(kubernetes_server)


@pytest.fixture
def pod(kubernetes_server: KubernetesServer) -> Pod:
    return kubernetes_server.add_pod("worker-0", containers=("main", "side"), environment={"RANK": "3"})


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def page_port() -> Iterator[int]:
    """Return the port of a web server that replaces a job's."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def read(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as response:
        return bytes(response.read())


# --- Commands -------------------------------------------------------------------------------------------


def test_a_command_has_its_output_its_errors_and_its_exit_code(kubectl: Kubectl, pod: Pod) -> None:
    done = kubectl("exec", "worker-0", "-c", "main", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, done.text) == (7, "out\n")
    assert done.errors.splitlines()[0] == "err"


def test_a_command_runs_in_the_pods_own_folder_and_environment(kubectl: Kubectl, pod: Pod) -> None:
    (pod.folder / "here").touch()
    done = kubectl("exec", "worker-0", "-c", "main", "--", "sh", "-c", 'ls; echo "$HOSTNAME $RANK $HOME"')
    assert done.text.splitlines() == ["here", "tmp", f"worker-0 3 {pod.folder}"]


def test_bytes_pass_both_ways_whole(kubectl: Kubectl, pod: Pod) -> None:
    assert kubectl("exec", "-i", "worker-0", "-c", "side", "--", "cat", stdin=PAGE).output == PAGE
    assert pod.commands[0].container == "side"


def test_a_command_that_reads_less_than_is_sent_ends(new_kubectl: Kubectl, pod: Pod) -> None:
    assert new_kubectl("exec", "-i", "worker-0", "-c", "main", "--", "head", "-c", "3", stdin=PAGE).output == PAGE[:3]


def test_a_command_that_does_not_exist_is_reported(kubectl: Kubectl, pod: Pod) -> None:
    done = kubectl("exec", "worker-0", "-c", "main", "--", "no-such-program")
    assert done.code == 1
    assert 'exec: "no-such-program": No such file or directory' in done.errors
    assert pod.commands[0].exit_code == 127


def test_a_pod_or_container_that_does_not_exist_is_reported(new_kubectl: Kubectl, pod: Pod) -> None:
    assert 'pods "worker-1" not found' in new_kubectl("exec", "worker-1", "--", "true").errors
    assert "container other is not valid" in new_kubectl("exec", "worker-0", "-c", "other", "--", "true").errors


def test_kubectl_chooses_the_first_container(new_kubectl: Kubectl, pod: Pod) -> None:
    assert 'Defaulted container "main"' in new_kubectl("exec", "worker-0", "--", "true").errors
    assert pod.commands[0].container == "main"


def test_a_pod_of_another_namespace_is_another_pod(
    new_kubectl: Kubectl, pod: Pod, kubernetes_server: KubernetesServer
) -> None:
    other = kubernetes_server.add_pod("worker-0", namespace="other")
    assert new_kubectl("-n", "other", "exec", "worker-0", "--", "pwd").text.strip() == str(other.folder)
    assert pod.commands == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([b"", b"$(touch x)", b"'; \"\n", b"-c", b"--", b"\xff\xfe", "é&command=b%20#+".encode()])
@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"")), min_size=1))
def test_arguments_arrive_as_they_were_given(
    new_kubectl: Kubectl, kubernetes_server: KubernetesServer, arguments: list[bytes]
) -> None:
    pod = kubernetes_server.add_pod("worker-0")
    program = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    command: list[str | bytes] = ["exec", "worker-0", "--", sys.executable, "-ISc", program, *arguments]
    assert new_kubectl(*command).output == b"\0".join(arguments)
    assert [os.fsencode(argument) for argument in pod.commands[0].argv[3:]] == arguments


@pytest.mark.parametrize("name", ["a b;$(touch x)'\"", "é", "line\nbreak", "a&b=c#d?e", "\\", "A"])
def test_a_pods_name_arrives_as_it_was_given(
    new_kubectl: Kubectl, kubernetes_server: KubernetesServer, name: str
) -> None:
    pod = kubernetes_server.add_pod(name)
    assert new_kubectl("exec", name, "--", "echo", "$HOSTNAME").text == "$HOSTNAME\n"
    assert len(pod.commands) == 1


@pytest.mark.skipif(shutil.which("tar") is None, reason="kubectl cp needs a tar in the pod")
def test_files_are_copied_both_ways(new_kubectl: Kubectl, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(PAGE)
    assert new_kubectl("cp", "-c", "main", str(tmp_path / "file"), "worker-0:there").code == 0
    assert (pod.folder / "there").read_bytes() == PAGE
    assert new_kubectl("cp", "-c", "main", "worker-0:there", str(tmp_path / "back")).code == 0
    assert (tmp_path / "back").read_bytes() == PAGE


def test_many_commands_run_at_once(new_kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    meeting = "touch $0; until [ $(ls | grep -c here) = 6 ]; do sleep 0.02; done"
    pod = kubernetes_server.add_pod("worker-0")
    with ThreadPoolExecutor(6) as threads:
        done = threads.map(lambda n: new_kubectl("exec", "worker-0", "--", "sh", "-c", meeting, f"here-{n}"), range(6))
        assert [one.code for one in done] == [0] * 6
    assert len(pod.commands) == 6


# --- Ends -----------------------------------------------------------------------------------------------


def test_a_pod_that_dies_ends_its_commands(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    kubernetes_server.add_pod("worker-0", dies_after_seconds=0.2)
    assert kubectl("exec", "worker-0", "--", "sleep", "60").code == 137
    assert "completed pod; current phase is Failed" in kubectl("exec", "worker-0", "--", "true").errors


def test_a_node_that_dies_sends_no_outcome_of_its_commands(new_kubectl: Kubectl, pod: Pod) -> None:
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(new_kubectl, "exec", "worker-0", "-c", "main", "--", "sleep", "60")
        wait_until(lambda: pod.commands and pod.commands[0].process)
        pod.die(with_its_node=True)
        assert "abnormal closure" in ended.result().errors


def test_a_command_outlives_its_client_as_in_a_real_cluster_and_not_the_server(pod: Pod) -> None:
    server = pod.on_death.__self__  # type: ignore[attr-defined]
    command = ["kubectl", "exec", "worker-0", "-c", "main", "--", "sleep", "60"]
    with subprocess.Popen(command, env=Kubectl(server).environment) as process:
        wait_until(lambda: pod.commands and pod.commands[0].process)
        process.kill()
    (sleeping,) = pod.commands
    assert sleeping.exit_code is None
    server.close()
    assert sleeping.exit_code == 137


def test_a_client_that_leaves_ends_what_the_command_reads(new_kubectl: Kubectl, pod: Pod) -> None:
    command = ["kubectl", "exec", "-i", "worker-0", "-c", "main", "--", "cat"]
    with subprocess.Popen(command, env=new_kubectl.environment, stdin=subprocess.PIPE) as process:
        wait_until(lambda: pod.commands and pod.commands[0].process)
        process.kill()
        wait_until(lambda: pod.commands[0].exit_code == 0)


def test_a_deleted_pod_ends_its_commands(new_kubectl: Kubectl, pod: Pod) -> None:
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(new_kubectl, "exec", "worker-0", "-c", "main", "--", "sleep", "60")
        wait_until(lambda: pod.commands and pod.commands[0].process)
        assert new_kubectl("delete", "pod", "worker-0").text == 'pod "worker-0" deleted\n'
        assert ended.result().code == 137


@pytest.mark.parametrize("settings", [{}, OVER_SPDY])
def test_closing_leaves_neither_a_process_nor_a_thread_nor_a_folder(settings: dict[str, str]) -> None:
    before = set(threading.enumerate())
    server = KubernetesServer()
    pod = server.add_pod("worker-0")
    kubectl = Kubectl(server, settings)
    commands = (["exec", "-i", "worker-0", "--", "sh", "-c", "sleep 60 & sleep 60"], ["get", "pods", "--watch"])
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        pod.ports = {9012: listener.getsockname()[1]}
        port, _ = stack.enter_context(kubectl.forwarding("worker-0", 9012))
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        stack.enter_context(listener.accept()[0])
        for command in commands:
            pipe = subprocess.PIPE
            started = subprocess.Popen(
                ["kubectl", *command], env=kubectl.environment, stdin=pipe, stdout=pipe, stderr=pipe
            )
            stack.enter_context(started)
            stack.callback(started.kill)
        wait_until(lambda: pod.commands and pod.commands[0].process)
        wait_until(lambda: any("watch=true" in request.path for request in server.requests))
        server.close()
        assert pod.commands[0].exit_code == 137
    assert not server.folder.exists()
    wait_until(lambda: set(threading.enumerate()) <= before)


# --- Faults ---------------------------------------------------------------------------------------------


def test_a_user_without_the_role_is_refused_with_the_name_of_the_permission(
    kubectl: Kubectl, pod: Pod, kubernetes_server: KubernetesServer
) -> None:
    kubernetes_server.denied = {"create pods/exec", "create pods/portforward"}
    for command in (["exec", "worker-0", "-c", "main", "--", "true"], ["port-forward", "worker-0", ":1"]):
        done = kubectl(*command)
        assert done.code == 1
        assert 'pods "worker-0" is forbidden: User "tester" cannot create resource "pods/' in done.errors
    assert pod.commands == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Status(401), "You must be logged in"),
        (Status(503), "ServiceUnavailable"),
        (Reset(), "connection reset by peer"),
        (Hang(0.2), "connection reset by peer"),
        (Truncate(), "abnormal closure"),
    ],
)
def test_a_fault_in_exec_reaches_kubectl(
    new_kubectl: Kubectl, pod: Pod, kubernetes_server: KubernetesServer, fault: Any, message: str
) -> None:
    kubernetes_server.faults.always(fault, on="exec")
    done = new_kubectl("exec", "worker-0", "-c", "main", "--", "true")
    assert done.code == 1
    assert message in done.errors
    assert pod.commands == []


def test_a_slow_cluster_is_slow(new_kubectl: Kubectl, pod: Pod, kubernetes_server: KubernetesServer) -> None:
    kubernetes_server.faults.always(Delay(0.3), on="exec")
    started = time.monotonic()
    assert new_kubectl("exec", "worker-0", "-c", "main", "--", "true").code == 0
    assert time.monotonic() - started > 0.3


# --- Ports ----------------------------------------------------------------------------------------------


def test_a_port_of_a_pod_is_one_of_this_machine(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, page_port: int
) -> None:
    kubernetes_server.add_pod("worker-0", ports={9012: page_port})
    with kubectl.forwarding("pod/worker-0", 9012) as (port, _):
        assert read(port) == PAGE
        with ThreadPoolExecutor(6) as threads:
            assert set(threads.map(read, [port] * 12)) == {PAGE}


def test_profiles_are_captured_through_ports_of_pods(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        jobs = [stack.enter_context(ProfilerServiceServer()) for _ in range(3)]
        for number, job in enumerate(jobs):
            kubernetes_server.add_pod(f"worker-{number}", ports={9012: job.port})
        tunnels = [stack.enter_context(kubectl.forwarding(f"worker-{number}", 9012)) for number in range(3)]
        addresses = [f"127.0.0.1:{port}" for port, _ in tunnels]
        results = ProfilerService().capture(addresses, str(tmp_path), "session", 200)
        assert [result.problem for result in results] == [""] * 3
        assert len({job.profiles[0].start_ns for job in jobs}) == 1
    assert len(list(tmp_path.glob("session/*.xplane.pb"))) == 3


def test_a_service_leads_to_its_pods(new_kubectl: Kubectl, kubernetes_server: KubernetesServer, page_port: int) -> None:
    kubernetes_server.add_pod("worker-0", labels={"app": "viewer"})
    spec = {"selector": {"app": "viewer"}, "ports": [{"port": 80, "targetPort": page_port}]}
    kubernetes_server.put("services", {"metadata": {"name": "viewer"}, "spec": spec})
    with new_kubectl.forwarding("service/viewer", 80) as (port, _):
        assert read(port) == PAGE


def test_a_connection_can_be_ended_in_one_direction(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kubernetes_server.add_pod("worker-0", ports={9012: listener.getsockname()[1]})
        with kubectl.forwarding("worker-0", 9012) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
            server, _address = listener.accept()
            with server:
                client.sendall(b"question")
                client.shutdown(socket.SHUT_WR)
                assert server.makefile("rb").read() == b"question"
                server.sendall(b"answer")
            assert client.makefile("rb").read() == b"answer"


def test_a_port_without_a_listener_is_reported(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    with bound_port() as unused:
        kubernetes_server.add_pod("worker-0", ports={9012: unused})
        with kubectl.forwarding("worker-0", 9012) as (port, process):
            with socket.create_connection(("127.0.0.1", port)) as client:
                assert client.recv(1) == b""
            assert process.stderr is not None
            assert b"connection refused" in process.stderr.readline()


def test_a_pod_that_dies_breaks_connections_to_its_ports(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, page_port: int
) -> None:
    pod = kubernetes_server.add_pod("worker-0", ports={9012: page_port})
    with kubectl.forwarding("worker-0", 9012) as (port, process):
        assert read(port) == PAGE
        pod.die()
        assert process.wait(20) == 1
        assert process.stderr is not None
        assert b"lost connection to pod" in process.stderr.read()


def test_a_kubectl_that_leaves_ends_its_connections(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kubernetes_server.add_pod("worker-0", ports={9012: listener.getsockname()[1]})
        with (
            kubectl.forwarding("worker-0", 9012) as (port, process),
            socket.create_connection(("127.0.0.1", port)),
        ):
            server, _ = listener.accept()
            process.kill()
            with server:
                server.settimeout(20)
                assert server.recv(1) == b""


@given(st.lists(st.binary(max_size=40)))
def test_a_client_that_speaks_no_spdy_does_no_harm(pieces: list[bytes]) -> None:
    class Nonsense:
        def pieces(self) -> Iterator[bytes]:
            yield from pieces

        def send(self, data: bytes) -> None:
            pass

        def close(self) -> None:
            pass

    Session(Nonsense()).receive(lambda stream: None)
