"""`xprofiler create`: its checks, its resources, its output; and a failure leaves nothing behind."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.faults import Reset, Status

from ..loopback.compute import ComputeServer
from .viewer_cloud import FAILED, INSTALLING, LOGS, READY, ZONE, ViewerCloud

CREATE = ("create", "-z", ZONE, "-l", LOGS)
needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")


@pytest.fixture
def cloud(compute_server: ComputeServer, tmp_path: Path) -> ViewerCloud:
    return ViewerCloud(compute_server, tmp_path)


def test_a_viewer_is_created_and_its_connections_are_printed(cloud: ViewerCloud) -> None:
    ended = cloud.run(*CREATE)
    assert ended.returncode == 0, ended.stderr
    (name,) = cloud.names()
    assert re.fullmatch(r"xprof-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name)
    assert ended.stdout == (
        f"Instance for {LOGS} has been created.\n"
        "You can access it via following,\n"
        f"1. xprofiler connect -z {ZONE} -l {LOGS} -m ssh\n"
        "2. [Experimental (supports smaller files, < 200mb)] "
        "https://4f1e-dot-us-central1.notebooks.googleusercontent.com.\n"
        f"Instance is hosted at {name} VM.\n"
    )
    assert ended.stderr.startswith("Waiting for instance to be created. It can take a few minutes.\n\n")
    assert f"The VM {name} exists" in ended.stderr
    assert " s: serving\n" in ended.stderr


def test_its_vm_is_labelled_so_that_it_is_found_with_its_link(cloud: ViewerCloud) -> None:
    cloud.run(*CREATE)
    (viewer,) = json.loads(cloud.run("list", "--format", "json").stdout)
    assert viewer["log_directory"] == LOGS
    assert viewer["url"] == "https://4f1e-dot-us-central1.notebooks.googleusercontent.com"
    (instance,) = cloud.compute.instances()
    assert instance["labels"]["tb_launched_ts"] == "2"
    assert instance["labels"]["tensorboard_plugin_profile"] == "2-24-2"


@pytest.mark.parametrize("path", ["a,b;c d", 'it\'s "$(touch x)"', "ünï"])
def test_log_directories_with_commas_and_quotes_arrive_exactly(cloud: ViewerCloud, path: str) -> None:
    cloud.statuses = []
    cloud.run(
        "create", "-z", ZONE, "-l", f"gs://test-bucket/{path}/", "--timeout", "0.1", "--auto-delete-on-failure-off"
    )
    (instance,) = cloud.compute.instances()
    metadata = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    assert metadata["xprofiler_log_directory"] == f"gs://test-bucket/{path}"
    assert metadata["startup-script"].startswith("#!/bin/bash")


def test_the_default_is_a_machine_with_memory_and_a_ttl_is_kept_by_compute(cloud: ViewerCloud) -> None:
    cloud.run(*CREATE, "--ttl", "8h")
    (instance,) = cloud.compute.instances()
    assert instance["machineType"].endswith("/c4-highmem-8")
    assert instance["scheduling"]["maxRunDuration"] == {"seconds": "28800"}
    assert instance["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert instance["labels"]["xprofiler_ttl"] == "28800s"


# --- Another one for the same log directory ---


def test_another_one_is_created_only_after_a_yes(cloud: ViewerCloud) -> None:
    cloud.add_viewer("xprof-old")
    declined = cloud.run(*CREATE, stdin="n\n")
    assert declined.returncode == 1
    assert declined.stdout.splitlines()[0].split() == ["Log_Directory", "URL", "Name", "Zone"]
    assert declined.stderr.startswith(f"Instance for {LOGS} already exists.\n\n")
    assert (
        "\n\nDo you want to continue to create another instance with the same log directory? (y/n)\n" in declined.stderr
    )
    assert declined.stderr.endswith("Exiting...\n")
    assert cloud.names() == ["xprof-old"]
    assert cloud.run(*CREATE, stdin="Y\n").returncode == 0
    assert len(cloud.names()) == 2


def test_quiet_prompts_nothing_and_skip_creates_none(cloud: ViewerCloud) -> None:
    cloud.add_viewer("xprof-old")
    skipped = cloud.run(*CREATE, "--skip-creation-if-exists")
    assert (skipped.returncode, cloud.names()) == (0, ["xprof-old"])
    assert skipped.stderr.endswith("Exiting...\n")
    assert "(y/n)" not in skipped.stderr
    assert cloud.run(*CREATE, "--quiet").returncode == 0
    assert len(cloud.names()) == 2


# --- Refusals before anything is created ---


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-l", "b/run"), 2, "gs://"),
        (("-l", "gs://no-such-bucket/run"), 3, "Log directory gs://no-such-bucket/run does not exist"),
        (("-l", "gs://no-such-bucket"), 3, "Log directory gs://no-such-bucket does not exist"),
        (("-z", "us-nowhere1-a"), 3, "there is no zone us-nowhere1-a"),
        (("-z", "-a"), 2, ""),
        (("-m", "e9-large"), 3, "The machine type and zone do not match."),
        (("-n", "Not;a name"), 2, "not a valid name of a VM"),
        (("-n", "xprof-old"), 2, "a VM xprof-old already exists"),
        (("--ttl", "soon"), 2, "argument --ttl: 'soon'"),
        (("--ttl", "1s"), 2, "between 30s and 120d"),
        (("--timeout", "-1"), 2, "'-1' is not a duration"),
        (("--timeout", "nan"), 2, "'nan' is not a duration"),
        (("--machine-typ", "x"), 2, "did you mean --machine-type?"),
    ],
)
def test_invalid_arguments_are_refused_before(
    cloud: ViewerCloud, arguments: tuple[str, ...], code: int, message: str
) -> None:
    cloud.add_viewer("xprof-old", metadata={"xprofiler_log_directory": "gs://test-bucket/other"})
    ended = cloud.run(*CREATE, *arguments)
    assert ended.returncode == code, ended.stderr
    assert message in ended.stderr
    assert cloud.names() == ["xprof-old"]
    assert not [request for request in cloud.compute.requests if request.operation in ("insert", "delete")]


def test_zones_that_have_the_machine_type_are_suggested(cloud: ViewerCloud) -> None:
    ended = cloud.run("create", "-z", "us-central2-b", "-l", LOGS, "-m", "a3-highgpu-8g")
    assert ended.returncode == 3
    assert ended.stderr.removeprefix("xprofiler: ") == (
        "Please check the machine type w/ us-central2-b and try again. You can investigate zones with the machine type "
        "a3-highgpu-8g available:\n"
        'gcloud compute machine-types list --filter="name=a3-highgpu-8g" --format="value(zone)"\n'
        "The machine type and zone do not match.\n"
        "Suggested zones with machine type a3-highgpu-8g:\n['us-central1-a', 'us-central1-c', 'us-east5-a']\n"
    )


def test_without_permission_it_names_the_account_and_the_role(cloud: ViewerCloud) -> None:
    cloud.compute.is_permitted = False
    assert cloud.run(*CREATE).returncode == 4
    cloud.compute.is_permitted = True
    cloud.compute.storage.faults.always(Status(403), on="list")
    refused = cloud.run(*CREATE)
    assert refused.returncode == 4
    assert "roles/storage.objectUser" in refused.stderr
    assert cloud.names() == []


def test_a_refused_token_is_reported(cloud: ViewerCloud) -> None:
    cloud.compute.accepted_tokens = {"another"}
    ended = cloud.run(*CREATE)
    assert ended.returncode == 4
    assert "gcloud auth login" in ended.stderr


# --- Failures leave nothing behind ---


def test_a_zone_out_of_capacity_is_reported_and_nothing_remains(cloud: ViewerCloud) -> None:
    cloud.compute.fail_operations("ZONE_RESOURCE_POOL_EXHAUSTED", on="insert")
    ended = cloud.run(*CREATE)
    assert ended.returncode == 1
    assert "try another zone" in ended.stderr
    assert "Unable to set up instance. Initiating cleanup.\n" in ended.stderr
    assert "Nothing remains" in ended.stderr
    assert cloud.names() == []


def test_a_vm_that_never_starts_is_given_up_and_deleted(cloud: ViewerCloud) -> None:
    cloud.statuses = []
    ended = cloud.run(*CREATE, "--timeout", "0.5")
    assert ended.returncode == 5
    assert "it has written no status" in ended.stderr
    assert cloud.names() == []


def test_a_vm_with_a_failed_startup_is_deleted_and_its_output_is_printed(cloud: ViewerCloud) -> None:
    cloud.statuses = [INSTALLING, FAILED]
    ended = cloud.run(*CREATE)
    assert ended.returncode == 1
    assert "installing XProf: exit code 1: no such release" in ended.stderr
    assert cloud.names() == []


def test_the_log_of_a_failed_start_is_shown_before_the_vm_is_deleted(cloud: ViewerCloud) -> None:
    def write(instance: Mapping[str, Any]) -> None:
        lines = [f"line {number}" for number in range(100)]
        cloud.compute.set_serial_output(instance["name"], "\n".join([*lines, "\x1b[1mpip: no space left\x1b[0m\r\n"]))

    cloud.compute.on_instance_created(write)
    cloud.statuses = [INSTALLING, FAILED]
    ended = cloud.run(*CREATE)
    assert ended.returncode == 1
    assert "The last lines of the serial port of xprof-" in ended.stderr
    assert "  line 99\n  pip: no space left\n" in ended.stderr
    assert "line 10\n" not in ended.stderr
    assert cloud.names() == []


def test_a_vm_is_kept_on_request(cloud: ViewerCloud) -> None:
    cloud.statuses = [FAILED]
    ended = cloud.run(*CREATE, "--auto-delete-on-failure-off")
    assert ended.returncode == 1
    assert (
        "Failure in setting up VM.\nNote that the VM was NOT deleted and may be in a bad state and/or unstable.\n\n"
        in ended.stderr
    )
    (name,) = cloud.names()
    assert f"xprofiler delete -z {ZONE} -n {name}" in ended.stderr


def test_a_vm_that_cannot_be_deleted_is_named(cloud: ViewerCloud) -> None:
    cloud.statuses = [FAILED]
    cloud.compute.faults.always(Status(403), on="delete")
    ended = cloud.run(*CREATE)
    (name,) = cloud.names()
    assert f"The VM {name} in zone {ZONE} MAY REMAIN" in ended.stderr
    assert f"Delete it: xprofiler delete -z {ZONE} -n {name}" in ended.stderr


@pytest.mark.parametrize("fault", [Status(503, after_apply=True), Reset(after_apply=True), Status(429), Status(503)])
def test_a_dropped_answer_does_not_create_a_second_vm(cloud: ViewerCloud, fault: Status | Reset) -> None:
    cloud.compute.faults.script([fault], on="insert")
    assert cloud.run(*CREATE).returncode == 0
    assert len(cloud.names()) == 1


def test_a_foreign_vm_of_the_same_name_is_never_deleted(cloud: ViewerCloud) -> None:
    cloud.add_viewer("mine", metadata={"xprofiler_log_directory": "gs://test-bucket/other"})
    cloud.compute.faults.script([Status(404)], on="get")  # The VM appears between the check and the request.
    ended = cloud.run(*CREATE, "-n", "mine")
    assert ended.returncode == 1
    assert "HTTP 409" in ended.stderr
    assert cloud.names() == ["mine"]


def test_a_label_that_cannot_be_set_does_not_fail_the_creation(cloud: ViewerCloud) -> None:
    cloud.compute.faults.always(Status(403), on="set_labels")
    ended = cloud.run(*CREATE)
    assert ended.returncode == 0
    assert "note: could not label" in ended.stderr


def test_without_a_link_the_tunnel_is_printed(cloud: ViewerCloud) -> None:
    cloud.statuses = [{**READY, "tb_backend_id": "", "error": "no proxy"}]
    ended = cloud.run(*CREATE)
    assert ended.returncode == 0
    assert "None" not in ended.stdout
    assert "\n2. " not in ended.stdout
    assert "no proxy" in ended.stderr
    (instance,) = cloud.compute.instances()
    assert not instance["labels"].get("tb_backend_id")


# --- gcloud ---


@needs_gcloud
def test_the_dry_run_prints_the_gcloud_command_that_makes_the_same_vm(cloud: ViewerCloud) -> None:
    where = ("-z", ZONE, "-l", "gs://test-bucket/a,b 'c'", "-n", "xprof-1", "--ttl", "8h")
    dry = cloud.run("create", *where, "--dry-run")
    assert dry.returncode == 0
    assert cloud.compute.requests == []
    cloud.statuses = []
    cloud.run("create", *where, "--timeout", "0.1", "--auto-delete-on-failure-off")
    ours = cloud.compute.instance("xprof-1")
    cloud.compute.remove_instance("xprof-1")
    subprocess.run(shlex.split(dry.stdout), env=cloud.environment(), capture_output=True, check=True)
    theirs = cloud.compute.instance("xprof-1")
    assert ours["labels"].pop("xprofiler_creation") != theirs["labels"].pop("xprofiler_creation")
    for key in ("machineType", "labels", "tags", "serviceAccounts", "scheduling"):
        assert ours[key] == theirs[key], key
    assert _metadata(ours) == _metadata(theirs)
    assert [sorted(one) for one in ours["networkInterfaces"]] == [sorted(one) for one in theirs["networkInterfaces"]]


def _metadata(instance: dict[str, dict[str, list[dict[str, str]]]]) -> dict[str, str]:
    return {item["key"]: item["value"] for item in instance["metadata"]["items"]}


@needs_gcloud
def test_other_flags_go_to_gcloud_and_pairs_join_ours(cloud: ViewerCloud) -> None:
    extra = ("--labels", "team=a", "--metadata=^:^note=x,y:other=z", "--no-address")
    ended = cloud.run(*CREATE, *extra)
    assert ended.returncode == 0, ended.stderr
    (instance,) = cloud.compute.instances()
    assert instance["labels"]["team"] == "a"
    assert instance["labels"]["xprofiler_version"]
    assert _metadata(instance)["note"] == "x,y"
    assert _metadata(instance)["xprofiler_log_directory"] == LOGS
    assert not instance["networkInterfaces"][0].get("accessConfigs")


@needs_gcloud
def test_gcloud_creates_the_vm_in_the_project_of_the_search(cloud: ViewerCloud) -> None:
    other = {"GOOGLE_CLOUD_PROJECT": "test-project", "CLOUDSDK_CORE_PROJECT": "gclouds-own"}
    assert "--project=test-project" in shlex.split(cloud.run(*CREATE, "--dry-run", **other).stdout)
    ended = cloud.run(*CREATE, "--no-address", **other)
    assert ended.returncode == 0, ended.stderr
    assert "gclouds-own" not in str([request.path for request in cloud.compute.requests])
    assert len(cloud.names()) == 1


@pytest.mark.parametrize("flag", ["--project=other", "--zone=us-east5-a", "--async"])
def test_a_flag_that_would_create_an_unmanaged_vm_is_refused_before(cloud: ViewerCloud, flag: str) -> None:
    ended = cloud.run(*CREATE, "--", "--no-address", flag)
    assert ended.returncode == 2
    assert f"{flag.partition('=')[0]} cannot be passed to gcloud" in ended.stderr
    assert cloud.compute.requests == []


@needs_gcloud
def test_a_foreign_vm_that_gcloud_finds_is_never_deleted(cloud: ViewerCloud) -> None:
    cloud.add_viewer("mine", metadata={"xprofiler_log_directory": "gs://test-bucket/other"})
    cloud.compute.faults.script([Status(404)], on="get")  # The VM appears between the check and the request.
    ended = cloud.run(*CREATE, "-n", "mine", "--no-address")
    assert ended.returncode == 1
    assert "already exists" in ended.stderr
    assert cloud.names() == ["mine"]
    assert not [request for request in cloud.compute.requests if request.operation == "delete"]


@needs_gcloud
def test_a_flag_that_gcloud_refuses_creates_nothing(cloud: ViewerCloud) -> None:
    ended = cloud.run(*CREATE, "--no-such-flag-of-gcloud")
    assert ended.returncode == 1
    assert "--no-such-flag-of-gcloud" in ended.stderr
    assert cloud.names() == []


def test_without_gcloud_a_plain_create_works_and_one_with_its_flags_names_what_to_install(
    cloud: ViewerCloud, tmp_path: Path
) -> None:
    path = {"PATH": str(tmp_path)}
    assert cloud.run(*CREATE, **path).returncode == 0
    ended = cloud.run(*CREATE, "--quiet", "--no-address", **path)
    assert ended.returncode == 3
    assert "install the Google Cloud CLI" in ended.stderr
    assert len(cloud.names()) == 1


def test_verbose_prints_every_request(cloud: ViewerCloud) -> None:
    ended = cloud.run(*CREATE, "--verbose")
    methods = re.findall(r"^(GET|POST|DELETE) http", ended.stderr, re.MULTILINE)
    asked = [request for request in cloud.compute.requests if request.operation != "batch"]
    assert len(methods) == len(asked)
