"""Readers know the planned processes and steps of a job, the configs of each host, and the run of each entry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from google_cloud_mldiagnostics._user_configs import digest_of
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import JournalReader

from ..waiting import wait_until
from . import run_programs as programs
from .kept_entries import kept_entries, kept_payloads


def processes() -> list[dict[str, Any]]:
    return kept_payloads("mlrun_process")


def labels_of_ends() -> list[Mapping[str, str]]:
    """Return the labels of the entries with which companions recorded the ends of processes."""
    batches = JournalReader(COMPANION_LOG_ID, root=diagnostics_directory()).read_new()
    return [each.context.labels for batch in batches for each in batch if each.payload["kind"] == "job_ended"]


def test_the_plan_that_the_program_gives_is_in_each_entry_of_its_process() -> None:
    assert programs.run("start_run(expected_processes=4, planned_steps=100)").code == 0
    assert [entry["phase"] for entry in processes()] == ["ACTIVE", "COMPLETED"]
    for entry in processes():
        assert (entry["expected_processes"], entry["expected_processes_source"]) == (4, "argument")
        assert entry["planned_steps"] == 100


def test_the_plan_may_be_in_the_configs_and_arguments_take_precedence() -> None:
    program = "start_run(configs={'planned_steps': 7, 'expected_processes': 2}, expected_processes=3)"
    assert programs.run(program).code == 0
    assert (processes()[0]["expected_processes"], processes()[0]["planned_steps"]) == (3, 7)


def test_a_job_without_a_plan_claims_none() -> None:
    assert programs.run("start_run()").code == 0
    assert not {"expected_processes", "expected_processes_source", "planned_steps"} & processes()[0].keys()


def test_the_plan_of_a_recorder_counts_for_the_run_too() -> None:
    program = """
        from ml_goodput_measurement.goodput import GoodputRecorder
        recorder = GoodputRecorder("train", "goodput_train", True, expected_processes=2, planned_steps=50)
        recorder.record_job_start_time()
        start_run()
        """
    assert programs.run(program).code == 0
    assert (processes()[0]["expected_processes"], processes()[0]["planned_steps"]) == (2, 50)
    entries = JournalReader("goodput_train", root=diagnostics_directory()).read_new()
    [start] = [each.payload for batch in entries for each in batch if "job_start_time" in each.payload]
    assert (start["expected_processes"], start["planned_steps"]) == (2, 50)


def test_the_launcher_says_how_many_processes_there_should_be() -> None:
    assert programs.run("start_run()", JAX_NUM_PROCESSES="16", JAX_PROCESS_ID="3").code == 0
    assert (processes()[0]["expected_processes"], processes()[0]["expected_processes_source"]) == (
        16,
        "JAX_NUM_PROCESSES",
    )


def test_the_number_is_known_while_jax_waits_for_a_process_that_never_comes() -> None:
    program = """
        import socket
        import jax
        from jax._src import distributed
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = {"num_processes": 3, "process_id": 0, "initialization_timeout": 300}
        connect = lambda: jax.distributed.initialize(f"127.0.0.1:{port}", **arguments)
        threading.Thread(target=connect, daemon=True).start()
        while distributed.global_state.client is None:
            time.sleep(0.01)
        start_run()
        ready()
        sys.stdin.readline()
        """
    job = programs.start(program, JAX_PLATFORMS="cpu", RUN_WORKLOAD_ID="w")
    programs.await_line(job, "ready")
    assert (processes()[0]["expected_processes"], processes()[0]["expected_processes_source"]) == (3, "jax")
    job.kill()
    job.communicate()


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "four", 10**9])
def test_a_plan_that_is_not_a_number_is_refused_with_its_name(value: object) -> None:
    ended = programs.run(f"start_run(expected_processes={value!r})")
    assert ended.code == 1
    assert re.search(r"MLRunConfigurationError: expected_processes is .*give a whole number from 1", ended.errors)


def test_hosts_with_equal_configs_have_equal_digests() -> None:
    job = {"RUN_WORKLOAD_ID": "w", "TORCHELASTIC_RUN_ID": "t", "JAX_NUM_PROCESSES": "3"}
    rates = {"0": 0.1, "1": 0.1, "2": 0.2}
    configs = {"0": "{'lr': 0.1, 'depth': 2}", "1": "{'depth': 2, 'lr': 0.1}", "2": "{'lr': 0.2, 'depth': 2}"}
    for index in rates:
        assert programs.run(f"start_run(configs={configs[index]})", JAX_PROCESS_ID=index, **job).code == 0
    digests = {entry["process_index"]: entry["config_digest"] for entry in processes()}
    assert digests["0"] == digests["1"] != digests["2"]
    assert digests["0"] == digest_of({"depth": "2", "lr": "0.1"})
    recorded = {
        entry.context.labels["process_index"]: entry.payload["userConfigs"]["lr"]
        for entry in kept_entries("mlrun_configs")
        if "userConfigs" in entry.payload
    }
    assert recorded == {"0": "0.1", "1": "0.1", "2": "0.2"}


def test_a_change_of_the_configs_changes_the_digest() -> None:
    program = """
        run = start_run(configs={"lr": 0.1}, pauses=Pauses(heartbeat_seconds=0.05))
        run.configs["lr"] = 0.2
        sys.stdin.readline()
        """
    job = programs.start(program)
    wait_until(lambda: processes() and processes()[-1]["config_digest"] == digest_of({"lr": "0.2"}))
    assert processes()[0]["config_digest"] == digest_of({"lr": "0.1"})
    assert programs.end(job, input_text="go on\n").code == 0


def test_the_companions_entries_name_the_run_and_its_attempt() -> None:
    program = """
        from cloud_tpu_diagnostics import diagnostic
        from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
        from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
        from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
        with diagnostic.diagnose(DiagnosticConfig(DebugConfig(hang_config=HangConfig(enabled=True)))):
            start_run(expected_processes=2)
        """
    environment = {"RUN_WORKLOAD_ID": "w", "ML_DIAGNOSTICS_JOB": "job"}
    assert programs.run(program, **environment).code == 0
    assert programs.run(program, **environment).code == 0
    run_id = programs.kept_run()["name"].rpartition("/")[2]
    wait_until(lambda: len(labels_of_ends()) == 2)  # The companions outlive their jobs.
    assert {(each["job"], each["run"], each["expected_processes"]) for each in labels_of_ends()} == {
        ("job", run_id, "2")
    }
    assert sorted(each["attempt"] for each in labels_of_ends()) == ["1", "2"]
