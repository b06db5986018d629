"""The loopback control plane, asked as the public package's two dialects and people with curl ask it."""

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_testing.faults import Status

from ..loopback.control_plane import ControlPlaneServer, SelfHostedServer

PARENT = "projects/test-project/locations/us-central1"
RUNS = f"/v1alpha/{PARENT}/machineLearningRuns"
RUN = {
    "displayName": "My_Run 1",
    "name": "my-run-1",
    "configs": {"softwareConfigs": {"framework": "JAX"}, "hardwareConfigs": {"num_slices": "1"}},
    "artifacts": {"gcsPath": "gs://my-bucket/folder1"},
    "runSet": "grp",
    "labels": {"created_by": "diagon_sdk", "diagon_sdk_version": "1-0-0"},
    "runPhase": "ACTIVE",
    "tools": [{"xprof": {}}],
}


def ask(server: Any, verb: Any, path: Any, body: Any = None, token: Any = None, **query: Any) -> Any:
    url = f"{server.url}{path}?{urllib.parse.urlencode(query)}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=verb, headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def create(server: Any, run_id: str = "my-run-1", **fields: Any) -> Any:
    return ask(server, "POST", RUNS, {**RUN, **fields}, machine_learning_run_id=run_id)


def get(server: Any, run_id: str = "my-run-1") -> Any:
    return ask(server, "GET", f"{RUNS}/{run_id}")


def patch(server: Any, run: Any, run_id: str = "my-run-1", mask: str = "*") -> Any:
    return ask(server, "PATCH", f"{RUNS}/{run_id}", run, update_mask=mask)


def listed(server: Any, **query: Any) -> Any:
    status, page = ask(server, "GET", RUNS, **query)
    assert status == 200, page
    return [run["name"].rpartition("/")[2] for run in page["machineLearningRuns"]]


# --- Runs ------------------------------------------------------------------------------------------------


def test_a_run_is_created_read_changed_and_deleted(control_plane_server: ControlPlaneServer) -> None:
    status, operation = create(control_plane_server)
    assert status == 200
    assert operation["done"]
    assert operation["metadata"]["target"] == f"{PARENT}/machineLearningRuns/my-run-1"
    assert operation["response"]["@type"].endswith(".MachineLearningRun")

    _, run = get(control_plane_server)
    assert run["name"] == f"{PARENT}/machineLearningRuns/my-run-1"
    assert run["state"] == "STATE_ACTIVE"
    assert run["endTime"] == "0001-01-01T00:00:00Z"
    assert run["labels"] == RUN["labels"]

    status, operation = patch(control_plane_server, {**run, "runPhase": "COMPLETED"})
    assert status == 200
    ended = get(control_plane_server)[1]
    assert ended["state"] == "STATE_COMPLETED"
    assert ended["endTime"] > ended["createTime"]
    assert ended["etag"] != run["etag"]

    assert ask(control_plane_server, "DELETE", f"{RUNS}/my-run-1", etag=run["etag"])[0] == 409
    assert ask(control_plane_server, "DELETE", f"{RUNS}/my-run-1", etag=ended["etag"])[0] == 200
    assert get(control_plane_server)[0] == 404


def test_the_requests_of_the_newer_dialect_are_understood(control_plane_server: ControlPlaneServer) -> None:
    custom = {"custom": {"id": "1", "display_name": "job", "create_time": "2026-11-21T05:12:42.5Z"}}
    target = {"display_name": "host-0", "instance_id": "1", "hostname": "host-0", "zone": "z", "state": "RUNNING"}
    status, answer = create(
        control_plane_server,
        run_id="9f" * 32,
        configs={"userConfigs": {"epochs": "100"}},
        orchestrator="CUSTOM",
        workloadDetails={**custom, "targets": [target]},
    )
    assert status == 200, answer
    _, run = get(control_plane_server, "9f" * 32)
    assert run["workloadDetails"]["custom"]["displayName"] == "job"
    assert run["workloadDetails"]["targets"][0]["instanceId"] == "1"
    assert patch(control_plane_server, run, "9f" * 32, mask="workload_details")[0] == 200


def test_an_id_is_taken_once(control_plane_server: ControlPlaneServer) -> None:
    create(control_plane_server)
    status, answer = create(control_plane_server)
    assert (status, answer["error"]["status"]) == (409, "ALREADY_EXISTS")


def test_a_change_needs_the_etag_of_what_it_changes(control_plane_server: ControlPlaneServer) -> None:
    create(control_plane_server)
    _, run = get(control_plane_server)
    control_plane_server.change_run("my-run-1", displayName="by another program")
    status, answer = patch(control_plane_server, {**run, "runPhase": "FAILED"})
    assert (status, answer["error"]["status"]) == (409, "ABORTED")
    without = {name: value for name, value in run.items() if name != "etag"}
    assert patch(control_plane_server, without)[0] == 400
    assert patch(control_plane_server, control_plane_server.run("my-run-1"), mask="runPhase")[0] == 400
    assert control_plane_server.run("my-run-1")["runPhase"] == "ACTIVE"


def test_what_the_service_computes_cannot_be_written(control_plane_server: ControlPlaneServer) -> None:
    create(control_plane_server)
    _, run = get(control_plane_server)
    changed = {**run, "state": "STATE_FAILED", "createTime": "2000-01-01T00:00:00Z", "metrics": {"avgMfu": 0.5}}
    assert patch(control_plane_server, changed)[0] == 200
    kept = control_plane_server.run("my-run-1")
    assert (kept["state"], kept["createTime"]) == ("STATE_ACTIVE", run["createTime"])
    assert "metrics" not in kept


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": []},
        {"@type": "type.googleapis.com/x"},
        {"configs": {"userConfigs": {"epochs": 100}}},
        {"configs": {"userConfigs": {"mesh": {"data": "8"}}}},
        {"labels": {"Created By": "x"}},
        {"labels": {"version": "1.0.0"}},
        {"labels": {"name": "x" * 64}},
        {"runPhase": "DONE"},
        {"tools": {"xprof": {}}},
        {"endTime": "yesterday"},
        {"displayName": 7},
    ],
)
def test_fields_and_values_that_the_api_does_not_know_are_refused(
    control_plane_server: ControlPlaneServer, wrong: Any
) -> None:
    status, answer = create(control_plane_server, **wrong)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert control_plane_server.runs() == []


FIELDS = st.sampled_from([*RUN, "workloadDetails", "metrics", "etag", "endTime", "gke", "targets", "userConfigs", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


def test_any_json_is_taken_or_refused() -> None:
    with ControlPlaneServer() as server:

        @given(body=st.dictionaries(FIELDS, JSON, max_size=6) | JSON)
        @settings(max_examples=100, deadline=None, database=None)
        def is_answered(body: Any) -> None:
            server.clear()
            session = f"{RUNS}/run-1/profilerSessions"
            for path, query in ((RUNS, {"machine_learning_run_id": "run-1"}), (session, {"profiler_session_id": "s"})):
                status, answer = ask(server, "POST", path, body, **query)
                assert status in (200, 400, 404), answer

        is_answered()


@pytest.mark.parametrize("run_id", ["", "My_Run", "実験", "-x", "x" * 201])
def test_an_id_has_lower_case_letters_digits_and_dashes(control_plane_server: ControlPlaneServer, run_id: Any) -> None:
    assert create(control_plane_server, run_id=run_id)[0] == 400


def test_a_zone_is_not_a_region(control_plane_server: ControlPlaneServer) -> None:
    for location in ("us-central1-a", "-"):
        path = RUNS.replace("us-central1", location)
        assert ask(control_plane_server, "POST", path, RUN, machine_learning_run_id="a")[0] == 403


def test_runs_of_all_regions_are_listed_together(control_plane_server: ControlPlaneServer) -> None:
    create(control_plane_server)
    elsewhere = RUNS.replace("us-central1", "europe-west4")
    ask(control_plane_server, "POST", elsewhere, RUN, machine_learning_run_id="b")
    assert len(control_plane_server.runs()) == 2
    assert listed(control_plane_server) == ["my-run-1"]
    _, page = ask(control_plane_server, "GET", RUNS.replace("us-central1", "-"), filter="region = europe-west4")
    assert [run["name"] for run in page["machineLearningRuns"]] == [f"{elsewhere.removeprefix('/v1alpha/')}/b"]


# --- Listing ---------------------------------------------------------------------------------------------


def test_a_listing_is_filtered_ordered_and_paged(control_plane_server: ControlPlaneServer) -> None:
    for index in range(12):
        control_plane_server.put_run(f"run-{index:02}", {"runSet": "even" if index % 2 == 0 else "odd"})
    control_plane_server.change_run("run-04", runPhase="FAILED")
    assert len(listed(control_plane_server)) == 10
    assert len(listed(control_plane_server, pageSize=5000)) == 12
    assert listed(control_plane_server, filter='run_set = "odd"', orderBy="run_id desc", page_size=2) == [
        "run-11",
        "run-09",
    ]
    assert listed(control_plane_server, filter='run_set="even" AND state="STATE_FAILED"') == ["run-04"]
    assert listed(control_plane_server, filter='(run_id = "run-01" OR run_id = run-02) AND run_set = "odd"') == [
        "run-01"
    ]
    created = control_plane_server.run("run-09")["createTime"]
    assert listed(control_plane_server, filter=f'create_time > "{created}"') == ["run-10", "run-11"]
    _, page = ask(control_plane_server, "GET", RUNS, pageSize=7)
    _, rest = ask(control_plane_server, "GET", RUNS, pageSize=7, pageToken=page["nextPageToken"])
    assert len(page["machineLearningRuns"]) + len(rest["machineLearningRuns"]) == 12
    assert "nextPageToken" not in rest


@pytest.mark.parametrize(
    "query",
    [
        {"filter": 'user = "x"'},
        {"filter": 'run_set = "x'},
        {"filter": "run_set ="},
        {"filter": '(run_set = "x"'},
        {"filter": 'run_set = "x" run_set = "y"'},
        {"filter": 'create_time > "yesterday"'},
        {"orderBy": "etag"},
        {"orderBy": "create_time sideways"},
        {"pageSize": "many"},
        {"pageSize": "-1"},
        {"pageToken": "7:of another listing"},
    ],
)
def test_a_listing_that_cannot_be_understood_is_refused(control_plane_server: ControlPlaneServer, query: Any) -> None:
    assert ask(control_plane_server, "GET", RUNS, **query)[0] == 400


# --- Operations ------------------------------------------------------------------------------------------


def test_a_slow_creation_takes_the_id_at_once_and_is_seen_when_it_is_done(
    control_plane_server: ControlPlaneServer,
) -> None:
    control_plane_server.operations.polls = 2
    _, operation = create(control_plane_server)
    assert not operation["done"]
    assert get(control_plane_server)[0] == 404
    assert listed(control_plane_server) == []
    assert create(control_plane_server)[0] == 409
    path = f"/v1alpha/{operation['name']}"
    assert not ask(control_plane_server, "GET", path)[1]["done"]
    assert ask(control_plane_server, "GET", path)[1]["response"]["runPhase"] == "ACTIVE"
    assert get(control_plane_server)[0] == 200
    assert ask(control_plane_server, "GET", f"{path}x")[0] == 404


def test_an_operation_that_takes_time_ends_without_a_request_for_it(control_plane_server: ControlPlaneServer) -> None:
    control_plane_server.operations.seconds = 3600
    create(control_plane_server)
    assert get(control_plane_server)[0] == 404
    control_plane_server.clear()
    control_plane_server.operations.seconds = 0.001
    create(control_plane_server)
    for _ in range(100):
        if get(control_plane_server)[0] == 200:
            break
    assert get(control_plane_server)[0] == 200


def test_an_operation_may_fail_and_writes_nothing(control_plane_server: ControlPlaneServer) -> None:
    control_plane_server.fail_operations(8, "no quota", details=[{"@type": "x", "reason": "QUOTA"}])
    _, operation = create(control_plane_server)
    assert operation["error"] == {"code": 8, "message": "no quota", "details": [{"@type": "x", "reason": "QUOTA"}]}
    assert "response" not in operation
    assert control_plane_server.runs() == []
    assert "response" in create(control_plane_server)[1]


# --- Sessions --------------------------------------------------------------------------------------------


def test_a_session_is_created_once_changed_by_its_mask_and_listed(control_plane_server: ControlPlaneServer) -> None:
    create(control_plane_server)
    sessions = f"{RUNS}/my-run-1/profilerSessions"
    body = {
        "profilerTargets": ["host-0"],
        "targetSessions": {"host-0": {"startTime": "2026-11-21T05:12:42Z", "sessionPhase": "ACTIVE"}},
        "storageFolderUri": "gs://b/my-run-1/plugins/profile/s1",
        "duration": "0.471s",
        "kind": "KIND_PROGRAMMATIC",
    }
    status, operation = ask(control_plane_server, "POST", sessions, body, profiler_session_id="s1")
    assert (status, operation["response"]["kind"]) == (200, "KIND_PROGRAMMATIC")
    assert ask(control_plane_server, "POST", sessions, body, profiler_session_id="s1")[0] == 409
    done = {"targetSessions": {"host-0": {"sessionPhase": "SUCCEEDED"}}, "duration": "9s"}
    assert ask(control_plane_server, "PATCH", f"{sessions}/s1", done, update_mask="target_sessions")[0] == 200
    (session,) = control_plane_server.sessions("my-run-1")
    assert session["targetSessions"] == {"host-0": {"sessionPhase": "SUCCEEDED"}}
    assert session["duration"] == "0.471s"
    assert ask(control_plane_server, "GET", sessions)[1]["profilerSessions"] == [session]
    assert ask(control_plane_server, "GET", f"{sessions}/s1")[1] == session
    assert ask(control_plane_server, "GET", f"{sessions}/s2")[0] == 404
    stale = {**done, "etag": "of-before"}
    assert ask(control_plane_server, "PATCH", f"{sessions}/s1", stale, update_mask="target_sessions")[0] == 409
    missing = f"{RUNS}/no-run/profilerSessions"
    assert ask(control_plane_server, "POST", missing, body, profiler_session_id="s1")[0] == 404


# --- Permissions ---------------------------------------------------------------------------------------


def test_refusals_have_the_text_of_the_real_service(control_plane_server: ControlPlaneServer) -> None:
    control_plane_server.accepted_tokens = {"good"}
    assert ask(control_plane_server, "GET", RUNS)[0] == 401
    assert ask(control_plane_server, "GET", RUNS, token="good")[0] == 200
    control_plane_server.is_permitted = False
    status, answer = ask(control_plane_server, "GET", RUNS, token="good")
    assert (status, answer["error"]["details"][0]["reason"]) == (403, "IAM_PERMISSION_DENIED")
    assert "hypercomputecluster.machineLearningRuns.list" in answer["error"]["message"]
    control_plane_server.is_enabled = False
    status, answer = ask(control_plane_server, "GET", RUNS, token="good")
    assert (status, answer["error"]["details"][0]["reason"]) == (403, "SERVICE_DISABLED")


def test_faults_hit_one_operation_and_bodies_are_remembered(control_plane_server: ControlPlaneServer) -> None:
    control_plane_server.faults.script([Status(503)], on="create")
    assert create(control_plane_server)[0] == 503
    assert get(control_plane_server)[0] == 404
    assert create(control_plane_server)[0] == 200
    assert [record.status for record in control_plane_server.requests_for("create")] == [503, 200]
    assert control_plane_server.requests_for("create")[1].body == RUN


def test_what_is_not_served_is_not_found(control_plane_server: ControlPlaneServer) -> None:
    for verb, path in (("GET", "/"), ("PUT", RUNS), ("DELETE", RUNS), ("GET", f"/v1alpha/{PARENT}/clusters")):
        assert ask(control_plane_server, verb, path)[0] == 404


def test_the_environment_points_at_the_server(control_plane_server: ControlPlaneServer) -> None:
    variables = control_plane_server.environment()
    assert variables["CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER"] == f"{control_plane_server.url}/"
    assert variables["GOOGLE_CLOUD_PROJECT"] == "test-project"


# --- Self-hosted -----------------------------------------------------------------------------------------


def test_a_self_hosted_control_plane_registers_a_run_and_gets_its_end() -> None:
    with SelfHostedServer("cluster-7") as server:
        assert ask(server, "GET", "/v1/agent-info")[1] == {"cluster_id": "cluster-7"}
        body = {"logicalId": "u-1", "displayName": "run", "workload": {"workloadId": "w"}}
        path = "/v1/machineLearningRuns"
        assert ask(server, "PATCH", path, body, update_mask="logical_id", allow_missing="false")[0] == 404
        assert ask(server, "PATCH", path, body, update_mask="logical_id", allow_missing="true")[0] == 200
        end = {"workload": {"state": "STATE_SUCCEEDED"}}
        assert ask(server, "PATCH", f"{path}/u-1", end, update_mask="workload.state", allow_missing="false")[0] == 200
        assert server.runs["u-1"]["workload"] == {"workloadId": "w", "state": "STATE_SUCCEEDED"}
        assert ask(server, "PATCH", f"{path}/u-2", end, update_mask="workload.state")[0] == 404
        assert ask(server, "PATCH", f"{path}/u-1", {"workload": {"state": "GONE"}}, update_mask="x")[0] == 400
        assert [record.operation for record in server.requests][:2] == ["agent", "register"]
