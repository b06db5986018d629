"""`xprofiler list` with a Compute on loopback: its output, its requests, and its failures."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import time
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from ml_diagnostics_testing.faults import Delay, Hang, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import ApiError, Request, Response, error_response, json_response

from ..loopback.compute import ComputeServer
from .conftest import Run
from .typed_commands import typed
from .viewer_vms import ZONE, add_viewer

needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

HEAD = "Log_Directory    URL    Name    Zone\n---------------  -----  ------  ------\n"


@pytest.fixture(autouse=True)
def _here(cloud: ComputeServer) -> None:
    """Redirect all tests to the Compute on loopback."""


def names(output: str) -> list[str]:
    return [re.split(" {2,}", line)[2] for line in output.splitlines()[2:]]


def asked(server: ComputeServer) -> list[dict[str, str]]:
    """Return the queries of the list requests."""
    return [
        {name: values[0] for name, values in parse_qs(urlsplit(record.path).query).items()}
        for record in server.requests_for("list")
    ]


# --- Output --------------------------------------------------------------------------------------------


def test_the_table_of_the_readme(run: Run, cloud: ComputeServer) -> None:
    for name in ("xprof-97db0ee6-93f6-46d4-b4c4-6d024b34a99f", "xprof-e386f7c5-3d09-4b9b-a8e5-a495f5996eef"):
        add_viewer(cloud, name, logs="gs://some-bucket/some-run/tensorboard", link="60ea5ae6")
    assert run("list", "-z", ZONE).output == (
        "Log_Directory                          URL                                                               "
        "Name                                        Zone\n"
        "-------------------------------------  ----------------------------------------------------------------  "
        "------------------------------------------  -------------\n"
        "gs://some-bucket/some-run/tensorboard  https://60ea5ae6-dot-us-central1.notebooks.googleusercontent.com  "
        "xprof-97db0ee6-93f6-46d4-b4c4-6d024b34a99f  us-central1-a\n"
        "gs://some-bucket/some-run/tensorboard  https://60ea5ae6-dot-us-central1.notebooks.googleusercontent.com  "
        "xprof-e386f7c5-3d09-4b9b-a8e5-a495f5996eef  us-central1-a\n"
    )


def test_a_row_is_a_line_however_wide_the_terminal(cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-97db0ee6-93f6-46d4-b4c4-6d024b34a99f", logs=f"gs://bucket/{'x' * 100}", link="60ea5ae6")
    narrow, wide = typed("list", columns=80), typed("list", columns=200)
    assert narrow == wide
    assert len(narrow.output.splitlines()) == 3


def test_without_viewers_there_is_a_head_which_is_not_a_failure(run: Run, cloud: ComputeServer) -> None:
    cloud.add_instance("of-another-user")
    assert run("list") == (0, HEAD, "")


def test_a_starting_viewer_has_no_link(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    add_viewer(cloud, "xprof-b", status="STAGING")
    add_viewer(cloud, "xprof-c", status="TERMINATED")
    output = run("list").output
    assert [line.split()[1] for line in output.splitlines()[2:]] == ["starting", "starting", "terminated"]
    assert "None" not in output + run("list", "--format", "json").output


def write_status(server: ComputeServer, name: str, **fields: object) -> None:
    """Write the status of a viewer in gs://test-bucket/run."""
    server.storage.write("test-bucket", f"run/{name}/startup_output.json", json.dumps(fields).encode())


def test_a_viewer_without_a_link_is_shown_with_its_status(run: Run, cloud: ComputeServer) -> None:
    for name in ("linked", "proxyless", "installing", "broken"):
        add_viewer(cloud, name, logs="gs://test-bucket/run")
    write_status(cloud, "linked", state="ready", tb_backend_id="4f1e")
    write_status(cloud, "proxyless", state="ready", error="the proxy does not know it")
    write_status(cloud, "installing", state="starting", step="installing XProf")
    write_status(cloud, "broken", state="failed", step="installing XProf")
    rows = [re.split(" {2,}", line) for line in run("list").output.splitlines()[2:]]
    link = "https://4f1e-dot-us-central1.notebooks.googleusercontent.com"
    assert [(row[2], row[1]) for row in rows] == [
        ("broken", "failed"),
        ("installing", "starting"),
        ("linked", link),
        ("proxyless", "no link"),
    ]
    assert [record["url"] for record in json.loads(run("list", "--format=json").output)] == [None, None, link, None]
    assert cloud.requests_for("setLabels") == []


@pytest.mark.timing
def test_statuses_of_few_viewers_are_read_in_parallel(run: Run, cloud: ComputeServer) -> None:
    for number in range(80):
        add_viewer(cloud, f"xprof-{number:02d}", logs="gs://test-bucket/run")
    cloud.storage.faults.always(Delay(0.5))
    assert len(run("list").output.splitlines()) == 82
    times = [record.time for record in cloud.storage.requests]
    assert len(times) == 64
    assert max(times[:20]) - min(times[:20]) < 0.5


def test_a_storage_without_an_answer_delays_a_list_by_seconds_and_drops_only_links(
    run: Run, cloud: ComputeServer
) -> None:
    add_viewer(cloud, "xprof-a", logs="gs://test-bucket/run")
    cloud.storage.faults.always(Hang())
    started = time.monotonic()
    ended = run("list")
    assert time.monotonic() - started < 20
    assert (ended.code, re.split(" {2,}", ended.output.splitlines()[2])[1]) == (0, "no link")


def test_vms_without_a_log_directory_are_hidden(run: Run, cloud: ComputeServer) -> None:
    cloud.add_instance("xprof-by-name-only")
    cloud.add_instance("labelled", labels={"xprofiler_version": "1-0-0"})
    assert names(run("list").output) == []


def test_vms_of_old_releases_have_their_log_directory_in_a_label(run: Run, cloud: ComputeServer) -> None:
    cloud.add_instance("xprof-old", labels={"xprofiler_log_directory": "bucket--slash--run--slash--tensorboard"})
    assert run("list").output.splitlines()[2].split()[0] == "gs://bucket/run/tensorboard"
    assert names(run("list", "-l", "gs://bucket/run/tensorboard/").output) == ["xprof-old"]


def test_every_format_has_the_same_rows(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a", link="1")
    add_viewer(cloud, "xprof-b", "us-east5-b", logs='gs://bucket/a,"b"')
    records = json.loads(run("list", "--format", "json").output)
    assert records == [
        {
            "log_directory": 'gs://bucket/a,"b"',
            "url": None,
            "name": "xprof-b",
            "zone": "us-east5-b",
            "status": "RUNNING",
        },
        {
            "log_directory": "gs://bucket/xprof-a",
            "url": "https://1-dot-us-central1.notebooks.googleusercontent.com",
            "name": "xprof-a",
            "zone": ZONE,
            "status": "RUNNING",
        },
    ]
    assert yaml.safe_load(run("list", "--format=yaml").output) == records
    rows = list(csv.DictReader(io.StringIO(run("list", "--format=csv").output)))
    assert rows == [{**record, "url": record["url"] or ""} for record in records]
    assert names(run("list").output) == [record["name"] for record in records]


def test_no_viewers_are_an_empty_list_in_every_format(run: Run) -> None:
    assert json.loads(run("list", "--format=json").output) == []
    assert yaml.safe_load(run("list", "--format=yaml").output) == []
    assert run("list", "--format=csv").output == "log_directory,url,name,zone,status\n"


def test_foreign_text_cannot_control_the_terminal(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a", logs="gs://b/\x1b[2J\nfaked-row\u202e")
    for style in ("table", "json", "yaml", "csv"):
        output = run("list", f"--format={style}").output
        assert "\x1b" not in output
    assert len(run("list").output.splitlines()) == 3


# --- Requests ------------------------------------------------------------------------------------------


def test_all_zones_are_one_request_with_its_fields(run: Run, cloud: ComputeServer) -> None:
    for number, zone in enumerate(("us-central1-a", "us-east5-a", "europe-west4-b")):
        add_viewer(cloud, f"xprof-{number}", zone)
        cloud.add_instance(f"other-{number}", zone)
    assert names(run("list").output) == ["xprof-0", "xprof-1", "xprof-2"]
    (query,) = asked(cloud)
    assert "labels.xprofiler_version:*" in query["filter"]
    assert query["fields"].startswith("nextPageToken,items/*/instances(name,")
    assert [record.path.partition("?")[0] for record in cloud.requests] == [
        "/compute/v1/projects/test-project/aggregated/instances"
    ]


def test_one_zone_is_requested_alone(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    add_viewer(cloud, "xprof-b", "us-east5-a")
    assert names(run("list", "-z", "us-east5-a").output) == ["xprof-b"]
    assert "/zones/us-east5-a/instances" in cloud.requests[0].path


def test_several_zones_are_one_request(run: Run, cloud: ComputeServer) -> None:
    for zone in ("us-central1-a", "us-east5-a", "europe-west4-b"):
        add_viewer(cloud, f"in-{zone}", zone)
    assert names(run("list", "--zones", "us-east5-a", "us-central1-a").output) == ["in-us-central1-a", "in-us-east5-a"]
    assert len(cloud.requests) == 1


def test_all_pages_are_read(run: Run, cloud: ComputeServer) -> None:
    for number in range(1_203):
        add_viewer(cloud, f"xprof-{number:04d}", ("us-central1-a", "us-east5-a")[number % 2])
    assert names(run("list").output) == [f"xprof-{number:04d}" for number in range(1_203)]
    assert len(cloud.requests) == 3


def test_log_directories_and_names_are_alternatives(run: Run, cloud: ComputeServer) -> None:
    for name in ("xprof-a", "xprof-b", "xprof-c"):
        add_viewer(cloud, name)
    assert names(run("list", "-l", "gs://bucket/xprof-a/", "-n", "xprof-c").output) == ["xprof-a", "xprof-c"]
    assert names(run("list", "-l", "gs://bucket/xprof", "gs://bucket").output) == []


def test_names_are_matched_by_the_server(run: Run, cloud: ComputeServer) -> None:
    for name in ("xprof-a", "xprof-b", "xprof-c"):
        add_viewer(cloud, name)
    assert names(run("list", "-n", "xprof-a", "xprof-b").output) == ["xprof-a", "xprof-b"]
    assert '(name = "xprof-a") OR (name = "xprof-b")' in asked(cloud)[0]["filter"]


@pytest.mark.parametrize("name", ['x" OR name="y', "-x", "a b", "", "X", "a\n"])
def test_an_invalid_name_is_refused_and_not_sent(run: Run, cloud: ComputeServer, name: str) -> None:
    ended = run("list", f"--vm-name={name}")
    assert ended.code == 2
    assert ended.errors.endswith("and do not end with a dash\n")
    assert cloud.requests == []


def test_verbose_prints_every_request_and_no_secret(
    run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    token = tmp_path_factory.mktemp("secrets") / "token"
    token.write_text("a-secret-token")
    cloud.accepted_tokens = {"a-secret-token"}
    monkeypatch.delenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", str(token))
    ended = run("list", "--verbose")
    assert ended.code == 0
    assert ended.errors.startswith(f"GET {cloud.url}/compute/v1/projects/test-project/aggregated/instances?")
    assert "a-secret-token" not in ended.errors
    assert run("list").errors == ""


# --- Filters -------------------------------------------------------------------------------------------


def add_many(server: ComputeServer) -> None:
    add_viewer(server, "xprof-a", labels={"owner": "ann"})
    add_viewer(server, "xprof-bee", "us-central1-b", labels={"owner": "ann-marie"}, status="TERMINATED")
    add_viewer(server, "xprof-c", "us-east5-a", labels={"owner": "bob"}, machineType="e2-standard-2")
    add_viewer(server, "other", "us-east5-a")


@needs_gcloud
def test_filters_are_passed_to_gcloud_and_must_all_match(run: Run, cloud: ComputeServer) -> None:
    add_many(cloud)
    assert names(run("list", "-f", "labels.owner:ann", "status=RUNNING").output) == ["xprof-a"]
    ended = run("list", "--filter=(name:bee OR labels.owner=bob) AND creationTimestamp>-P1D", "--verbose")
    assert names(ended.output) == ["xprof-bee", "xprof-c"]
    assert ended.errors.startswith("$ gcloud compute instances list ")


def test_filters_and_flags_without_gcloud_are_refused(
    run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    for arguments in (["-f", "name:a"], ["--limit=1"]):
        ended = run("list", *arguments)
        assert (ended.code, ended.output) == (2, "")
        assert f"'{arguments[-1]}' needs gcloud, which is not installed" in ended.errors
    assert run("list").code == 0


def test_a_cluster_has_no_filters(run: Run, cloud: ComputeServer) -> None:
    ended = run("list", "--gke", "-f", "name:a")
    assert ended.code == 2
    assert "--filter is for VMs" in ended.errors


@needs_gcloud
def test_an_invalid_filter_is_refused_with_the_message_of_gcloud(run: Run, cloud: ComputeServer) -> None:
    for text in ("name=(a", "(((", "nothing(name)"):
        ended = run("list", "-f", text)
        assert (ended.code, ended.output) == (2, "")
        assert "xprofiler: gcloud could not list the VMs: ERROR: (gcloud.compute.instances.list)" in ended.errors


@needs_gcloud
def test_flags_of_gcloud_are_passed_to_it(run: Run, cloud: ComputeServer) -> None:
    add_many(cloud)
    zones = ("us-central1-a", "us-central1-b")
    assert names(run("list", "--sort-by=~name", "--limit=3", "-z", *zones).output) == ["xprof-a", "xprof-bee"]
    assert len(names(run("list", "--", "--limit=2").output)) == 2


@pytest.mark.parametrize(
    ("typed", "meant"), [("--zonse", "--zones"), ("--zone=us-east5-a", "--zones"), ("--fromat=json", "--format")]
)
def test_a_misspelled_flag_is_refused(run: Run, cloud: ComputeServer, typed: str, meant: str) -> None:
    ended = run("list", typed)
    assert ended.code == 2
    assert f"did you mean {meant}?" in ended.errors
    assert cloud.requests == []


# --- Failures ------------------------------------------------------------------------------------------


def test_a_path_that_is_not_a_log_directory_is_refused(run: Run, cloud: ComputeServer) -> None:
    ended = run("list", "-l", "my_other_bucket/main_directory/sub-1/sub-2")
    assert ended.code == 2
    assert "does not start with gs://" in ended.errors
    assert cloud.requests == []


def test_an_unknown_zone_is_not_found(run: Run) -> None:
    ended = run("list", "-z", "us-nowhere1-a")
    assert ended.code == 3
    assert ended.errors == "xprofiler: there is no zone us-nowhere1-a in project test-project\n"


def test_a_zone_that_compute_calls_an_invalid_value_is_not_found_either(
    run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ApiError(400, "Invalid value for field 'zone': 'us-nowhere1-a'. Unknown zone.", reason="invalid")
    monkeypatch.setattr(cloud, "handle", lambda request: error_response(answer))
    ended = run("list", "-z", "us-nowhere1-a")
    assert (ended.code, ended.errors) == (3, "xprofiler: there is no zone us-nowhere1-a in project test-project\n")


def test_an_unknown_zone_among_several_is_not_found(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    ended = run("list", "-z", ZONE, "us-east5-b", "us-nowhere1-a")
    assert (ended.code, ended.output) == (3, "")
    assert ended.errors == "xprofiler: there is no zone us-nowhere1-a in project test-project\n"


def test_a_zone_that_does_not_answer_is_reported(
    run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_viewer(cloud, "xprof-a")
    handle = cloud.handle

    def partly(request: Request) -> Response:
        answer = json.loads(handle(request).body)
        answer["items"]["zones/us-east5-a"] = {"warning": {"code": "UNREACHABLE"}}
        return json_response(answer)

    monkeypatch.setattr(cloud, "handle", partly)
    ended = run("list")
    assert names(ended.output) == ["xprof-a"]
    assert (ended.code, ended.errors) == (0, "note: us-east5-a does not answer: its VMs are missing\n")


def test_refused_credentials_are_a_permission_error(run: Run, cloud: ComputeServer) -> None:
    cloud.accepted_tokens = {"another"}
    ended = run("list")
    assert ended.code == 4
    assert "gcloud auth login" in ended.errors


def test_a_missing_permission_names_the_role(run: Run, cloud: ComputeServer) -> None:
    cloud.is_permitted = False
    ended = run("list")
    assert ended.code == 4
    assert "Required 'compute.instances.list' permission" in ended.errors
    assert "grant anonymous the role roles/compute.viewer on project test-project" in ended.errors


def test_a_disabled_api_is_reported_with_the_command_to_enable_it(run: Run, cloud: ComputeServer) -> None:
    cloud.is_enabled = False
    ended = run("list")
    assert ended.code == 4
    assert "'gcloud services enable compute.googleapis.com --project=test-project'" in ended.errors


def test_an_unknown_project_is_not_found(run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test-porject")
    assert run("list").code == 3


def test_no_project_is_one_clear_sentence(run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT")
    ended = run("list")
    assert ended.code == 2
    assert ended.errors.splitlines()[-1].endswith(
        "names none): run 'gcloud config set project PROJECT', or set CLOUDSDK_CORE_PROJECT"
    )


@pytest.mark.parametrize("fault", [Status(429), Status(503), Status(500), Reset()], ids=repr)
def test_a_temporary_failure_is_retried(run: Run, cloud: ComputeServer, fault: Status | Reset) -> None:
    add_viewer(cloud, "xprof-a")
    cloud.faults.script([fault, None], on="list")
    assert names(run("list").output) == ["xprof-a"]
    assert len(cloud.requests) == 2


def test_a_truncated_answer_is_requested_again(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    cloud.faults.script([Truncate(30)], on="list")
    assert names(run("list").output) == ["xprof-a"]


def test_a_page_that_fails_permanently_fails_the_list(run: Run, cloud: ComputeServer) -> None:
    for number in range(501):
        add_viewer(cloud, f"xprof-{number}")
    cloud.faults.script([None, Status(403)], on="list")
    ended = run("list")
    assert (ended.code, ended.output) == (4, "")
