"""The API server fails, also together with operators and connections: every object ends in a phase, captured once."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from google_cloud_mldiagnostics._kubernetes.names import CLAIMED_BY
from ml_diagnostics_common.xplane import read_xplane
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ...kube_api import KubeApi, UnavailableError, shared_server
from ...waiting import wait_until
from .faulty_api import FaultyApi
from .frozen_connections import FreezingProxy
from .operators import Deployment, Operator, add_connections, final_status, manifest, path_of, running_pod

NAMESPACE = "chaos"
PODS = 10


@pytest.fixture
def own_api(tmp_path: Path) -> Iterator[KubeApi]:
    """Start an API server that the test may kill."""
    try:
        with shared_server(tmp_path / "kube-api") as server:
            add_connections(server)
            server.apply("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            yield server
    except UnavailableError as error:
        pytest.skip(f"no Kubernetes API server: {error}")


@pytest.fixture
def services() -> Iterator[list[ProfilerServiceServer]]:
    """Start the profiler server of each pod."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ProfilerServiceServer()) for _ in range(PODS)]


class Objects:
    """Objects of a namespace, each for one of ten pods, and what was seen of them.

    Attributes:
        deleted: The objects that were deleted, by their phase at that time.
        claims: The operators that claimed each object.
    """

    def __init__(
        self, server: KubeApi, namespace: str, location: Path, services: list[ProfilerServiceServer], count: int
    ) -> None:
        self._server = server
        self._namespace = namespace
        self._location = location
        self._services = services
        self._names = [f"a{number}" for number in range(count)]
        self._created = 0
        self.deleted: dict[str, str] = {}
        self.claims: dict[str, set[str]] = {}
        for number in range(len(services)):
            running_pod(server, namespace, f"w{number}")

    def create(self, count: int) -> None:
        """Create the next objects."""
        for name in self._names[self._created : self._created + count]:
            number = int(name[1:]) % len(self._services)
            document = manifest(self._namespace, name, f"w{number}", self._services[number].port, str(self._location))
            self._server.call("POST", path_of(self._namespace), document)
        self._created = min(len(self._names), self._created + count)

    def poll(self) -> dict[str, str]:
        """Return the phase of each object that is not final, and note which operator claimed which."""
        found = self._server.call("GET", path_of(self._namespace))["items"]
        for each in found:
            # An operator that ends between the two writes of a claim leaves its name, and has claimed nothing.
            claimed = each["metadata"].get("annotations", {}).get(CLAIMED_BY, "") if phase_of(each) == "Running" else ""
            self.claims.setdefault(each["metadata"]["name"], set()).update(claimed.split())
        return {each["metadata"]["name"]: phase for each in found if (phase := phase_of(each)) not in _FINAL}

    def delete(self, name: str, phase: str) -> None:
        """Delete an object, of a phase."""
        self.deleted[name] = phase
        self._server.call("DELETE", path_of(self._namespace, name))

    @property
    def are_all_created(self) -> bool:
        """True if there are no more to create."""
        return self._created == len(self._names)

    def check(self) -> dict[str, int]:
        """Check that each has a final phase, was captured once, and has a whole profile if it has one."""
        found = self._server.call("GET", path_of(self._namespace))["items"]
        assert {each["metadata"]["name"] for each in found} == {*self._names} - {*self.deleted}
        assert [each for each in found if phase_of(each) not in _FINAL] == []
        succeeded = [each["status"] for each in found if phase_of(each) == "Succeeded"]
        assert all(profiles_are_whole(status) for status in succeeded)
        assert [name for name, operators in self.claims.items() if len(operators) > 1] == []
        taken = [each.session_id for service in self._services for each in service.profiles if each.began_ns]
        assert len(taken) == len(set(taken))
        return {"Succeeded": len(succeeded), "Failed": len(found) - len(succeeded)}


_FINAL = ("Succeeded", "Failed")


def phase_of(document: dict[str, Any]) -> str:
    """Return the phase of an object; empty before the first."""
    return str(document.get("status", {}).get("phase", ""))


def profiles_are_whole(status: dict[str, Any]) -> bool:
    """Return True if the files of an object that succeeded are whole."""
    files = [*Path(status["captureResult"]["outputLocation"]).glob("*.xplane.pb")]
    return bool(files) and all(read_xplane(file).is_whole for file in files)


def kill_for(server: KubeApi, seconds: float) -> None:
    """Kill the API server, and start it again after some seconds."""
    server.kill()
    time.sleep(seconds)
    server.start_again()
    server.wait_until_served(path_of(NAMESPACE))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 30, 90])
def test_an_api_server_that_was_killed_for_some_time_leaves_no_object_without_a_phase(
    own_api: KubeApi, tmp_path: Path, services: list[ProfilerServiceServer], seconds: float
) -> None:
    objects = Objects(own_api, NAMESPACE, tmp_path, services, 12)
    with Deployment(1, lambda: Operator(own_api, NAMESPACE, tmp_path)) as deployment:
        objects.create(10)
        wait_until(lambda: any(service.profiles for service in services))
        kill_for(own_api, seconds)
        objects.create(2)
        wait_until(lambda: not objects.poll(), 60)
        assert objects.check()["Succeeded"] >= 2, deployment.log
        assert "a bug in" not in deployment.log


@pytest.mark.slow
def test_dropped_answers_and_events_that_are_dropped_or_repeated_neither_stop_nor_repeat_a_capture(
    connections: KubeApi, namespace: str, tmp_path: Path, services: list[ProfilerServiceServer]
) -> None:
    objects = Objects(connections, namespace, tmp_path, services, 60)
    with (
        FaultyApi(connections, refused=0.1, lost=0.1, dropped=0.3, doubled=0.3) as faulty,
        Operator(connections, namespace, tmp_path, url=faulty.url, watch_seconds=3) as operator,
    ):
        objects.create(60)
        wait_until(lambda: not objects.poll(), 120, running=operator.process)
        assert objects.check() == {"Succeeded": 60, "Failed": 0}, operator.log
        assert faulty.faults > 60
        assert "Traceback" not in operator.log


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Succeeded"])
def test_an_object_that_is_deleted_in_any_phase_ends_and_the_next_of_its_name_is_captured(
    connections: KubeApi, namespace: str, tmp_path: Path, services: list[ProfilerServiceServer], phase: str
) -> None:
    running_pod(connections, namespace, "w0")
    document = manifest(namespace, "a", "w0", services[0].port, str(tmp_path), seconds=2)
    others = [manifest(namespace, "b", "w0", services[0].port, str(tmp_path), seconds=1)] * (phase == "Pending")

    def has_phase() -> bool:
        return phase_of(connections.call("GET", path_of(namespace, "a"))) == phase

    with Operator(connections, namespace, tmp_path, policy={"most_captures": 1}) as operator:
        if phase:
            operator.wait_until_it_leads()
        for each in (*others, document):
            connections.call("POST", path_of(namespace), each)
        wait_until(has_phase)
        connections.call("DELETE", path_of(namespace, "a"))
        connections.call("POST", path_of(namespace), document)
        status = final_status(connections, namespace, "a")
        assert status["phase"] == "Succeeded", operator.log
        assert profiles_are_whole(status)
        assert "Traceback" not in operator.log


@dataclass
class Chaos:
    """Faults of operators, their connections and the API server, at random moments.

    Attributes:
        happened: How often each fault happened.
    """

    server: KubeApi
    proxy: FreezingProxy
    deployment: Deployment
    random: random.Random
    happened: dict[str, int] = field(default_factory=dict)

    def happen(self) -> None:
        """Let nothing happen, mostly, or one fault."""
        number = self.random.random()
        if number < 0.03:
            self._count("operator killed")
            self.deployment.kill(self.random.randrange(2))
        elif number < 0.05:
            self._count("connections frozen")
            self.proxy.freeze()
        elif number < 0.06:
            self._count("API server killed")
            kill_for(self.server, self.random.choice([0, 5, 20]))

    def _count(self, fault: str) -> None:
        self.happened[fault] = self.happened.get(fault, 0) + 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_object_of_1000_is_left_without_a_phase_or_claimed_twice_whatever_fails(
    own_api: KubeApi, tmp_path: Path, services: list[ProfilerServiceServer]
) -> None:
    rng = random.Random(7)
    objects = Objects(own_api, NAMESPACE, tmp_path, services, 1000)
    port = int(urlsplit(own_api.url).port or 0)
    deadline = time.monotonic() + 2400
    with (
        FreezingProxy(port) as proxy,
        Deployment(2, lambda: behind(proxy, own_api, tmp_path)) as deployment,
    ):
        chaos = Chaos(own_api, proxy, deployment, rng)
        while time.monotonic() < deadline:
            objects.create(20)
            open_objects = objects.poll()
            if objects.are_all_created and not open_objects:
                break
            if open_objects and rng.random() < 0.3:
                objects.delete(*rng.choice([*open_objects.items()]))
            chaos.happen()
            time.sleep(0.5)
        ended = objects.check()
    print(_listed({**ended, "deleted": len(objects.deleted)}), end="; ")  # A row of the benchmark's table.
    print(_listed(chaos.happened), end="; ")
    print("phases of the deleted:", _listed(Counter(phase or "none" for phase in objects.deleted.values())))
    assert ended["Succeeded"] > 500
    assert len(chaos.happened) == 3
    assert {*objects.deleted.values()} >= {"Pending", "Running"}


def behind(proxy: FreezingProxy, server: KubeApi, folder: Path) -> Operator:
    """Return an operator with connections that can be frozen."""
    return Operator(server, NAMESPACE, folder, url=f"https://127.0.0.1:{proxy.port}", watch_seconds=5)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
