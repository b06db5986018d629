"""VMs by Compute's API: created once, labelled without loss, waited for, and their failures reported."""

from __future__ import annotations

from typing import Any

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotFoundError, TimedOutError, UsageError
from ml_diagnostics_testing.faults import Hang, Reset, Status
from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.settings import GcloudSettings
from xprofiler.viewers.instances import Instances

from ..loopback.compute import ComputeServer
from .viewer_vms import ZONE, add_viewer


@pytest.fixture
def instances(api: GoogleApi) -> Instances:
    return Instances(api)


def body(name: str = "xprof-a") -> dict[str, Any]:
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/c4-highmem-8",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": "projects/debian-cloud/global/images/family/d"}}],
        "networkInterfaces": [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
    }


def test_a_vm_exists_when_insert_returns(cloud: ComputeServer, instances: Instances) -> None:
    cloud.operations.seconds = 0.3
    instances.insert(ZONE, body())
    assert instances.get(ZONE, "xprof-a", "status") == {"status": "RUNNING"}


@pytest.mark.parametrize("fault", [Status(503, after_apply=True), Reset(after_apply=True), Status(502)], ids=repr)
def test_a_dropped_answer_creates_no_second_vm(
    cloud: ComputeServer, instances: Instances, fault: Status | Reset
) -> None:
    cloud.faults.script([fault], on="insert")
    instances.insert(ZONE, body())
    assert [vm["name"] for vm in cloud.instances()] == ["xprof-a"]
    assert len({record.path for record in cloud.requests_for("insert")}) == 1
    assert len(cloud.requests_for("insert")) == 2


def test_two_requests_are_two_vms(cloud: ComputeServer, instances: Instances) -> None:
    instances.insert(ZONE, body("xprof-a"))
    instances.insert(ZONE, body("xprof-b"))
    assert len({record.path for record in cloud.requests_for("insert")}) == 2
    with pytest.raises(CommandError, match="already exists"):
        instances.insert(ZONE, body("xprof-b"))


def test_a_zone_without_capacity_is_reported(cloud: ComputeServer, instances: Instances) -> None:
    cloud.fail_operations("ZONE_RESOURCE_POOL_EXHAUSTED", "not enough resources", on="insert")
    with pytest.raises(CommandError, match=r"not enough resources .* try another zone, or later"):
        instances.insert(ZONE, body())


def test_an_operation_that_never_ends_is_given_up(cloud: ComputeServer, instances: Instances) -> None:
    cloud.operations.seconds, cloud.operations.wait_seconds = float("inf"), 0.1
    with pytest.raises(TimedOutError, match=r"could not create the VM xprof-a in zone us-central1-a within 0\.5 s"):
        instances.insert(ZONE, body(), timeout_seconds=0.5)


def test_an_unanswered_wait_is_started_again(cloud: ComputeServer) -> None:
    cloud.faults.script([Hang()], on="wait")
    cloud.operations.seconds = 0.2
    api = GoogleApi(GcloudSettings.load(), Console())
    Instances(api, clock=lambda: 0.0).insert(ZONE, body(), timeout_seconds=1.0)  # The clock does not advance.
    assert len(cloud.requests_for("wait")) == 2


def test_labels_are_added_and_existing_ones_are_kept(cloud: ComputeServer, instances: Instances) -> None:
    add_viewer(cloud, "xprof-a", labels={"owner": "ann", "old": "1"})
    instances.set_labels(ZONE, "xprof-a", {"tb_backend_id": "id", "old": "2"})
    assert cloud.instance("xprof-a")["labels"] == {
        "xprofiler_version": "1-0-0",
        "owner": "ann",
        "old": "2",
        "tb_backend_id": "id",
    }


def test_a_missing_vm_is_not_found(cloud: ComputeServer, instances: Instances) -> None:
    for ask in (
        lambda: instances.get(ZONE, "xprof-z"),
        lambda: instances.delete(ZONE, "xprof-z"),
        lambda: instances.set_labels(ZONE, "xprof-z", {"a": "b"}),
    ):
        with pytest.raises(NotFoundError, match="VM xprof-z"):
            ask()


def test_zones_and_machine_types_are_known(instances: Instances) -> None:
    assert instances.zone_exists(ZONE)
    assert not instances.zone_exists("us-nowhere1-a")
    assert instances.machine_type_exists(ZONE, "c4-highmem-8")
    assert not instances.machine_type_exists("us-central2-b", "c4-highmem-8")
    assert instances.zones_with("a3-highgpu-8g") == ["us-central1-a", "us-central1-c", "us-east5-a"]
    assert instances.zones_with("c9-none-1") == []


@pytest.mark.parametrize("bad", ["", "../zones", "a/b", "A", "-a", "a-", "a" * 64, 'a"', "a b", "a\n"])
def test_invalid_names_are_not_sent(cloud: ComputeServer, instances: Instances, bad: str) -> None:
    for ask in (
        lambda: instances.get(bad, "xprof-a"),
        lambda: instances.get(ZONE, bad),
        lambda: instances.delete(ZONE, bad),
        lambda: instances.insert(bad, body()),
        lambda: instances.zone_exists(bad),
        lambda: instances.machine_type_exists(ZONE, bad),
        lambda: instances.zones_with(bad),
    ):
        with pytest.raises(UsageError, match="is not a valid name of a"):
            ask()
    assert cloud.requests == []
