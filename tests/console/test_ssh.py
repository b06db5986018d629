"""`mldiagnostics ssh`: the real kubectl, gcloud and ssh, to pods and machines on loopback."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cloud_tpu_diagnostics.entries import JOB_ENDED, LOG_ID, entry
from google_cloud_mldiagnostics.cli import main
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_console._facts.kubernetes_objects import parse_pod
from ml_diagnostics_console._facts.targets import Cluster, Target
from ml_diagnostics_console._ssh import running
from ml_diagnostics_console._ssh.routes import Machine, Route, route_to
from ml_diagnostics_console._ssh.running import run_route

from ..loopback.compute import ComputeServer
from ..loopback.kubernetes import KubernetesServer
from ..waiting import LONG_SECONDS, is_alive, wait_until
from .made_clusters import ended, pod, unscheduled, waiting
from .made_facts import process

Captured = pytest.CaptureFixture[str]
_HOSTILE = ["; touch pwned", "$(touch pwned)", "it's", "a\nb", "--namespace=other", "-x", "", "`id`", "ü 漢"]
_WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), min_size=1, max_size=5)
_NAMES = st.one_of(st.text(max_size=20), st.sampled_from(_HOSTILE), st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?"))


def machine_with(host: str, *, job: str = "llama", index: int = 0, resource: Mapping[str, Any] | None = None) -> None:
    """Record that a process of a job ran on a host."""
    labels = {"job": job, "run": job, "host": host, "process_index": str(index), "attempt": "1"}
    journal = Journal(
        LOG_ID,
        root=diagnostics_directory(),
        labels=labels,
        resource=resource or {},
        queued=False,
        about_pid=4000 + index,
    )
    journal.append(entry(JOB_ENDED, "ended", how="exit", exit_code=3), severity="ERROR")
    journal.close(1.0)


def ssh(*arguments: str) -> int:
    return main(["ssh", *arguments])


# --- Pods, by kubectl ---------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on this machine")
    with KubernetesServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.put("pods", pod(0), "ml")
        yield server


_POD = pod(0)["metadata"]["name"]


@pytest.mark.parametrize("host", ["train-0", _POD, "0"])
def test_a_command_runs_in_the_pod_of_a_host_with_its_words_as_they_are(
    cluster: KubernetesServer, capfd: Captured, host: str
) -> None:
    assert ssh("train", host, "--", "printf", "%s\\n", *_HOSTILE) == 0
    out, err = capfd.readouterr()
    assert out == "".join(f"{word}\n" for word in _HOSTILE)
    (command,) = cluster.pod(_POD, "ml").commands
    assert (command.container, command.argv) == ("main", ("printf", "%s\\n", *_HOSTILE))
    assert f"kubectl --context=test-cluster --namespace=ml exec --stdin --container=main pod/{_POD} -- printf" in err
    assert not list(cluster.pod(_POD, "ml").folder.rglob("pwned"))


def test_the_exit_code_is_that_of_the_command(cluster: KubernetesServer) -> None:
    assert ssh("train", "train-0", "--", "sh", "-c", "exit 7") == 7


def test_a_shell_is_started_without_a_command(cluster: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert ssh("train", "train-0") == 0
    assert cluster.pod(_POD, "ml").commands[0].argv == ("sh",)


def test_the_command_line_is_printed_and_nothing_is_run(cluster: KubernetesServer, capfd: Captured) -> None:
    assert ssh("train", "train-0", "--print", "--", "echo", "it's") == 0
    assert shlex.split(capfd.readouterr().out)[-4:] == [f"pod/{_POD}", "--", "echo", "it's"]
    assert cluster.pod(_POD, "ml").commands == []


def test_without_the_right_to_start_programs_it_shows_which_to_ask_for(
    cluster: KubernetesServer, capfd: Captured
) -> None:
    cluster.denied = {"create pods/exec", "get pods/exec"}
    assert ssh("train", "train-0", "--", "true") != 0
    assert (
        "kubectl auth can-i create pods --subresource=exec --context=test-cluster --namespace=ml"
        in capfd.readouterr().err
    )


def test_an_image_without_a_shell_is_reported_with_another_way(cluster: KubernetesServer, capfd: Captured) -> None:
    cluster.pod(_POD, "ml").environment = {"PATH": "/nonexistent"}
    assert ssh("train", "train-0") != 0
    err = capfd.readouterr().err
    assert f"the image of pod ml/{_POD} has no shell" in err
    assert f"kubectl debug -it --context=test-cluster --namespace=ml pod/{_POD} --image=busybox --target=main" in err


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        (unscheduled("0/4 nodes are available"), "is not scheduled yet: `mldiagnostics doctor`"),
        (waiting("ImagePullBackOff", "no such image"), "has not started yet: ImagePullBackOff: `mldiagnostics doctor`"),
        (
            pod(0, status={"phase": "Failed", "containerStatuses": [ended("OOMKilled", 137)]}),
            "(OOMKilled, exit code 137), and kubectl exec needs a container that runs: keep it next time",
        ),
    ],
)
def test_a_pod_that_does_not_run_is_not_connected_to_and_the_reason_is_said(
    cluster: KubernetesServer, capfd: Captured, resource: dict[str, Any], reason: str
) -> None:
    cluster.put("pods", resource, "ml")
    assert ssh("train", "train-0") == 1
    assert reason in capfd.readouterr().err


def test_a_host_that_does_not_exist_is_an_error_with_those_that_do(cluster: KubernetesServer, capfd: Captured) -> None:
    assert ssh("train", "train-7") == 3
    assert f"has no process with host 'train-7'; it has {_POD}" in capfd.readouterr().err


# --- Machines of Google Cloud, by gcloud --------------------------------------------------------------


_TPU = {"type": "tpu_worker", "labels": {"project_id": "test-project", "zone": "us-central1-a", "node_id": "tpu-1"}}


def of_tpu(worker: int) -> dict[str, Any]:
    labels = {**_TPU["labels"], "worker_id": str(worker)}  # type: ignore[dict-item]
    return {**_TPU, "labels": labels}


def test_the_worker_of_a_tpu_is_reached_by_gcloud_as_recorded(capsys: Captured) -> None:
    machine_with("t1v-n-0a1b-w-1", index=1, resource=of_tpu(1))
    assert ssh("llama", "t1v-n-0a1b-w-1", "--kubernetes", "off", "--print", "--", "echo", "it's") == 0
    printed = shlex.split(capsys.readouterr().out)
    assert printed[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "tpu-1"]
    assert {"--zone=us-central1-a", "--project=test-project", "--worker=1", "--plain"} < set(printed)
    assert shlex.split(next(word for word in printed if word.startswith("--command=")).partition("=")[2]) == [
        "echo",
        "it's",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--zone", "us-central1-a"], ["gcloud", "compute", "ssh", "vm-7", "--zone=us-central1-a", "--plain"]),
        (
            ["--zone", "z", "--tpu", "tpu-2", "--project", "p-1"],
            [
                "gcloud",
                "compute",
                "tpus",
                "tpu-vm",
                "ssh",
                "tpu-2",
                "--zone=z",
                "--project=p-1",
                "--worker=3",
                "--plain",
            ],
        ),
    ],
)
def test_a_machine_that_the_user_describes_is_reached_by_gcloud(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], expected: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    from ml_diagnostics_console._ssh.hosts import route_from_here  # The job is read from this machine.

    target = Target("vm-7", "vm-7", process(3, host="vm-7"))
    given_machine = dict(zip(options[::2], options[1::2], strict=True))
    machine = Machine(given_machine.get("--tpu", ""), given_machine["--zone"], given_machine.get("--project", ""))
    from .made_facts import facts

    assert route_from_here(facts(), target, [], machine).argv == expected


def test_a_tpu_without_its_zone_is_a_usage_error(capsys: Captured) -> None:
    assert ssh("llama", "host", "--tpu", "tpu-1") == 2


@pytest.fixture
def tpu(compute_server: ComputeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """A TPU with two workers, of which gcloud knows the addresses; and the ssh server of the second."""
    pytest.importorskip("asyncssh")
    if missing := [name for name in ("gcloud", "ssh", "ssh-keygen") if shutil.which(name) is None]:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    from ..loopback.ssh import SshServer, write_ssh

    node = compute_server.add_tpu("tpu-1", "us-central1-a", workers=2)
    endpoint = node["networkEndpoints"][1]
    folder = tmp_path / "vm"
    for path in (folder, tmp_path / "bin", tmp_path / "home" / ".ssh"):
        path.mkdir(parents=True)
    key = tmp_path / "home" / ".ssh" / "google_compute_engine"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with SshServer(folder=folder) as server:
        write_ssh(tmp_path / "bin", {f"{endpoint['accessConfig']['externalIp']} {endpoint['ipAddress']}": server})
        values = {
            **compute_server.environment(),
            "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
            "HOME": str(tmp_path / "home"),
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        # The test's own ssh asks about unknown hosts, and there is no terminal to answer on.
        (tmp_path / "home" / ".ssh" / "config").write_text("Host *\n  StrictHostKeyChecking no\n")
        with (tmp_path / "bin" / "ssh_config").open("a") as configuration:
            configuration.write("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
        yield server, folder


def test_a_command_runs_on_the_worker_and_no_key_is_added(
    tpu: tuple[Any, Path], compute_server: ComputeServer, capfd: Captured
) -> None:
    _, folder = tpu
    machine_with("t1v-n-0a1b-w-1", index=1, resource=of_tpu(1))
    compute_server.requests.clear()
    words = [word for word in _HOSTILE if word != "ü 漢"]
    assert ssh("llama", "t1v-n-0a1b-w-1", "--kubernetes", "off", "--", "printf", "%s\\n", *words) == 0
    assert capfd.readouterr().out == "".join(f"{word}\n" for word in words)
    changing = [request.path for request in compute_server.requests if request.method != "GET"]
    assert [path for path in changing if ":getGuestAttributes" not in path] == []
    assert not list(folder.rglob("pwned"))


@pytest.mark.slow  # gcloud tries for most of a minute.
def test_a_key_that_is_not_accepted_is_reported_with_the_command_that_adds_it(
    tpu: tuple[Any, Path], capfd: Captured
) -> None:
    server, _ = tpu
    server.authorized_keys = lambda: ""
    machine_with("t1v-n-0a1b-w-1", index=1, resource=of_tpu(1))
    assert ssh("llama", "1", "--kubernetes", "off", "--", "true") == 255
    err = capfd.readouterr().err
    assert "tpu-1, worker 1 does not accept your key, and this command adds none; to add it: gcloud compute tpus" in err


# --- Other machines ------------------------------------------------------------------------------------


def test_this_machine_needs_no_connection(capfd: Captured) -> None:
    machine_with(os.uname().nodename)
    assert ssh("llama", "0", "--kubernetes", "off") == 0
    assert "is this machine: no connection is needed" in capfd.readouterr().err
    assert ssh("llama", "0", "--kubernetes", "off", "--", "sh", "-c", "echo here; exit 4") == 4
    assert capfd.readouterr().out == "here\n"


def test_another_machine_is_reached_by_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    pytest.importorskip("asyncssh")
    from ..loopback.ssh import SshServer, write_ssh

    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    machine_with("host-3")
    with SshServer(folder=tmp_path) as server:
        write_ssh(tmp_path, {"host-3": server})
        with (tmp_path / "ssh_config").open("a") as configuration:
            configuration.write(f"  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  IdentityFile {key}\n")
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        words = [word for word in _HOSTILE if word.isascii()]
        assert ssh("llama", "host-3", "--kubernetes", "off", "--", "printf", "%s\\n", *words) == 0
    assert capfd.readouterr().out == "".join(f"{word}\n" for word in words)
    assert not (tmp_path / "pwned").exists()


def test_a_program_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    machine_with("host-3")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert ssh("llama", "host-3", "--kubernetes", "off") == 3
    assert "ssh is not installed on this machine: install the OpenSSH client" in capfd.readouterr().err


def test_a_command_that_is_interrupted_leaves_no_program_behind(tmp_path: Path) -> None:
    machine_with(os.uname().nodename)
    pid = tmp_path / "pid"
    program = f"echo $$ > {pid}; trap '' INT; echo ready >&2; sleep 60 & wait; wait"
    words = ["ssh", "llama", "0", "--kubernetes", "off", "--", "sh", "-c", program]
    command = subprocess.Popen([sys.executable, "-m", "google_cloud_mldiagnostics.cli", *words], stderr=subprocess.PIPE)
    assert command.stderr is not None
    while (line := command.stderr.readline()) != b"ready\n":  # Passed on, so the command waits for the program.
        assert line
    command.terminate()
    assert command.wait(LONG_SECONDS) == 130
    command.stderr.close()
    wait_until(lambda: not is_alive(int(pid.read_text())))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_while_the_program_is_being_started_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, moment: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_with_a_signal(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if moment == "before":
            signal.raise_signal(number)
        started.append(start(*arguments, **options))
        if moment == "after":
            signal.raise_signal(number)
        patience = iter([0.2])  # It is not waited for long before it is asked to end, and as long as it takes then.
        wait = started[-1].wait
        monkeypatch.setattr(started[-1], "wait", lambda _=None: wait(next(patience, LONG_SECONDS)))
        return started[-1]

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start_with_a_signal}))
    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_route(Route(["sleep", "60"], "host-3", "ssh"), Console(), has_command=True)
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)
    (program,) = started
    assert program.wait(LONG_SECONDS) == -signal.SIGTERM
    assert program.stderr is not None
    program.stderr.close()


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, main_thread = tmp_path / "pid", threading.get_ident()
    program = f"trap '' TERM INT; echo $$ > {pid}; exec sleep 60"

    def interrupt() -> None:
        wait_until(lambda: pid.exists() and pid.read_text().strip())
        signal.pthread_kill(main_thread, signal.SIGINT)

    monkeypatch.setattr(running, "_END_SECONDS", 0.2)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        run_route(Route(["sh", "-c", program], "host-3", "ssh"), Console(), has_command=True)
    interrupting.join()
    assert not is_alive(int(pid.read_text()))


# --- Names that could be something else ---------------------------------------------------------------


@given(_NAMES, _WORDS)
@example("-oProxyCommand=touch pwned", ["true"])
def test_a_host_of_any_name_is_one_argument_or_refused(host: str, words: list[str]) -> None:
    target = Target("name", host, process(0, host=host))
    try:
        route = route_to(target, words, cluster=None, machine=Machine(), own_host="here")
    except CommandError:
        return
    assert route.argv[-3:-1] == ["--", host]
    assert shlex.split(route.argv[-1]) == words
    assert not host.startswith("-")


@given(_NAMES, _NAMES, _NAMES)
def test_a_tpu_of_any_name_is_one_argument_or_refused(name: str, zone: str, project: str) -> None:
    target = Target("name", "vm-w-3", process(3, host="vm-w-3"))
    try:
        argv = route_to(target, [], cluster=None, machine=Machine(name, zone, project), own_host="here").argv
    except CommandError:
        return
    expected = [name, f"--zone={zone}", *([f"--project={project}"] if project else []), "--worker=3", "--plain"]
    if name:
        assert argv == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", *expected]


@given(_NAMES, _WORDS)
def test_a_pod_of_any_name_is_one_argument_or_refused(name: str, words: list[str]) -> None:
    parsed = parse_pod(pod(0, name=name, metadata={"uid": "u-1"}))
    if parsed is None:
        return
    target = Target("name", "train-0", None, parsed)
    try:
        argv = route_to(target, words, cluster=Cluster("c", "ml"), machine=Machine(), own_host="here").argv
    except CommandError:
        return
    at = argv.index("--")
    assert argv[at - 1] == f"pod/{name}"
    assert argv[at + 1 :] == words


@given(words=_WORDS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_pod_receives_exactly_the_words_of_the_command(cluster: KubernetesServer, words: list[str]) -> None:
    target = Target("train-0", "train-0", None, parse_pod(pod(0, metadata={"uid": "u-1"})))
    there = Cluster("test-cluster", "ml")
    route = route_to(
        target, ["printf", "%s\\0", *words], cluster=there, machine=Machine(), own_host="here", has_terminal=False
    )
    done = subprocess.run(route.argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words
