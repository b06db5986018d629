"""`xprofiler delete` with a Compute on loopback: it prompts for each VM, and deletes only the confirmed ones."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_testing.faults import Reset, Status
from xprofiler.viewers.on_compute import flags_of_all_commands

from ..loopback.compute import ComputeServer
from ..waiting import pipe_without_reader, wait_until
from .conftest import Run
from .viewer_vms import ZONE, add_viewer

needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

VM = "xprof-8187640b-e612-4c47-b4df-59a7fc86b253"
QUESTION = "\nDo you want to continue to delete the VM `{}`?\nEnter y/n: "


@pytest.fixture(autouse=True)
def _here(cloud: ComputeServer) -> None:
    """Redirect all tests to the Compute on loopback."""


def left(server: ComputeServer) -> list[str]:
    return [vm["name"] for vm in server.instances()]


def test_the_walk_of_the_readme(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, VM, logs="gs://some-bucket/some-run/tensorboard", link="60ea5ae6")
    ended = run("delete", "-z", ZONE, "-l", "gs://some-bucket/some-run/tensorboard", answers="y\n")
    head, lines, row = ended.output.splitlines()[1:]
    assert ended.output.startswith("Found 1 VM(s) to delete.\nLog_Directory  ")
    assert head.split() == ["Log_Directory", "URL", "Name", "Zone"]
    assert set(lines) == {"-", " "}
    assert row.split() == [
        "gs://some-bucket/some-run/tensorboard",
        "https://60ea5ae6-dot-us-central1.notebooks.googleusercontent.com",
        VM,
        ZONE,
    ]
    assert ended.errors == QUESTION.format(VM) + f"Will delete VM `{VM}`\n"
    assert (ended.code, left(cloud)) == (0, [])


def test_by_name_as_in_the_readme(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, VM)
    assert run("delete", "-z", ZONE, "--vm-name", VM, answers="Y\n").code == 0
    assert left(cloud) == []


def test_each_is_confirmed_and_only_confirmed_ones_are_deleted(run: Run, cloud: ComputeServer) -> None:
    for name in ("xprof-a", "xprof-b", "xprof-c", "xprof-d"):
        add_viewer(cloud, name, logs="gs://bucket/run")
    ended = run("delete", "-z", ZONE, "-l", "gs://bucket/run", answers="n\ny\nyes\ny\n")
    assert left(cloud) == ["xprof-a", "xprof-c"]
    assert ended.code == 0
    assert "Keep VM `xprof-a`\n" in ended.errors
    assert "Keep VM `xprof-c`\n" in ended.errors
    assert {record.path.partition("?")[0].rpartition("/")[2] for record in cloud.requests_for("delete")} == {
        "xprof-b",
        "xprof-d",
    }


@pytest.mark.parametrize("answers", ["n\n", "", "\n", "delete\n"], ids=repr)
def test_without_a_yes_nothing_is_deleted(run: Run, cloud: ComputeServer, answers: str) -> None:
    add_viewer(cloud, VM)
    ended = run("delete", "-z", ZONE, "-n", VM, answers=answers)
    assert (ended.code, left(cloud)) == (1, [VM])
    assert ended.errors.endswith(f"Keep VM `{VM}`\nxprofiler: nothing was deleted\n")


@pytest.mark.parametrize("stdin", ["<&-", "</dev/null", "<<< $'\\xff'"])
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_no_answer_means_no(cloud: ComputeServer, stdin: str) -> None:
    add_viewer(cloud, VM)
    command = f"{shlex.quote(sys.executable)} -m xprofiler delete -z {ZONE} -n {VM} {stdin}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, left(cloud)) == (1, [VM])
    assert ended.stderr.endswith("xprofiler: nothing was deleted\n")


def test_with_a_closed_output_nothing_is_deleted(cloud: ComputeServer) -> None:
    add_viewer(cloud, VM)
    argv = [sys.executable, "-m", "xprofiler", "delete", "-q", "-z", ZONE, "-n", VM]
    with pipe_without_reader() as output:
        ended = subprocess.run(argv, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, left(cloud)) == (1, [VM])
    assert ended.stderr == "xprofiler: nothing was deleted: the reader of the list has exited\n"


def test_quiet_does_not_prompt(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, VM)
    ended = run("delete", "-q", "-z", ZONE, "-n", VM)
    assert (ended.code, left(cloud), ended.errors) == (0, [], f"Will delete VM `{VM}`\n")


def test_other_zones_other_logs_and_other_vms_are_left_alone(run: Run, cloud: ComputeServer) -> None:
    cloud.add_instance("trainer")
    add_viewer(cloud, "xprof-a", logs="gs://bucket/run")
    add_viewer(cloud, "xprof-far", "us-east5-a", logs="gs://bucket/run")
    add_viewer(cloud, "xprof-longer", logs="gs://bucket/run/2")
    assert run("delete", "-q", "-z", ZONE, "-l", "gs://bucket/run/").code == 0
    assert sorted(left(cloud)) == ["trainer", "xprof-far", "xprof-longer"]
    assert run("delete", "-q", "-z", ZONE, "-n", "trainer").code == 3
    assert "trainer" in left(cloud)


def test_without_names_nothing_is_deleted(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, VM)
    ended = run("delete", "-q", "-z", ZONE)
    assert ended.code == 2
    assert "Either --vm-name or --log-directory must be specified." in ended.errors
    assert left(cloud) == [VM]


def test_the_default_zone_is_gclouds(run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add_viewer(cloud, VM)
    ended = run("delete", "-q", "-n", VM)
    assert (ended.code, left(cloud)) == (2, [VM])
    assert "the zone is missing: give -z ZONE_NAME" in ended.errors
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", ZONE)
    assert run("delete", "-q", "-n", VM).code == 0
    assert left(cloud) == []


def test_no_match_is_not_found(run: Run) -> None:
    assert run("delete", "-z", ZONE, "-n", "xprof-z") == (3, "", "No VM(s) to delete.\n")


def test_missing_ones_are_reported_and_the_others_are_deleted(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    ended = run("delete", "-q", "-z", ZONE, "-n", "xprof-a", "xprof-y", "xprof-z", "-l", "gs://bucket/none")
    assert (ended.code, left(cloud)) == (3, [])
    assert ended.errors.endswith("has the log directory or name gs://bucket/none, xprof-y, xprof-z\n")


def test_a_dry_run_prints_what_gcloud_would_do_and_does_nothing(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    add_viewer(cloud, "xprof-b")
    ended = run("delete", "--dry-run", "-z", ZONE, "-n", "xprof-a", "xprof-b")
    assert ended.code == 0
    assert ended.output.splitlines()[-1] == (
        f"gcloud compute instances delete xprof-a xprof-b --quiet --zone={ZONE} --project=test-project"
    )
    assert left(cloud) == ["xprof-a", "xprof-b"]


@needs_gcloud
def test_the_commands_of_a_dry_run_have_the_same_effect(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    add_viewer(cloud, "xprof-b")
    command = run("delete", "--dry-run", "-z", ZONE, "-n", "xprof-b").output.splitlines()[-1]
    subprocess.run(command.split(), check=True, capture_output=True)
    assert left(cloud) == ["xprof-a"]


@needs_gcloud
def test_flags_of_gcloud_are_passed_to_it(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    ended = run("delete", "-q", "-v", "-z", ZONE, "-n", "xprof-a", "--keep-disks=all")
    assert (ended.code, left(cloud)) == (0, [])
    assert (
        f"$ gcloud compute instances delete xprof-a --keep-disks=all --quiet --zone={ZONE} --project=test-project\n"
        in (ended.errors)
    )


def test_flags_for_the_account_also_apply_to_the_search() -> None:
    extra = ["--async", "--project=other", "--keep-disks=all", "--account=me@example.com"]
    assert flags_of_all_commands(extra) == ["--project=other", "--account=me@example.com"]


@needs_gcloud
def test_a_flag_that_needs_no_value_gets_no_vm_for_one(run: Run, cloud: ComputeServer) -> None:
    for name in ("xprof-a", "trainer"):
        add_viewer(cloud, name)
    assert run("delete", "-q", "-z", ZONE, "-n", "xprof-a", "--no-graceful-shutdown", "trainer").code == 1
    assert sorted(left(cloud)) == ["trainer", "xprof-a"]


@needs_gcloud
def test_no_file_of_flags_leads_to_another_zone(run: Run, cloud: ComputeServer, tmp_path: Path) -> None:
    for zone in (ZONE, "us-east5-a"):
        add_viewer(cloud, "xprof-a", zone)
    flags = tmp_path / "flags.yaml"
    flags.write_text("--zone: us-east5-a\n")
    assert run("delete", "-q", "-z", ZONE, "-n", "xprof-a", f"--flags-file={flags}").code == 0
    assert [vm["zone"].rpartition("/")[2] for vm in cloud.instances()] == ["us-east5-a"]


# --- In parallel ---------------------------------------------------------------------------------------


@pytest.mark.timing
def test_ten_are_deleted_in_parallel(run: Run, cloud: ComputeServer) -> None:
    for number in range(10):
        add_viewer(cloud, f"xprof-{number}", logs="gs://bucket/run")
    cloud.operations.seconds = 1.0
    assert run("delete", "-q", "-z", ZONE, "-l", "gs://bucket/run").code == 0
    assert left(cloud) == []
    times = [record.time for record in cloud.requests_for("delete")]
    assert len(times) == 10
    assert max(times) - min(times) < cloud.operations.seconds


def test_a_failed_deletion_is_reported_and_the_others_are_deleted(run: Run, cloud: ComputeServer) -> None:
    for name in ("xprof-a", "xprof-b", "xprof-c"):
        add_viewer(cloud, name)
    cloud.fail_operations("RESOURCE_IN_USE", "it is being used", on="delete")
    ended = run("delete", "-q", "-z", ZONE, "-n", "xprof-a", "xprof-b", "xprof-c")
    (name,) = left(cloud)
    assert ended.code == 1
    assert ended.errors.endswith(
        f"xprofiler: could not delete the VM {name} in zone {ZONE}: it is being used (RESOURCE_IN_USE)\n"
    )


def test_failed_and_missing_vms_are_both_reported(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    cloud.faults.always(Status(403), on="delete")
    ended = run("delete", "-q", "-z", ZONE, "-n", "xprof-a", "xprof-z")
    refused, missing = ended.errors.splitlines()[-2:]
    assert refused.startswith("xprofiler: could not delete the VM xprof-a ")
    assert missing == f"xprofiler: no VM in {ZONE} has the log directory or name xprof-z"
    assert ended.code == 1


def test_a_missing_permission_to_delete_names_the_role(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, VM)
    cloud.faults.always(Status(403), on="delete")
    ended = run("delete", "-q", "-z", ZONE, "-n", VM)
    assert ended.code == 4
    assert "grant anonymous the role roles/compute.instanceAdmin.v1" in ended.errors


def test_a_concurrently_deleted_vm_is_not_a_failure(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, VM)
    cloud.faults.script([Status(404)], on="delete")
    assert run("delete", "-q", "-z", ZONE, "-n", VM).code == 0


@pytest.mark.parametrize("fault", [Status(503, after_apply=True), Reset(after_apply=True), Status(429)], ids=repr)
def test_a_dropped_answer_is_requested_again_for_the_same_deletion(
    run: Run, cloud: ComputeServer, fault: Status | Reset
) -> None:
    add_viewer(cloud, VM)
    cloud.faults.script([fault], on="delete")
    assert run("delete", "-q", "-z", ZONE, "-n", VM).code == 0
    assert left(cloud) == []
    assert len({record.path for record in cloud.requests_for("delete")}) == 1


def test_an_operation_that_takes_longer_than_one_wait_is_waited_for(run: Run, cloud: ComputeServer) -> None:
    add_viewer(cloud, VM)
    cloud.operations.seconds, cloud.operations.wait_seconds = 1.0, 0.2
    assert run("delete", "-q", "-z", ZONE, "-n", VM).code == 0
    assert left(cloud) == []
    assert len(cloud.requests_for("wait")) > 1


# --- Interrupted ---------------------------------------------------------------------------------------


def interrupted(
    *arguments: str, cloud: ComputeServer, after: str, answers: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command and send it SIGINT when it has requested an operation."""
    argv = [sys.executable, "-m", "xprofiler", *arguments]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdin
        process.stdin.write(answers)
        process.stdin.flush()
        wait_until(lambda: cloud.requests_for(after), running=process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def test_ctrl_c_at_the_prompt_deletes_nothing(cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    add_viewer(cloud, "xprof-b")
    ended = interrupted("delete", "-z", ZONE, "-n", "xprof-a", "xprof-b", answers="y\n", cloud=cloud, after="list")
    assert ended.returncode == 130
    assert left(cloud) == ["xprof-a", "xprof-b"]
    assert "Traceback" not in ended.stderr


def test_ctrl_c_while_it_waits_prints_what_continues(cloud: ComputeServer) -> None:
    add_viewer(cloud, "xprof-a")
    cloud.operations.seconds = 60.0
    ended = interrupted("delete", "-q", "-z", ZONE, "-n", "xprof-a", cloud=cloud, after="wait")
    assert ended.returncode == 130
    assert "xprof-a may still be deleted; check with: xprofiler list -n xprof-a\ninterrupted\n" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_gcloud_it_works_as_well(run: Run, cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add_viewer(cloud, VM)
    monkeypatch.setenv("PATH", str(Path(os.devnull)))
    assert run("delete", "-q", "-z", ZONE, "-n", VM).code == 0
    assert left(cloud) == []
