"""Objects with wrong names, folders and pods end in a phase and a sentence, soon."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.xplane import read_xplane
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ...kube_api import KubeApi
from ...waiting import bound_port
from .operators import Operator, final_status, manifest, path_of, running_pod

EVERY_CHARACTER = f"{string.ascii_lowercase}.{string.digits}-0"
"""A name with each character that a name of an object may have."""


@pytest.fixture
def service() -> Iterator[ProfilerServiceServer]:
    with ProfilerServiceServer() as server:
        yield server


@pytest.fixture
def operator(connections: KubeApi, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    with Operator(connections, namespace, tmp_path) as found:
        found.wait_until_it_leads()
        yield found


def test_names_with_every_character_that_kubernetes_allows_are_captured(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    longest = ("x" * 60 + ".") * 3 + "x" * 53  # The file of a longer one has a name of more than 255 bytes.
    for pod in (EVERY_CHARACTER, longest):
        running_pod(operator.server, namespace, pod)
    pods = f"{EVERY_CHARACTER}, {longest}"
    document = manifest(namespace, EVERY_CHARACTER, pods, service.port, str(tmp_path / "ü %20?#&"))
    operator.server.call("POST", path_of(namespace), document)
    status = final_status(operator.server, namespace, EVERY_CHARACTER)
    assert status["phase"] == "Succeeded", status
    folder = Path(status["captureResult"]["outputLocation"])
    assert all(read_xplane(folder / f"{pod}.xplane.pb").is_whole for pod in (EVERY_CHARACTER, longest))


@pytest.mark.parametrize("name", ["../../etc/passwd", "W0", "w0/log", "ü", "a" * 254, ".", "w 0", "w0?x=y"])
def test_a_name_that_no_pod_can_have_is_refused_with_a_sentence(
    operator: Operator, namespace: str, tmp_path: Path, name: str
) -> None:
    document = manifest(namespace, "a", f"w0,{name}", 9999, str(tmp_path))
    operator.server.call("POST", path_of(namespace), document)
    status = final_status(operator.server, namespace, "a")
    assert status["phase"] == "Failed"
    assert status["message"].startswith("expected podName to have names of pods, separated by commas, got ")


def test_10000_names_of_pods_are_refused_with_a_sentence(operator: Operator, namespace: str, tmp_path: Path) -> None:
    pods = ",".join(f"w{number}" for number in range(10_000))
    operator.server.call("POST", path_of(namespace), manifest(namespace, "a", pods, 9999, str(tmp_path)))
    status = final_status(operator.server, namespace, "a")
    assert status["message"] == "expected at most 256 pods, got 10000: create several objects"


def test_256_pods_of_which_none_is_there_fail_with_the_first_of_them(
    operator: Operator, namespace: str, tmp_path: Path
) -> None:
    pods = ",".join(f"w{number}" for number in range(256))
    operator.server.call("POST", path_of(namespace), manifest(namespace, "a", pods, 9999, str(tmp_path)))
    status = final_status(operator.server, namespace, "a")
    lines = status["captureResult"]["errorMessage"].splitlines()
    assert lines[0] == f"w0: there is no pod of this name in the namespace {namespace}"
    assert (len(lines), lines[-1]) == (11, "and 246 more")


def test_a_folder_in_which_no_process_may_write_is_the_message(
    operator: Operator, namespace: str, service: ProfilerServiceServer
) -> None:
    running_pod(operator.server, namespace, "w0")
    document = manifest(namespace, "a", "w0", service.port, "/proc/profiles")
    operator.server.call("POST", path_of(namespace), document)
    status = final_status(operator.server, namespace, "a")
    assert status["phase"] == "Failed"
    assert "/proc/profiles/plugins/profile/a-" in status["captureResult"]["errorMessage"]
    assert "No such file or directory" in status["captureResult"]["errorMessage"]


def test_a_pod_without_a_profiler_server_is_the_message(operator: Operator, namespace: str, tmp_path: Path) -> None:
    running_pod(operator.server, namespace, "w0")
    with bound_port() as port:
        operator.server.call("POST", path_of(namespace), manifest(namespace, "a", "w0", port, str(tmp_path)))
        status = final_status(operator.server, namespace, "a")
    assert status["phase"] == "Failed"
    assert "answers there within 5 s: is the job running" in status["captureResult"]["errorMessage"]


def test_two_objects_for_one_pod_at_the_same_time_both_get_a_profile(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    for pod in ("w0", "w1"):
        running_pod(operator.server, namespace, pod)
    for name, pods in (("a", "w0,w1"), ("b", "w1,w0")):
        document = manifest(namespace, name, pods, service.port, str(tmp_path), seconds=1)
        operator.server.call("POST", path_of(namespace), document)
    assert {final_status(operator.server, namespace, name)["phase"] for name in ("a", "b")} == {"Succeeded"}
