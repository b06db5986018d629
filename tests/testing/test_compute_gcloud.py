"""The real gcloud before the loopback Compute: each command that xprofiler needs, and what it asks for."""

import json
import os
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.faults import Status

from ..loopback.compute import ComputeServer, metadata_of

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

ZONE = "us-central1-a"


@pytest.fixture
def gcloud(compute_server: ComputeServer, tmp_path: Path) -> Any:
    """Run gcloud with its own settings and keys, and return its result."""
    environment = {
        **os.environ,
        **compute_server.environment(),
        "HOME": str(tmp_path),
    }

    def run(*arguments: Any, **variables: Any) -> Any:
        command = ["gcloud", *arguments]
        return subprocess.run(
            command, env={**environment, **variables}, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def asked(server: Any) -> Any:
    """Return the requests: operation, and path without the host's part."""
    return [(record.operation, urllib.parse.unquote(record.path.partition("?")[0])) for record in server.requests]


def test_it_lists_vms_of_all_zones(gcloud: Any, compute_server: ComputeServer) -> None:
    compute_server.add_instance("a")
    compute_server.add_instance("b", "europe-west4-a")
    done = gcloud("compute", "instances", "list", "--format=value(name,zone.basename())")
    assert sorted(done.stdout.split("\n")) == ["", f"a\t{ZONE}", "b\teurope-west4-a"], done.stderr
    assert asked(compute_server) == [("list", "/compute/v1/projects/test-project/aggregated/instances")]


def test_it_lists_vms_of_one_zone(gcloud: Any, compute_server: ComputeServer) -> None:
    compute_server.add_instance("a")
    compute_server.add_instance("b", "europe-west4-a")
    done = gcloud("compute", "instances", "list", f"--zones={ZONE}", "--format=value(name)")
    assert done.stdout.split() == ["a"], done.stderr


def test_it_lists_vms_of_several_zones_in_a_batch(gcloud: Any, compute_server: ComputeServer) -> None:
    for name, zone in (("a", ZONE), ("b", "europe-west4-a"), ("c", "us-east5-a")):
        compute_server.add_instance(name, zone)
    done = gcloud("compute", "instances", "list", f"--zones={ZONE},europe-west4-a", "--format=value(name)")
    assert sorted(done.stdout.split()) == ["a", "b"], done.stderr
    assert asked(compute_server) == [("batch", "/batch/compute/v1")]


def test_it_describes_what_there_is(gcloud: Any, compute_server: ComputeServer) -> None:
    compute_server.add_instance("a", labels={"tb_backend_id": "7"})
    done = gcloud("compute", "instances", "describe", "a", f"--zone={ZONE}", "--format=json")
    assert json.loads(done.stdout)["labels"] == {"tb_backend_id": "7"}
    done = gcloud("compute", "instances", "describe", "b", f"--zone={ZONE}")
    assert done.returncode == 1
    assert "The resource 'projects/test-project/zones/us-central1-a/instances/b' was not found" in done.stderr


def test_it_makes_labels_and_deletes_a_vm(gcloud: Any, compute_server: ComputeServer, tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("#!/bin/bash\necho 'a, b'\n")
    done = gcloud(
        *("compute", "instances", "create", "xprof-1", f"--zone={ZONE}", "--machine-type=c4-highmem-8"),
        *("--image-family=debian-12", "--image-project=debian-cloud", "--scopes=cloud-platform"),
        *("--tags=default-allow-ssh", "--labels=xprofiler_version=1-0-0", "--metadata=k=v"),
        f"--metadata-from-file=startup-script={script}",
    )
    assert done.returncode == 0, done.stderr
    vm = compute_server.instance("xprof-1")
    assert metadata_of(vm) == {"k": "v", "startup-script": script.read_text()}
    assert [operation for operation, _ in asked(compute_server)][:2] == ["zone", "insert"]

    done = gcloud("compute", "instances", "add-labels", "xprof-1", f"--zone={ZONE}", "--labels=tb_backend_id=7")
    assert done.returncode == 0, done.stderr
    assert compute_server.instance("xprof-1")["labels"] == {"tb_backend_id": "7", "xprofiler_version": "1-0-0"}

    done = gcloud("compute", "instances", "delete", "xprof-1", f"--zone={ZONE}", "--quiet")
    assert done.returncode == 0, done.stderr
    assert compute_server.instances() == []


def test_it_waits_for_an_operation_and_reports_its_error(gcloud: Any, compute_server: ComputeServer) -> None:
    compute_server.operations.seconds = 0.5
    compute_server.fail_operations("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone has not enough resources.", on="insert")
    done = gcloud("compute", "instances", "create", "a", f"--zone={ZONE}", "--machine-type=c4-highmem-8")
    assert done.returncode == 1
    assert "The zone has not enough resources." in done.stderr
    assert compute_server.requests_for("wait")
    assert compute_server.instances() == []


def test_it_reports_a_type_that_the_zone_does_not_have(gcloud: Any, compute_server: ComputeServer) -> None:
    done = gcloud("compute", "instances", "create", "a", f"--zone={ZONE}", "--machine-type=c9-none-8")
    assert done.returncode == 1
    assert "Invalid value for field 'resource.machineType'" in done.stderr
    done = gcloud("compute", "machine-types", "list", "--filter=name=ct5lp-hightpu-4t", "--format=value(zone)")
    assert done.stdout.split() == ["us-central1-a", "us-east5-b", "europe-west4-b"], done.stderr


def test_it_describes_buckets(gcloud: Any, compute_server: ComputeServer) -> None:
    done = gcloud("storage", "buckets", "describe", "gs://test-bucket", "--format=value(name)")
    assert done.stdout.strip() == "test-bucket", done.stderr
    assert gcloud("storage", "buckets", "describe", "gs://nobodys").returncode == 1
    assert len(compute_server.storage.requests_for("bucket")) == 2


def test_it_describes_tpus(gcloud: Any, compute_server: ComputeServer) -> None:
    compute_server.add_tpu("slice", ZONE, workers=2)
    done = gcloud("compute", "tpus", "tpu-vm", "describe", "slice", f"--zone={ZONE}", "--format=json")
    assert len(json.loads(done.stdout)["networkEndpoints"]) == 2, done.stderr
    assert asked(compute_server) == [("tpu", "/v2/projects/test-project/locations/us-central1-a/nodes/slice")]
    done = gcloud("compute", "tpus", "tpu-vm", "describe", "other", f"--zone={ZONE}")
    assert done.returncode == 1
    assert "not found" in done.stderr


def test_it_gives_keys_to_os_login(gcloud: Any, compute_server: ComputeServer) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKbhUP me"
    account = {"CLOUDSDK_CORE_ACCOUNT": "me@example.com"}
    done = gcloud("compute", "os-login", "ssh-keys", "add", f"--key={key}", **account)
    assert done.returncode == 0, done.stderr
    assert compute_server.login_keys == {"me@example.com": [key]}
    done = gcloud("compute", "os-login", "ssh-keys", "add", "--key=$(ssh-add -L | grep publickey)", **account)
    assert done.returncode == 1
    assert "Invalid SSH public key" in done.stderr


def test_it_sends_its_token(gcloud: Any, compute_server: ComputeServer, tmp_path: Path) -> None:
    compute_server.accepted_tokens = {"secret"}
    token = tmp_path / "token"
    token.write_text("secret")
    variables = {"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token), "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "false"}
    compute_server.add_instance("a")
    done = gcloud("compute", "instances", "list", f"--zones={ZONE},us-east5-a", "--format=value(name)", **variables)
    assert done.stdout.split() == ["a"], done.stderr
    token.write_text("stolen")
    done = gcloud("compute", "instances", "describe", "a", f"--zone={ZONE}", **variables)
    assert done.returncode == 1
    assert "invalid authentication credentials" in done.stderr


def test_it_lists_nothing_and_succeeds_where_a_list_fails(gcloud: Any, compute_server: ComputeServer) -> None:
    compute_server.add_instance("a")
    compute_server.faults.script([Status(503)], on="list")
    done = gcloud("compute", "instances", "list", "--format=value(name)")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Some requests did not succeed.\n - a scripted fault" in done.stderr


def test_it_reports_a_missing_role(gcloud: Any, compute_server: ComputeServer) -> None:
    compute_server.is_permitted = False
    done = gcloud("compute", "instances", "delete", "a", f"--zone={ZONE}", "--quiet")
    assert done.returncode == 1
    assert "Required 'compute.instances.delete' permission" in done.stderr


@pytest.mark.skipif(not shutil.which("ssh") or not shutil.which("ssh-keygen"), reason="ssh is not installed")
def test_it_prints_how_it_would_log_in(gcloud: Any, compute_server: ComputeServer) -> None:
    vm = compute_server.add_instance("a")
    address = vm["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    done = gcloud("compute", "ssh", "a", f"--zone={ZONE}", "--dry-run", "--", "-N", "-L", "6006:localhost:6006")
    assert done.stdout.rstrip().endswith(f"@{address} -N -L 6006:localhost:6006"), done.stderr

    done = gcloud("compute", "ssh", "a", f"--zone={ZONE}", "--dry-run", "--tunnel-through-iap")
    assert f"start-iap-tunnel 'a' '%p' --listen-on-stdin --project=test-project --zone={ZONE}" in done.stdout

    workers = compute_server.add_tpu("slice", ZONE, workers=2)["networkEndpoints"]
    tpu = ("compute", "tpus", "tpu-vm", "ssh", "slice", f"--zone={ZONE}", "--worker=all", "--command=true")
    printed = gcloud(*tpu, "--dry-run").stdout
    assert all(f"@{worker['accessConfig']['externalIp']} -- true" in printed for worker in workers)
