"""The loopback Compute, asked by Google's own client."""

import json
import math
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import httplib2
import pytest
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_testing.faults import Reset, Status

from ..loopback.compute import ComputeServer, metadata_of

PROJECT = "test-project"
ZONE = "us-central1-a"
VM = {
    "name": "xprof-1",
    "machineType": f"zones/{ZONE}/machineTypes/c4-highmem-8",
    "disks": [
        {"boot": True, "initializeParams": {"sourceImage": "projects/debian-cloud/global/images/family/debian-12"}}
    ],
    "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
    "labels": {"xprofiler_version": "1-0-0"},
    "metadata": {"items": [{"key": "xprofiler_log_directory", "value": "gs://b/a,b='c'"}]},
}

FIELDS = [
    *VM,
    "items",
    "key",
    "value",
    "accessConfigs",
    "natIP",
    "tags",
    "scheduling",
    "fingerprint",
    "labelFingerprint",
]


@pytest.fixture
def compute(compute_server: ComputeServer) -> Iterator[Any]:
    client = build(
        "compute",
        "v1",
        http=httplib2.Http(),
        static_discovery=True,
        cache_discovery=False,
        client_options={"api_endpoint": f"{compute_server.url}/compute/v1/"},
    )
    yield client
    client.close()


def insert(compute: Any, zone: Any = ZONE, request_id: Any = None, **fields: Any) -> Any:
    kind = fields.pop("kind", "c4-highmem-8")
    body = {**VM, "machineType": f"zones/{zone}/machineTypes/{kind}", **fields}
    return compute.instances().insert(project=PROJECT, zone=zone, body=body, requestId=request_id).execute()


def wait(compute: Any, operation: Any, zone: Any = ZONE) -> Any:
    return compute.zoneOperations().wait(project=PROJECT, zone=zone, operation=operation["name"]).execute()


def get(compute: Any, name: str = "xprof-1", zone: Any = ZONE) -> Any:
    return compute.instances().get(project=PROJECT, zone=zone, instance=name).execute()


def names_of(page: Any) -> Any:
    return {vm["name"] for scope in page["items"].values() for vm in scope.get("instances", [])}


def refusal(call: Any, *arguments: Any, **fields: Any) -> Any:
    with pytest.raises(HttpError) as caught:
        call(*arguments, **fields)
    return caught.value.resp.status, caught.value.reason


# --- VMs -------------------------------------------------------------------------------------------------


def test_a_vm_is_made_found_labelled_and_deleted(compute: Any, compute_server: ComputeServer) -> None:
    operation = wait(compute, insert(compute))
    assert (operation["status"], operation["operationType"]) == ("DONE", "insert")
    vm = get(compute)
    assert operation["targetLink"] == vm["selfLink"]
    assert operation["targetId"] == vm["id"]
    assert vm["status"] == "RUNNING"
    assert vm["networkInterfaces"][0]["accessConfigs"][0]["natIP"].startswith("203.0.113.")
    assert metadata_of(vm) == {"xprofiler_log_directory": "gs://b/a,b='c'"}

    labels = {**vm["labels"], "tb_backend_id": "7"}
    body = {"labels": labels, "labelFingerprint": vm["labelFingerprint"]}
    wait(compute, compute.instances().setLabels(project=PROJECT, zone=ZONE, instance="xprof-1", body=body).execute())
    assert compute_server.instance("xprof-1")["labels"] == labels

    wait(compute, compute.instances().delete(project=PROJECT, zone=ZONE, instance="xprof-1").execute())
    assert refusal(get, compute)[0] == 404
    assert compute_server.requests_for("insert")[0].body["name"] == "xprof-1"


def test_labels_and_metadata_change_only_with_the_fingerprint_of_what_they_replace(
    compute: Any, compute_server: ComputeServer
) -> None:
    vm = compute_server.add_instance("a", labels={"x": "1"}, metadata={"k": "v"})
    compute_server.change_instance("a", labels={"x": "2"}, metadata={"items": [{"key": "k", "value": "other"}]})
    labels = {"labels": {}, "labelFingerprint": vm["labelFingerprint"]}
    metadata = {"items": [], "fingerprint": vm["metadata"]["fingerprint"]}
    vms = {"project": PROJECT, "zone": ZONE, "instance": "a"}
    assert refusal(compute.instances().setLabels(**vms, body=labels).execute)[0] == 412
    assert refusal(compute.instances().setMetadata(**vms, body=metadata).execute)[0] == 412
    now = compute_server.instance("a")
    metadata = {"items": [{"key": "k", "value": "new"}], "fingerprint": now["metadata"]["fingerprint"]}
    compute.instances().setMetadata(**vms, body=metadata).execute()
    assert metadata_of(compute_server.instance("a")) == {"k": "new"}
    assert compute_server.instance("a")["labels"] == {"x": "2"}


def test_a_name_is_taken_once_in_a_zone(compute: Any, compute_server: ComputeServer) -> None:
    insert(compute)
    status, why = refusal(insert, compute)
    assert (status, "already exists" in why) == (409, True)
    insert(compute, zone="us-central1-b")
    assert len(compute_server.instances()) == 2


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"kind": "c9-none-8"}, "Invalid value for field 'resource.machineType'"),
        ({"kind": "ct5lp-hightpu-4t", "zone": "us-central1-b"}, "does not exist in zone 'us-central1-b'"),
        ({"name": "Upper_Case"}, "Must be a match of regex"),
        ({"labels": {"version": "1.0.0"}}, "resource.labels"),
        ({"labels": {f"l{n}": "" for n in range(65)}}, "at most 64"),
        ({"metadata": {"items": [{"key": "a/b", "value": ""}]}}, "Metadata keys match"),
        ({"metadata": {"items": [{"key": "a", "value": ""}] * 2}}, "duplicate key: 'a'"),
        ({"metadata": {"items": [{"key": "a", "value": "x" * 262_145}]}}, "too large"),
        ({"disks": []}, "At least one disk"),
        ({"networkInterfaces": []}, "At least one network interface"),
        ({"color": "red"}, 'Unknown name "color"'),
    ],
)
def test_a_vm_that_the_real_service_would_refuse_is_refused(
    compute: Any, compute_server: ComputeServer, wrong: Any, why: Any
) -> None:
    status, reason = refusal(insert, compute, **wrong)
    assert status == 400
    assert why in reason
    assert compute_server.instances() == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


def test_any_json_is_taken_or_refused() -> None:
    with ComputeServer() as server:
        vm = f"{server.url}/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
        urls = [vm, f"{vm}/a/setLabels", f"{vm}/a/setMetadata", f"{server.url}/v1/users/me:importSshPublicKey"]
        server.add_instance("a")
        http = httplib2.Http()

        @given(body=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6) | JSON)
        @settings(max_examples=100, deadline=None, database=None)
        def is_answered(body: Any) -> None:
            for url in urls:
                data = json.dumps({**VM, **body} if url == vm and isinstance(body, dict) else body)
                response, answer = http.request(url, "POST", body=data)
                assert response.status in (200, 400, 409, 412), answer

        is_answered()
        http.close()


def test_what_there_is_not_is_not_found(compute: Any) -> None:
    assert refusal(get, compute, "nobody")[0] == 404
    assert refusal(get, compute, zone="mars-central1-a")[0] == 404
    assert refusal(insert, compute, zone="mars-central1-a")[0] == 404
    assert refusal(compute.instances().list(project="another", zone=ZONE).execute)[0] == 404
    assert refusal(compute.zones().get(project=PROJECT, zone="mars-central1-a").execute)[0] == 404
    assert refusal(wait, compute, {"name": "operation-0"})[0] == 404


def test_a_vm_prints_the_serial_output_of_the_test(compute: Any, compute_server: ComputeServer) -> None:
    compute_server.add_instance("a")
    asked = compute.instances().getGuestAttributes(project=PROJECT, zone=ZONE, instance="a", queryPath="hostkeys/")
    assert refusal(asked.execute)[0] == 404
    compute_server.set_guest_attributes("a", {"hostkeys/ssh-ed25519": "AAAA", "other/key": "x"})
    assert asked.execute()["queryValue"]["items"] == [{"namespace": "hostkeys", "key": "ssh-ed25519", "value": "AAAA"}]


def test_a_project_shares_metadata_that_was_set_with_its_fingerprint_with_all_vms(
    compute: Any, compute_server: ComputeServer
) -> None:
    compute_server.project_metadata = {"enable-oslogin": "TRUE"}
    now = compute.projects().get(project=PROJECT).execute()["commonInstanceMetadata"]
    items = [*now["items"], {"key": "k", "value": "v"}]
    change = {"project": PROJECT, "body": {"items": items, "fingerprint": now["fingerprint"]}}
    operation = compute.projects().setCommonInstanceMetadata(**change).execute()
    done = compute.globalOperations().wait(project=PROJECT, operation=operation["name"]).execute()
    assert done["status"] == "DONE"
    assert compute_server.project_metadata == {"enable-oslogin": "TRUE", "k": "v"}
    assert refusal(compute.projects().setCommonInstanceMetadata(**change).execute)[0] == 412


# --- Operations ------------------------------------------------------------------------------------------


def test_the_same_request_id_is_the_same_operation(compute: Any, compute_server: ComputeServer) -> None:
    request_id = str(uuid.uuid4())
    compute_server.faults.script([Reset(after_apply=True)], on="insert")
    with pytest.raises(ConnectionResetError):
        insert(compute, request_id=request_id)
    again = insert(compute, request_id=request_id)
    assert wait(compute, again)["status"] == "DONE"
    assert again["name"] == insert(compute, request_id=request_id)["name"]
    assert len(compute_server.instances()) == 1
    assert refusal(insert, compute, request_id="not-a-uuid")[0] == 400
    assert refusal(insert, compute, request_id=str(uuid.UUID(int=0)))[0] == 400


def test_an_operation_takes_its_time(compute: Any, compute_server: ComputeServer) -> None:
    compute_server.operations.seconds = 0.3
    operation = insert(compute)
    assert operation["status"] == "RUNNING"
    assert get(compute)["status"] == "PROVISIONING"
    assert wait(compute, operation)["status"] == "DONE"
    assert get(compute)["status"] == "RUNNING"


def test_a_wait_that_is_too_long_returns_an_operation_that_is_not_done(
    compute: Any, compute_server: ComputeServer
) -> None:
    compute_server.operations.seconds = math.inf
    compute_server.operations.wait_seconds = 0.05
    operation = insert(compute)
    assert wait(compute, operation)["status"] == "RUNNING"
    asked = compute.zoneOperations().get(project=PROJECT, zone=ZONE, operation=operation["name"]).execute()
    assert asked["status"] == "RUNNING"


def test_closing_ends_every_wait() -> None:
    with ComputeServer() as server:
        server.operations.seconds = math.inf
        body = json.dumps(VM).encode()
        url = f"{server.url}/compute/v1/projects/{PROJECT}/zones/{ZONE}"
        with urllib.request.urlopen(urllib.request.Request(f"{url}/instances", body)) as answer:
            operation = json.loads(answer.read())
        answers = []

        def ask() -> None:
            try:
                urllib.request.urlopen(f"{url}/operations/{operation['name']}/wait", b"{}").close()
            except OSError as error:
                answers.append(error)

        waiting = threading.Thread(target=ask)
        waiting.start()
        while not server.requests_for("wait"):
            pass
    waiting.join(5)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("code", "status"), [("ZONE_RESOURCE_POOL_EXHAUSTED", 503), ("QUOTA_EXCEEDED", 403)], ids=["no capacity", "quota"]
)
def test_a_failed_operation_leaves_no_vm(compute: Any, compute_server: ComputeServer, code: str, status: int) -> None:
    compute_server.fail_operations(code, "no such luck", on="insert", status=status)
    operation = wait(compute, insert(compute))
    assert operation["error"]["errors"] == [{"code": code, "message": "no such luck"}]
    assert operation["httpErrorStatusCode"] == status
    assert compute_server.instances() == []
    assert "error" not in wait(compute, insert(compute))


def test_a_failed_deletion_leaves_the_vm_as_it_was(compute: Any, compute_server: ComputeServer) -> None:
    before = compute_server.add_instance("a", labels={"x": "1"})
    compute_server.fail_operations("RESOURCE_IN_USE", on="delete")
    vms = {"project": PROJECT, "zone": ZONE, "instance": "a"}
    assert wait(compute, compute.instances().delete(**vms).execute())["error"]
    compute_server.fail_operations("INTERNAL", on="setLabels")
    body = {"labels": {}, "labelFingerprint": before["labelFingerprint"]}
    assert wait(compute, compute.instances().setLabels(**vms, body=body).execute())["error"]
    assert compute_server.instance("a") == before


def test_a_test_plays_the_vm(compute: Any, compute_server: ComputeServer) -> None:
    deleted = threading.Event()
    started = threading.Event()

    def play(vm: Any) -> None:
        where = metadata_of(vm)["xprofiler_log_directory"]
        compute_server.storage.write("test-bucket", f"{vm['name']}/status.json", json.dumps({"for": where}).encode())
        started.set()

    compute_server.on_instance_created(play)
    compute_server.on_instance_deleted(lambda vm: deleted.set())
    insert(compute)
    assert started.wait(10)
    assert json.loads(compute_server.storage.read("test-bucket", "xprof-1/status.json")) == {"for": "gs://b/a,b='c'"}
    compute.instances().delete(project=PROJECT, zone=ZONE, instance="xprof-1").execute()
    assert deleted.wait(10)


def test_a_vm_may_be_deleted_while_it_is_made(compute: Any, compute_server: ComputeServer) -> None:
    deleted: list[Any] = []
    compute_server.on_instance_deleted(deleted.append)
    compute_server.operations.seconds = 0.3
    made = insert(compute)
    compute_server.operations.seconds = 0
    compute.instances().delete(project=PROJECT, zone=ZONE, instance="xprof-1").execute()
    assert wait(compute, made)["status"] == "DONE"
    assert compute_server.instances() == []

    compute_server.add_instance("twice")
    compute_server.operations.seconds = 0.1
    deletions = [compute.instances().delete(project=PROJECT, zone=ZONE, instance="twice").execute() for _ in range(2)]
    assert [wait(compute, deletion)["status"] for deletion in deletions] == ["DONE", "DONE"]
    compute_server.close()
    assert [vm["name"] for vm in deleted] == ["xprof-1", "twice"]


def test_a_vm_that_is_never_made_is_not_played(compute: Any, compute_server: ComputeServer) -> None:
    played: list[Any] = []
    compute_server.on_instance_created(played.append)
    compute_server.fail_operations("ZONE_RESOURCE_POOL_EXHAUSTED", on="insert")
    insert(compute)
    compute_server.close()
    assert played == []


# --- Lists -----------------------------------------------------------------------------------------------


def test_one_request_lists_all_zones_filtered_and_only_the_fields_asked_for(
    compute: Any, compute_server: ComputeServer
) -> None:
    compute_server.add_instance("other")
    compute_server.add_instance("xprof-1", labels={"xprofiler_version": "1"}, metadata={"startup-script": "x" * 9000})
    compute_server.add_instance("mine", "europe-west4-a", labels={"xprofiler_version": "1"})
    page = (
        compute.instances()
        .aggregatedList(
            project=PROJECT,
            filter="(name : xprof*) OR (labels.xprofiler_version : *)",
            fields="nextPageToken,items/*/instances(name,zone)",
        )
        .execute()
    )
    assert names_of(page) == {"xprof-1", "mine"}
    (vm,) = page["items"]["zones/europe-west4-a"]["instances"]
    assert sorted(vm) == ["name", "zone"]
    assert compute_server.requests_for("list")[0].entries == 2


def test_a_list_has_pages(compute: Any, compute_server: ComputeServer) -> None:
    expected = set()
    for index in range(12):
        zone = ("us-central1-a", "us-central1-b", "us-east5-a")[index % 3]
        expected.add(compute_server.add_instance(f"vm-{index}", zone)["name"])
    request = compute.instances().aggregatedList(project=PROJECT, maxResults=5)
    pages = []
    while request is not None:
        page = request.execute()
        pages.append(names_of(page))
        request = compute.instances().aggregatedList_next(request, page)
    assert [len(page) for page in pages] == [5, 5, 2]
    assert set.union(*pages) == expected
    first = compute.instances().list(project=PROJECT, zone="us-east5-a", maxResults=3, orderBy="name").execute()
    assert [vm["name"] for vm in first["items"]] == ["vm-11", "vm-2", "vm-5"]
    assert refusal(compute.instances().list(project=PROJECT, zone=ZONE, maxResults=501).execute)[0] == 400
    token = first["nextPageToken"]
    assert (
        refusal(compute.instances().list(project=PROJECT, zone=ZONE, pageToken=token, filter="name=a").execute)[0]
        == 400
    )


def test_a_zone_without_vms_has_a_warning(compute: Any) -> None:
    page = compute.instances().aggregatedList(project=PROJECT).execute()
    assert page["items"][f"zones/{ZONE}"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


def test_types_of_machines_are_those_of_their_zones(compute: Any) -> None:
    wanted = "name = ct5lp-hightpu-4t"
    page = compute.machineTypes().aggregatedList(project=PROJECT, filter=wanted).execute()
    zones = {kind["zone"] for scope in page["items"].values() for kind in scope.get("machineTypes", [])}
    assert zones == {"us-central1-a", "us-east5-b", "europe-west4-b"}
    kinds = {"project": PROJECT, "machineType": "c4-highmem-8"}
    assert compute.machineTypes().get(**kinds, zone=ZONE).execute()["guestCpus"] == 8
    assert refusal(compute.machineTypes().get(**kinds, zone="us-central2-b").execute)[0] == 404


def test_locations_are_listed(compute: Any) -> None:
    zones = compute.zones().list(project=PROJECT, filter="name eq us-.*").execute()["items"]
    assert {zone["name"] for zone in zones} >= {"us-central1-a", "us-east5-b"}
    assert all(not zone["name"].startswith("europe") for zone in zones)
    region = compute.regions().get(project=PROJECT, region="us-east5").execute()
    assert [zone.rpartition("/")[2] for zone in region["zones"]] == ["us-east5-a", "us-east5-b"]


# --- Faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404, 409, 429, 500, 503])
def test_faults_are_those_of_every_server(compute: Any, compute_server: ComputeServer, status: int) -> None:
    compute_server.faults.script([Status(status, retry_after=1)], on="list")
    assert refusal(compute.instances().aggregatedList(project=PROJECT).execute)[0] == status
    compute.instances().aggregatedList(project=PROJECT).execute()


def test_without_a_role_the_refusal_names_the_permission(compute: Any, compute_server: ComputeServer) -> None:
    compute_server.is_permitted = False
    status, why = refusal(insert, compute)
    assert status == 403
    assert why == f"Required 'compute.instances.create' permission for 'projects/{PROJECT}/zones/{ZONE}/instances'"


def test_an_api_that_is_not_enabled_is_refused_with_that_reason(compute: Any, compute_server: ComputeServer) -> None:
    compute_server.is_enabled = False
    status, why = refusal(get, compute)
    assert status == 403
    assert "has not been used in project test-project before or it is disabled" in why


def test_only_known_tokens_are_let_in(compute: Any, compute_server: ComputeServer) -> None:
    compute_server.accepted_tokens = {"secret"}
    assert refusal(get, compute)[0] == 401
    url = f"{compute_server.url}/compute/v1/projects/{PROJECT}"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
    with urllib.request.urlopen(request) as answer:
        assert json.loads(answer.read())["name"] == PROJECT
