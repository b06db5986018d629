"""Names and paths that resemble flags or programs: they are passed on unchanged, or are refused.

10,000 of them in the argv that a real program receives; 300 names of pods, namespaces, containers and paths through the
real kubectl, and 30 of VMs and zones through the real gcloud.
"""

from __future__ import annotations

import functools
import itertools
import os
import shlex
import shutil
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, UsageError
from ml_diagnostics_common.storage import LocalStorage
from ml_diagnostics_testing._xspace import xspace
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer
from xprofiler.capture.collecting import Collector
from xprofiler.capture.machines import MachineAccess
from xprofiler.capture.pods import PodAccess, find_pods
from xprofiler.capture.session import Destination, Session
from xprofiler.capture.targets import Target, addresses
from xprofiler.gcloud import command_lines, kubectl
from xprofiler.gcloud.processes import Programs
from xprofiler.log_directory import LogDirectory

from ..loopback.compute import ComputeServer, vm_addresses
from ..loopback.kubernetes import KubernetesServer
from .captures import capture_command, session_of

_ATTACKS = (
    "'; touch pwned; echo '",
    '"; touch pwned; echo "',
    "$(touch pwned)",
    "`touch pwned`",
    "a\ntouch pwned\n",
    "| touch pwned",
    "&& touch pwned",
    "> pwned",
    "--",
    "-n",
    "--help",
    "--kubeconfig=/dev/null",
    "--context=other",
    "--command=touch pwned",
    "--impersonate-service-account=other",
    "-oProxyCommand=touch pwned",
    "user@host",
    "pod/other",
    "../../etc/passwd",
    "*",
    "~",
    "%s%n",
    "a b",
    " ",
    "",
    "\\",
    "é\u2028😀",
)
_SPECIAL = "'\"`$(){}[];&|<>*?!#~\\ \n\t\r-=%/.,:@a0Zé\u2028😀"
_ANY = st.one_of(
    st.sampled_from(_ATTACKS),
    st.text(st.sampled_from(_SPECIAL), max_size=40),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
    st.text(st.sampled_from("abc-09"), min_size=1, max_size=20),
)
_NAMES = st.one_of(_ANY, st.text(st.sampled_from("abcxyz019-_.AZ"), min_size=1, max_size=30))  # Half are valid.
_QUICK = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], database=None
)
_REAL = settings(_QUICK, phases=[Phase.explicit, Phase.generate])  # Shrinking a failure would take minutes.
_PRINT = ("printf", "%s\\0")


def read_as_program(argv: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Parse arguments as a program does: return flags, positional arguments, and those after `--`."""
    flags: dict[str, str] = {}
    words: list[str] = []
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            return flags, words, rest
        if word.startswith("-"):
            name, _, value = word.partition("=")
            flags[name] = value
        else:
            words.append(word)
    return flags, words, []


def received(*argvs: Sequence[str]) -> list[str]:
    """Return the arguments that a program receives when it is started with these."""
    with Programs(Console()) as programs:
        # Without arguments, printf still prints once.
        return arguments_in(programs.run([*_PRINT, *itertools.chain.from_iterable(argvs), "end"]).output)[:-1]


def arguments_in(output: bytes) -> list[str]:
    return output.decode().split("\0")[:-1]


# --- 10,000 that a program receives ---------------------------------------------------------------


@given(st.lists(_ANY, min_size=20, max_size=20))
@settings(_QUICK, max_examples=500)
def test_kubectl_is_started_with_exactly_the_given_names(names: list[str]) -> None:
    built = []
    for name, program in zip(names, itertools.pairwise(names), strict=False):
        for build in (_in_namespace, _with_context, _pod_forwarded, _pod_asked, _in_container):
            try:
                argv, flags, words = build(name)
            except UsageError:
                continue
            found_flags, found_words, _ = read_as_program(argv)
            assert flags.items() <= found_flags.items()
            assert found_words == words
            assert set(found_flags) <= _KUBECTL_FLAGS
            built.append(argv)
        argv = kubectl.execute(kubectl.Cluster(), "pod", program)
        assert read_as_program(argv)[2] == list(program)
        built.append(argv)
    assert received(*built) == list(itertools.chain.from_iterable(built))


_KUBECTL_FLAGS = {
    "--address",
    "--container",
    "--context",
    "--ignore-not-found",
    "--namespace",
    "--output",
    "--quiet",
    "--stdin",
}
_Built = tuple[list[str], dict[str, str], list[str]]


def _in_namespace(name: str) -> _Built:
    argv = kubectl.get(kubectl.Cluster(namespace=name), "pod", ["pod-1"])
    return argv, {"--namespace": name}, ["get", "pod", "pod-1"]


def _with_context(name: str) -> _Built:
    argv = kubectl.get(kubectl.Cluster(context=name), "pod", ["pod-1"])
    return argv, {"--context": name}, ["get", "pod", "pod-1"]


def _pod_forwarded(name: str) -> _Built:
    argv = PodAccess(kubectl.Cluster(), name).forward(40000, 9012)
    return argv, {}, ["port-forward", f"pod/{name}", "40000:9012"]


def _pod_asked(name: str) -> _Built:
    argv = kubectl.get(kubectl.Cluster(), "pod", ["pod-1", name])
    return argv, {}, ["get", "pod", "pod-1", name]


def _in_container(name: str) -> _Built:
    argv = PodAccess(kubectl.Cluster(), "pod-1", name).execute(["true"])
    return argv, {"--container": name}, ["exec", "pod/pod-1"]


@given(st.lists(_ANY, min_size=20, max_size=20))
@settings(_QUICK, max_examples=500)
def test_gcloud_is_started_with_exactly_the_given_names(names: list[str]) -> None:
    built = []
    for name, program in zip(names, itertools.pairwise(names), strict=False):
        for target in (
            command_lines.SshTarget(name, "zone"),
            command_lines.SshTarget("vm", name),
            command_lines.SshTarget("vm", "z", name),
        ):
            try:
                argv = MachineAccess(target).execute(program)
            except UsageError:
                continue
            flags, words, rest = read_as_program(argv)
            assert words == ["compute", "ssh", target.name]
            assert flags["--zone"] == target.zone
            assert flags.get("--project") == target.project
            assert set(flags) <= {"--zone", "--project", "--command", "--quiet"}
            assert shlex.split(flags["--command"]) == list(program)
            assert not rest
            built.append(argv)
    assert received(*built) == list(itertools.chain.from_iterable(built))


@given(st.lists(_ANY, min_size=20, max_size=20))
@settings(_QUICK, max_examples=500)
def test_a_log_directory_and_an_address_are_used_exactly_or_refused(names: list[str]) -> None:
    for name in names:
        for text in (name, f"gs://bucket/{name}", f"gs://{name}/run"):
            try:
                taken = LogDirectory.parse(text, may_be_local=True)
            except UsageError:
                continue
            assert taken.path == (text.rstrip("/") or "/")
            assert taken.capture_root.startswith(taken.path.rstrip("/"))
        try:
            (target,) = addresses([name], 9012).targets
        except UsageError:
            continue
        assert target.address in (name, f"{name}:9012")
        assert "/" not in target.file_name
        assert not target.file_name.isspace()


@pytest.mark.parametrize("argument", ["a\0b", "\ud800"])
def test_arguments_that_no_program_can_receive_are_refused(argument: str) -> None:
    with Programs(Console()) as programs, pytest.raises(CommandError, match="cannot start"):
        programs.run(["printf", argument])


# --- 300 through the real kubectl ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesServer]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on this machine")
    with KubernetesServer() as server:
        server.add_pod("pod-1")
        yield server


def possible(names: Sequence[str]) -> list[str]:
    """Return the names that an object in a cluster could have."""
    return [name for name in names if not refuses(functools.partial(kubectl.checked_name, name, "pod"))]


def in_pod_9(namespace: str, container: str) -> list[str]:
    return PodAccess(kubectl.Cluster(namespace), "pod-9", container).execute([*_PRINT, "here"])


def refuses(build: Callable[[], object]) -> bool:
    try:
        build()
    except UsageError:
        return True
    return False


@given(st.lists(_NAMES, min_size=20, max_size=20, unique=True))
@settings(_REAL, max_examples=10)
def test_pods_of_all_names_are_found_or_their_names_refused(cluster: KubernetesServer, names: list[str]) -> None:
    """200 names of pods."""
    pods = possible(names)
    if not pods:
        return
    for name in pods:
        cluster.add_pod(name)
    with Programs(Console(), {**os.environ, **cluster.environment()}) as programs:
        found = find_pods([*pods, "no-such-pod"], kubectl.Cluster(), None, 9012, programs)
    assert [target.name for target in found.targets] == pods
    assert list(found.missing) == ["no-such-pod"]


@given(_NAMES, _NAMES)
@settings(_REAL, max_examples=25)
def test_a_namespace_and_a_container_of_any_name_are_reached_or_refused(
    cluster: KubernetesServer, namespace: str, container: str
) -> None:
    """50 names; a refused one is replaced by a valid one, so that the other one is tested."""
    for named, inside in ((namespace, "main"), ("default", container)):
        if not possible([named, inside])[1:]:
            assert refuses(functools.partial(in_pod_9, named, inside))
    (named, inside) = (*possible([namespace]), "default")[0], (*possible([container]), "main")[0]
    cluster.add_pod("pod-9", namespace=named, containers=("first", inside))
    with Programs(Console(), {**os.environ, **cluster.environment()}) as programs:
        ended = programs.run(in_pod_9(named, inside))
    assert (ended.exit_code, arguments_in(ended.output)) == (0, ["here"]), ended.complaint
    assert cluster.pod("pod-9", named).commands[-1].container == inside


@given(_ANY.filter(lambda name: "/" not in name and name not in ("", ".", "..")))
@settings(_REAL, max_examples=50)
def test_a_file_of_any_name_is_fetched_from_a_pod(
    cluster: KubernetesServer, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """50 paths."""
    folder, there = tmp_path_factory.mktemp("pod"), tmp_path_factory.mktemp("here")
    staged, session = Session(str(folder), "session"), Session(str(there), "session")
    target = Target("pod-1", name, 9012, access=PodAccess(kubectl.Cluster(), "pod-1"))
    data = xspace("host", 1, 100)
    LocalStorage().write(staged.path_of(name), data)
    with Programs(Console(), {**os.environ, **cluster.environment()}) as programs:
        (outcome,) = Collector(session, LocalStorage(), programs).collect([(target, Destination(staged.root, False))])
    assert outcome.problem == ""
    assert Path(session.path_of(name)).read_bytes() == data
    assert not list(cluster.pod("pod-1").folder.rglob("pwned"))


@given(st.lists(_ANY, min_size=20, max_size=20))
@settings(_REAL, max_examples=5)
def test_a_program_in_a_pod_receives_exactly_its_arguments(cluster: KubernetesServer, names: list[str]) -> None:
    with Programs(Console(), {**os.environ, **cluster.environment()}) as programs:
        ended = programs.run(PodAccess(kubectl.Cluster(), "pod-1").execute([*_PRINT, *names]))
    assert ended.exit_code == 0, ended.complaint
    assert arguments_in(ended.output) == names
    assert not list(cluster.pod("pod-1").folder.rglob("pwned"))


@pytest.mark.parametrize(
    "context", ["gke_project_us-central1_name", "; touch pwned", "$(touch pwned)", "--help", "a b"]
)
def test_a_context_is_found_whatever_it_is_called(cluster: KubernetesServer, context: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(cluster.kubeconfig(context=context))
    environment = {**os.environ, **cluster.environment(), "KUBECONFIG": str(tmp_path / "config")}
    with Programs(Console(), environment) as programs:
        ended = programs.run(kubectl.get(kubectl.Cluster(context=context), "pod", ["pod-1"]))
    assert ended.exit_code == 0, ended.complaint
    assert b'"pod-1"' in ended.output


@pytest.mark.parametrize(
    "run", ["r';touch pwned;echo '", "$(touch pwned) `touch pwned`", '--help "; touch pwned #', "%2e%2e"]
)
def test_the_job_receives_exactly_the_log_directory(
    cluster: KubernetesServer,
    cloud_storage_server: CloudStorageServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    run: str,
) -> None:
    pytest.importorskip("grpc")
    monkeypatch.chdir(tmp_path)
    cloud_storage_server.create_bucket("bucket")
    settings = {"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true", "CLOUDSDK_CORE_PROJECT": "test-project"}
    for name, value in {**cluster.environment(), **cloud_storage_server.environment(), **settings}.items():
        monkeypatch.setenv(name, value)
    with ProfilerServiceServer() as job:
        job.has_bucket_access = False  # So its file is also fetched from the pod.
        cluster.add_pod("pod-2", ports={9012: job.port})
        ran = capture_command(capsys)("-o", "gke", "-l", f"gs://bucket/{run}", "-n", "pod-2", "-d", 50)
    assert ran.code == 0, ran.errors
    root = f"{run}/tensorboard/plugins/profile"
    assert job.profiles[0].root == f"gs://bucket/{root}"
    assert cloud_storage_server.names("bucket") == [f"{root}/{session_of(ran)}/pod-2.xplane.pb"]
    assert f"Profile saved to gs://bucket/{run}/tensorboard and session id is {session_of(ran)}." in ran.output
    assert not list(tmp_path.rglob("pwned"))
    assert not list(cluster.pod("pod-2").folder.rglob("pwned"))


# --- 30 through the real gcloud -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def compute() -> Iterator[ComputeServer]:
    with ComputeServer() as server:
        yield server


@pytest.fixture(scope="module")
def machine(compute: ComputeServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder in which programs run on the VM vm-1, and the environment in which gcloud connects to that VM."""
    pytest.importorskip("asyncssh")
    from ..loopback import ssh

    missing = [program for program in ("gcloud", "ssh", "ssh-keygen") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("vm")
    own = {name: tmp_path_factory.mktemp(name) for name in ("gcloud", "home", "bin")}
    with ssh.SshServer(folder=folder) as server:
        ssh.write_ssh(own["bin"], {vm_addresses(compute.add_instance("vm-1")): server})
        settings = {
            "CLOUDSDK_CONFIG": str(own["gcloud"]),
            "HOME": str(own["home"]),
            "PATH": f"{own['bin']}{os.pathsep}{os.environ['PATH']}",
        }
        environment = {**os.environ, **compute.environment(), **settings}
        route = MachineAccess(command_lines.SshTarget("vm-1", "us-central1-a"))
        with Programs(Console(), environment) as programs:
            programs.run(route.execute(["true"]))  # gcloud creates its key, and reports this on standard output.
        yield folder, environment


_MAY_BE_HOSTS = st.one_of(_ANY, st.from_regex(r"[a-z]([-_a-z0-9]{0,20}[a-z0-9])?", fullmatch=True))


@given(_MAY_BE_HOSTS, _MAY_BE_HOSTS.map(lambda zone: zone.replace("_", "-")))
@settings(_REAL, max_examples=15)
def test_vms_and_zones_of_all_names_are_searched_for_or_refused(
    machine: tuple[Path, dict[str, str]], compute: ComputeServer, name: str, zone: str
) -> None:
    """30 names; a refused one is replaced by a valid one, so that the other one is tested."""
    folder, environment = machine
    routes = [command_lines.SshTarget(name, "us-central1-a"), command_lines.SshTarget("vm-x", zone)]
    is_refused = [refuses(functools.partial(command_lines.ssh, route)) for route in routes]
    if all(is_refused):
        return
    target = command_lines.SshTarget("vm-x" if is_refused[0] else name, "us-central1-a" if is_refused[1] else zone)
    compute.requests.clear()
    with Programs(Console(), environment) as programs:
        programs.run(MachineAccess(target).execute(["true"]))
    paths = [urllib.parse.urlsplit(request.path).path for request in compute.requests]
    asked = [path for path in paths if "/instances" in path]
    assert asked, paths
    instance = target.name.rpartition("@")[2]  # gcloud takes `user@vm`, too.
    assert all(path.endswith(f"/zones/{target.zone}/instances/{instance}") for path in asked), asked
    assert not list(folder.rglob("pwned"))


@given(st.lists(_ANY, min_size=10, max_size=10))
@settings(_REAL, max_examples=1)
def test_a_program_on_a_vm_receives_exactly_its_arguments(
    machine: tuple[Path, dict[str, str]], names: list[str]
) -> None:
    folder, environment = machine
    with Programs(Console(), environment) as programs:
        route = MachineAccess(command_lines.SshTarget("vm-1", "us-central1-a"))
        ended = programs.run(route.execute([*_PRINT, *names]))
    assert ended.exit_code == 0, ended.complaint
    assert arguments_in(ended.output) == names
    assert not list(folder.rglob("pwned"))
