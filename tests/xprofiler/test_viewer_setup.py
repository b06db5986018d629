"""The setup of a viewer VM with a simulated clock: its return, its timeouts, and the failures that it detects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, TimedOutError
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.storage import GoogleCloudStorage
from ml_diagnostics_testing.faults import Reset, Status
from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.settings import GcloudSettings
from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.plan import ViewerPlan
from xprofiler.viewers.setup import SetupTimes, ViewerSetup

from ..loopback.compute import ComputeServer
from .viewer_cloud import INSTALLING, LOGS, READY, ZONE, ViewerCloud


class Scene:
    """A setup of a VM with a simulated clock: events happen when the clock passes them."""

    def __init__(self, cloud: ViewerCloud, times: SetupTimes | None = None) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.events: list[tuple[float, Callable[[], object]]] = []
        environ = cloud.environment()
        api = GoogleApi(GcloudSettings.load(environ), Console(), sleep=self.sleep)
        self.plan = ViewerPlan("xprof-1", ZONE, "c4-highmem-8", LogDirectory.parse(LOGS))
        self.instances = Instances(api, clock=self.clock, sleep=self.sleep)
        self.storage = GoogleCloudStorage(environ=environ, deadline_seconds=60.0, clock=self.clock, sleep=self.sleep)
        self.setup = ViewerSetup(
            self.plan,
            self.instances,
            lambda: self.storage,
            Console(),
            times or SetupTimes(),
            clock=self.clock,
            sleep=self.pause,
        )

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()

    def pause(self, seconds: float) -> None:
        self.sleep(seconds)
        self.pauses.append(seconds)

    def make(self) -> None:
        self.setup.make()


@pytest.fixture
def cloud(compute_server: ComputeServer, tmp_path: Path) -> ViewerCloud:
    cloud = ViewerCloud(compute_server, tmp_path)
    cloud.statuses = []
    return cloud


@pytest.mark.parametrize("ready_at", [0.0, 1.9, 33.3, 120.5, 299.0])
def test_it_returns_within_two_seconds_of_the_first_healthy_answer(cloud: ViewerCloud, ready_at: float) -> None:
    scene = Scene(cloud)
    scene.events = [(ready_at, lambda: cloud.set_status("xprof-1", READY))]
    scene.make()
    assert ready_at <= scene.now <= ready_at + 2.0


def test_it_does_not_wait_for_the_labels(cloud: ViewerCloud) -> None:
    scene = Scene(cloud)
    scene.events = [(5.0, lambda: (cloud.set_status("xprof-1", READY), _slow_operations(cloud)))]
    scene.make()
    assert scene.now <= 7.0
    assert not [request for request in cloud.compute.requests if request.operation == "wait"]


def _slow_operations(cloud: ViewerCloud) -> None:
    cloud.compute.operations.seconds = 5.0


def test_it_waits_for_the_given_time_and_names_the_step(cloud: ViewerCloud) -> None:
    scene = Scene(cloud, SetupTimes(startup=90.0))
    scene.events = [(3.0, lambda: cloud.set_status("xprof-1", INSTALLING))]
    with pytest.raises(TimedOutError, match="its last step was: installing XProf"):
        scene.make()
    assert 90.0 <= scene.now <= 92.0


def test_a_vm_that_was_deleted_is_not_waited_for(cloud: ViewerCloud) -> None:
    scene = Scene(cloud)
    scene.events = [(12.0, lambda: cloud.compute.remove_instance("xprof-1"))]
    with pytest.raises(CommandError, match="was deleted while"):
        scene.make()
    assert scene.now < 30.0
    assert scene.setup.remove() is None


def test_a_vm_that_stops_is_not_waited_for(cloud: ViewerCloud) -> None:
    scene = Scene(cloud)
    scene.events = [(12.0, lambda: cloud.compute.change_instance("xprof-1", status="TERMINATED"))]
    with pytest.raises(CommandError, match="was stopped while"):
        scene.make()
    assert scene.now < 30.0


def test_a_network_that_recovers_is_waited_for(cloud: ViewerCloud) -> None:
    scene = Scene(cloud)
    faults = cloud.compute.storage.faults
    scene.events = [
        (10.0, lambda: faults.always(Reset())),
        (40.0, faults.clear),
        (50.0, lambda: cloud.set_status("xprof-1", READY)),
    ]
    scene.make()
    assert scene.now <= 62.0


def test_without_a_network_it_ends_and_reports_what_may_remain(cloud: ViewerCloud) -> None:
    scene = Scene(cloud)
    scene.events = [
        (10.0, lambda: (cloud.compute.storage.faults.always(Reset()), cloud.compute.faults.always(Reset())))
    ]
    with pytest.raises((StorageError, CommandError)):
        scene.make()
    assert scene.setup.may_exist
    before = scene.now
    why = scene.setup.remove()
    assert why is not None
    assert scene.now - before >= 120.0
    cloud.compute.faults.clear()
    assert scene.setup.remove() is None
    assert cloud.names() == []


def test_an_earlier_status_of_a_vm_of_that_name_is_ignored(cloud: ViewerCloud) -> None:
    cloud.set_status("xprof-1", READY)
    scene = Scene(cloud)
    scene.setup.check()
    scene.events = [(20.0, lambda: cloud.set_status("xprof-1", READY))]
    scene.make()
    assert 20.0 <= scene.now <= 22.0


def test_the_first_check_is_after_two_seconds_and_none_is_later_than_the_target(cloud: ViewerCloud) -> None:
    scene = Scene(cloud, SetupTimes(startup=30.0))
    storage = cloud.compute.storage
    before = len(storage.requests)
    with pytest.raises(TimedOutError):
        scene.make()
    assert scene.pauses[0] == 2.0
    assert max(scene.pauses) <= 2.0
    assert len(storage.requests) - before <= 20


def test_a_foreign_vm_of_that_name_is_left_alone(cloud: ViewerCloud) -> None:
    scene = Scene(cloud)
    cloud.add_viewer("xprof-1", labels={"xprofiler_version": "1-0-0", "xprofiler_creation": "another"})
    scene.setup.may_exist = True
    assert scene.setup.remove() is None
    assert cloud.names() == ["xprof-1"]


def test_a_vm_that_is_not_ready_to_be_deleted_is_deleted_later(cloud: ViewerCloud) -> None:
    scene = Scene(cloud)
    scene.instances.insert(ZONE, scene.plan.body())
    cloud.compute.faults.script([Status(400), Status(409)], on="delete")
    assert scene.setup.remove() is None
    assert cloud.names() == []
