"""Backend, folder and identity, each rule a test."""

import logging
import os
import stat
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.environment import (
    Backend,
    Orchestrator,
    announce_plan,
    announce_run,
    announced_labels,
    configured_backend,
    diagnostics_directory,
    expected_processes,
    identity,
    orchestrator,
    planned_steps,
)
from ml_diagnostics_common.exceptions import ConfigurationError


def mode_of(path: Any) -> Any:
    return stat.S_IMODE(path.lstat().st_mode)


# --- Backend ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "backend"),
    [
        (None, Backend.AUTO),
        ("", Backend.AUTO),
        ("auto", Backend.AUTO),
        ("cloud", Backend.CLOUD),
        ("LOCAL", Backend.LOCAL),
    ],
)
def test_the_backend_is_auto_by_default(value: Any, backend: Any) -> None:
    assert configured_backend({} if value is None else {"ML_DIAGNOSTICS_BACKEND": value}) is backend


def test_another_backend_is_an_error_that_names_the_choices() -> None:
    with pytest.raises(ConfigurationError, match=r"ML_DIAGNOSTICS_BACKEND is 'gcp'.*'auto'.*'cloud'.*'local'"):
        configured_backend({"ML_DIAGNOSTICS_BACKEND": "gcp"})


# --- The folder ---------------------------------------------------------------------------------------


def test_the_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = diagnostics_directory({"ML_DIAGNOSTICS_DIR": str(tmp_path / "a" / "b")})
    assert folder == tmp_path / "a" / "b"
    assert mode_of(folder) == 0o700
    assert list(folder.iterdir()) == []


def test_the_folder_is_in_the_home_by_default(tmp_path: Path) -> None:
    assert diagnostics_directory({"HOME": str(tmp_path)}) == tmp_path / ".ml-diagnostics"
    assert mode_of(tmp_path / ".ml-diagnostics") == 0o700


def test_a_relative_folder_stays_where_it_was_when_the_program_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = diagnostics_directory({"ML_DIAGNOSTICS_DIR": "relative"})
    monkeypatch.chdir("/")
    assert diagnostics_directory({"ML_DIAGNOSTICS_DIR": "relative"}) == first == tmp_path / "relative"


def unwritable(tmp_path: Path, name: Any) -> Any:
    (tmp_path / name).write_text("a file where a folder should be")
    return {"ML_DIAGNOSTICS_DIR": str(tmp_path / name / "x"), "TMPDIR": str(tmp_path)}


def test_an_unwritable_folder_is_replaced_by_a_private_one_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = unwritable(tmp_path, "file")
    folders = {diagnostics_directory(environ) for _ in range(3)}
    assert folders == {tmp_path / f"ml-diagnostics-{os.getuid()}"}
    assert mode_of(folders.pop()) == 0o700
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert environ["ML_DIAGNOSTICS_DIR"] in record.getMessage()
    assert "set ML_DIAGNOSTICS_DIR to a folder" in record.getMessage()


@pytest.mark.parametrize("url", ["gs://bucket/runs", "s3://bucket/runs", "gs:/bucket/runs"])
def test_a_bucket_is_not_a_folder_for_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    folder = diagnostics_directory({"ML_DIAGNOSTICS_DIR": url, "TMPDIR": str(tmp_path / "tmp")})
    assert folder.parent == tmp_path / "tmp"
    assert not list(tmp_path.glob("*:*"))
    assert "must be a folder of this machine" in caplog.text


def test_a_folder_of_a_file_system_that_refuses_files_gives_way(tmp_path: Path) -> None:
    assert diagnostics_directory({"ML_DIAGNOSTICS_DIR": "/proc/self", "TMPDIR": str(tmp_path)}).parent == tmp_path


def test_an_impossible_path_gives_way(tmp_path: Path) -> None:
    for impossible in ("nul\0byte", "x" * 5000, "~no-user-of-this-name/x"):
        environ = {"ML_DIAGNOSTICS_DIR": impossible, "TMPDIR": str(tmp_path)}
        assert diagnostics_directory(environ).parent == tmp_path


def test_a_planted_symlink_in_the_shared_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    planted = tmp_path / f"ml-diagnostics-{os.getuid()}"
    planted.symlink_to(victim)
    folder = diagnostics_directory(unwritable(tmp_path, "symlinked"))
    assert folder.name.startswith(f"ml-diagnostics-{os.getuid()}-")
    assert not folder.is_symlink()
    assert mode_of(folder) == 0o700
    assert mode_of(victim) == 0o755


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    planted = tmp_path / f"ml-diagnostics-{os.getuid()}"
    planted.mkdir()
    os.chown(planted, 12345, 12345)
    assert diagnostics_directory(unwritable(tmp_path, "foreign")) != planted


def test_our_own_fallback_folder_is_closed_to_others_when_found_open(tmp_path: Path) -> None:
    own = tmp_path / f"ml-diagnostics-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    assert diagnostics_directory(unwritable(tmp_path, "open")) == own
    assert mode_of(own) == 0o700


def test_where_nothing_can_be_written_a_path_is_returned_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "tmp").write_text("")
    environ = {"ML_DIAGNOSTICS_DIR": str(tmp_path / "tmp" / "x"), "TMPDIR": str(tmp_path / "tmp")}
    assert diagnostics_directory(environ).is_absolute()


# --- Identity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "index"),
    [
        ({}, 0),
        ({"JAX_PROCESS_ID": "3", "RANK": "9"}, 3),
        ({"JAX_PROCESS_INDEX": "4"}, 4),
        ({"SLURM_PROCID": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "6"}, 6),
        ({"TPU_WORKER_ID": "2"}, 2),
        ({"TPU_WORKER_ID": "1", "MEGASCALE_SLICE_ID": "2", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}, 9),
        ({"TPU_WORKER_ID": "1", "MEGASCALE_SLICE_ID": "2", "PROCESSES_IN_JOB": "4"}, 9),
        ({"TPU_WORKER_ID": "1", "JOB_INDEX": "2", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}, 9),
        ({"TPU_WORKER_ID": "1", "MEGASCALE_SLICE_ID": "2"}, 1),
        ({"JOB_COMPLETION_INDEX": "3", "JOB_INDEX": "2", "PROCESSES_IN_JOB": "4"}, 11),
        ({"JOB_COMPLETION_INDEX": "3", "MEGASCALE_SLICE_ID": "1", "PROCESSES_IN_JOB": "4"}, 7),
        ({"JOB_COMPLETION_INDEX": "3", "JOB_INDEX": "x", "PROCESSES_IN_JOB": "4"}, 3),
        ({"CLOUD_TPU_TASK_ID": "7"}, 7),
        ({"RANK": "8"}, 8),
        ({"JOB_COMPLETION_INDEX": "11"}, 11),
        ({"JAX_PROCESS_ID": "", "RANK": "1"}, 1),
        ({"JAX_PROCESS_ID": "-1", "SLURM_PROCID": "x", "RANK": "1"}, 1),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_PROCID": "0", "TPU_WORKER_ID": "0", "RANK": "3"}, 3),
        ({"TORCHELASTIC_RUN_ID": "none", "JAX_PROCESS_ID": "2", "RANK": "3"}, 2),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_PROCID": "5"}, 5),
    ],
)
def test_the_process_index_comes_from_whoever_started_the_process(environ: Any, index: int) -> None:
    assert identity(environ).process_index == index


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 1),
        ({"RANK": "8"}, 9),
        ({"WORLD_SIZE": "4"}, 4),
        ({"SLURM_NTASKS": "2", "WORLD_SIZE": "4"}, 2),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_NTASKS": "2", "WORLD_SIZE": "4"}, 4),
        ({"WORLD_SIZE": "many"}, 1),
    ],
)
def test_the_process_count_comes_from_the_launcher(environ: Any, count: int) -> None:
    assert identity(environ).process_count == count


@pytest.mark.parametrize("variable", ["ML_DIAGNOSTICS_ATTEMPT", "JOBSET_RESTART_ATTEMPT", "SLURM_RESTART_COUNT"])
def test_the_attempt_comes_from_the_scheduler(variable: str) -> None:
    assert identity({variable: "2"}).attempt == "2"
    assert identity({}).attempt == ""


def test_an_initialised_jax_knows_the_index_best(monkeypatch: pytest.MonkeyPatch) -> None:
    state = types.SimpleNamespace(client=object(), process_id=7, num_processes=9)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", types.SimpleNamespace(global_state=state))
    assert identity({"RANK": "1"}).process_index == 7
    assert identity({"RANK": "1"}).process_count == 9
    state.client = None
    assert identity({"RANK": "1"}).process_index == 1


def test_an_initialised_process_group_of_pytorch_knows_the_index_better_than_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = types.SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 4)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert (identity({"LOCAL_RANK": "1"}).process_index, identity({}).process_count) == (3, 4)
    group.is_initialized = lambda: False
    assert identity({"RANK": "1"}).process_index == 1
    monkeypatch.setitem(sys.modules, "torch.distributed", types.SimpleNamespace())  # Being imported.
    assert identity({"RANK": "1"}).process_index == 1


def test_the_labels_hold_every_field_as_text() -> None:
    me = identity({"ML_DIAGNOSTICS_JOB": "j", "RANK": "3"})
    assert me.labels() == {
        "job": "j",
        "run": "j",
        "attempt": "",
        "host": os.uname().nodename,
        "process_index": "3",
        "pid": str(os.getpid()),
    }
    assert me.labels("other")["job"] == "other"
    assert identity({"ML_DIAGNOSTICS_RUN": "r"}).labels("other")["run"] == "r"


def test_a_run_that_has_started_names_the_entries_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_JOB", "job")
    monkeypatch.setenv("ML_DIAGNOSTICS_ATTEMPT", "0")
    before = announced_labels()
    assert (before["job"], before["run"], before["attempt"]) == ("job", "job", "0")
    announce_run("train-2c1f", "train", 2)
    during = announced_labels()
    assert (during["job"], during["run"], during["attempt"]) == ("job", "train-2c1f", "2")
    announce_run("train-9d3e", "train")
    assert announced_labels()["attempt"] == "0"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"JAX_NUM_PROCESSES": "4", "WORLD_SIZE": "2"}, (4, "JAX_NUM_PROCESSES")),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "8"}, (8, "SLURM_NTASKS")),
        ({"SLURM_NTASKS": "8"}, None),  # The batch script itself.
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, None),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "WORLD_SIZE": "16"}, None),
        (
            {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "x"},
            (16, "WORLD_SIZE"),
        ),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, (3, "OMPI_COMM_WORLD_SIZE")),
        ({"TPU_WORKER_HOSTNAMES": "t-0,t-1"}, (2, "TPU_WORKER_HOSTNAMES")),
        ({"TPU_WORKER_HOSTNAMES": "t-0,t-1", "MEGASCALE_NUM_SLICES": "3"}, (6, "TPU_WORKER_HOSTNAMES")),
        ({"TPU_WORKER_HOSTNAMES": "t-0,t-1", "TPU_PROCESS_BOUNDS": "2,2,1"}, None),
        ({"TPU_WORKER_HOSTNAMES": "WARNING: could not determine TPU worker hostnames, please set it"}, None),
        ({"PROCESSES_IN_JOB": "4"}, (4, "PROCESSES_IN_JOB")),
        ({"PROCESSES_IN_JOB": "4", "MEGASCALE_NUM_SLICES": "2", "JOB_INDEX": "1"}, (8, "PROCESSES_IN_JOB")),
        ({"PROCESSES_IN_JOB": "4", "JOB_INDEX": "1"}, None),  # The number of jobs is not known.
        ({"JAX_NUM_PROCESSES": "0"}, None),
    ],
)
def test_the_number_of_processes_is_known_before_they_are_connected(
    environ: dict[str, str], expected: tuple[int, str] | None
) -> None:
    assert expected_processes(environ) == expected


def test_the_program_then_jax_know_the_number_of_processes_best(monkeypatch: pytest.MonkeyPatch) -> None:
    state = types.SimpleNamespace(client=object(), process_id=0, num_processes=9)  # `initialize` waits for the others.
    monkeypatch.setitem(sys.modules, "jax._src.distributed", types.SimpleNamespace(global_state=state))
    assert expected_processes({"WORLD_SIZE": "2"}) == (9, "jax")
    assert announced_labels()["expected_processes"] == "9"
    assert "coordinator" not in announced_labels()
    state.coordinator_address = "host-0:1234"
    assert announced_labels()["coordinator"] == "host-0:1234"
    announce_plan(expected_processes=12)
    announce_plan(planned_steps=1000)
    assert expected_processes({"WORLD_SIZE": "2"}) == (12, "argument")
    assert planned_steps() == 1000


@given(st.dictionaries(st.sampled_from(["JAX_PROCESS_ID", "TPU_WORKER_ID", "MEGASCALE_SLICE_ID", "RANK"]), st.text()))
def test_no_environment_makes_identity_fail(environ: Any) -> None:
    assert identity(environ).process_index >= 0


def test_reading_the_environment_imports_almost_nothing(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:] = {sys.path!r}
from ml_diagnostics_common import environment as e
e.configured_backend(), e.diagnostics_directory(), e.identity(), e.orchestrator()
heavy = "google jax numpy msgspec grpc requests http asyncio multiprocessing ssl urllib.request"
print([name for name in heavy.split() if name in sys.modules])
"""
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(tmp_path)}
    command = [sys.executable, "-S", "-c", code]
    assert subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SLURM_JOB_ID": "1"}, Orchestrator.GKE),
        ({"SLURM_JOB_ID": "1"}, Orchestrator.SLURM),
    ],
)
def test_the_orchestrator_is_known_by_its_variables(environ: Any, expected: Any) -> None:
    assert orchestrator(environ) is expected


@pytest.mark.parametrize(
    ("product", "expected"), [("Google Compute Engine\n", Orchestrator.GCE), ("Laptop\n", Orchestrator.NONE)]
)
def test_a_bare_google_vm_is_known_by_its_firmware(product: Any, expected: Any, tmp_path: Path) -> None:
    (tmp_path / "product_name").write_text(product)
    assert orchestrator({}, product_name_file=str(tmp_path / "product_name")) is expected


def test_a_log_handler_that_raises_does_not_cost_the_folder(tmp_path: Path) -> None:
    class Raising(logging.Handler):
        def emit(self, _: Any) -> None:
            raise RuntimeError("the handler is broken")

    handler = Raising()
    logging.getLogger("ml_diagnostics").addHandler(handler)
    try:
        assert diagnostics_directory(unwritable(tmp_path, "file")).parent == tmp_path
    finally:
        logging.getLogger("ml_diagnostics").removeHandler(handler)
