"""Software and hardware of a run are collected without initialising a framework or a device."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import textwrap
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics import _system_configs as system_configs
from google_cloud_mldiagnostics._system_configs import collect_hardware, collect_host, collect_software
from google_cloud_mldiagnostics._system_metrics.cgroup import cpu_limit, memory_limit_bytes, memory_used_bytes
from google_cloud_mldiagnostics.mlrun_types import Framework
from ml_diagnostics_common import agreement

from ..waiting import free_port

REVISION = "0123456789abcdef0123456789abcdef01234567"


def run_python(program: str, **environ: str) -> dict[str, Any]:
    """Run a program in a fresh process; return its last line, which is JSON."""
    given = {"JAX_PLATFORMS": "cpu", **environ}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


# --- Software -----------------------------------------------------------------------------------------


def test_software_has_the_names_of_the_public_package() -> None:
    configs = collect_software(environ={})
    assert configs["framework"] == "JAX"
    assert configs["framework_version"] == metadata.version("jax")
    assert configs["xla_flags"] == "default"
    assert configs["libtpu_init_args"] == "default"
    assert configs["libtpu_version"] in ("n/a", *_installed("libtpu"))
    assert configs["python_version"] == platform.python_version()
    assert configs["jaxlib_version"] == metadata.version("jaxlib")
    assert configs["numpy_version"] == metadata.version("numpy")
    assert configs["orbax_checkpoint_version"] == metadata.version("orbax-checkpoint")
    assert "maxtext_version" not in configs  # It is not installed.
    assert all(isinstance(value, str) for value in configs.values())


def _installed(name: str) -> list[str]:
    try:
        return [metadata.version(name)]
    except metadata.PackageNotFoundError:
        return []


def test_the_framework_is_the_one_that_the_user_gives() -> None:
    configs = collect_software(Framework.PYTORCH, environ={})
    assert configs["framework"] == "PYTORCH"
    assert configs["framework_version"] == (_installed("torch-xla") or _installed("torch") or ["n/a"])[0]


def test_flags_and_command_line_are_kept_without_their_secrets() -> None:
    environ = {
        "XLA_FLAGS": "--xla_dump_to=/d --token=hunter2",
        "LIBTPU_INIT_ARGS": "--xla_tpu_x=true --password hunter2",
    }
    configs = collect_software(
        environ=environ, command=["python", "train.py", "--api_key", "hunter2", "--lr=1e-3", "run name=a b"]
    )
    assert "hunter2" not in json.dumps(configs)
    assert "--xla_dump_to=/d" in configs["xla_flags"]
    assert "--xla_tpu_x=true" in configs["libtpu_init_args"]
    assert configs["command_line"].startswith("python train.py --api_key")
    assert "--lr=1e-3 'run name=a b'" in configs["command_line"]


def test_a_command_line_without_end_is_cut() -> None:
    configs = collect_software(environ={"XLA_FLAGS": "--x=1 " * 100_000}, command=["train.py", *["word"] * 100_000])
    assert len(configs["command_line"]) < 50_000
    assert "[TRUNCATED]" in configs["command_line"]
    assert len(configs["xla_flags"]) < 10_000
    assert configs["xla_flags"].endswith("[TRUNCATED]")


def test_collecting_outside_a_checkout_imports_no_framework_and_runs_no_program() -> None:
    found = run_python(
        """
        import json, os, sys
        os.chdir("/")
        programs = []
        sys.addaudithook(lambda event, args: programs.append(event) if event in
                         ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "socket.connect") else None)
        from google_cloud_mldiagnostics._system_configs import collect_hardware, collect_host, collect_software
        configs = collect_software() | collect_host()
        hardware = collect_hardware()
        print(json.dumps({"heavy": sorted({"jax", "numpy", "torch", "psutil", "google.auth"} & set(sys.modules)),
                          "programs": programs, "command": configs["command_line"], "hardware": hardware}))
        """
    )
    assert found["heavy"] == found["programs"] == []
    assert found["command"].startswith(sys.executable)
    assert found["hardware"] is None


# --- Hardware -----------------------------------------------------------------------------------------


def test_jax_is_never_initialised_and_known_once_the_job_has() -> None:
    found = run_python(
        """
        import json, jax
        from google_cloud_mldiagnostics._system_configs import collect_hardware
        from jax._src import xla_bridge
        before = collect_hardware()
        was_initialised = xla_bridge.backends_are_initialized()
        jax.devices()
        print(json.dumps({"before": before, "initialised": was_initialised, "after": collect_hardware()}))
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert found["before"] is None
    assert found["initialised"] is False
    after = found["after"]
    assert after["device_type"] == after["accelerator_type"] == "cpu"
    assert after["num_slices"] == after["num_processes"] == after["num_hosts"] == "1"
    assert after["devices_per_slice"] == after["num_devices"] == "4"
    assert after["cpu_count"] == collect_host()["cpu_count"]


JOB = """
    import json, sys, jax
    from google_cloud_mldiagnostics._system_configs import collect_hardware
    rank = int(sys.argv[2])
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, rank)
    before = collect_hardware(hosts_seconds=60)
    jax.devices()
    print(json.dumps([before, collect_hardware(hosts_seconds=60) if rank == 0 else None]))
"""


def test_processes_without_a_launcher_publish_their_hosts() -> None:
    port = free_port()
    environ = os.environ | {"JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(JOB), str(port), rank],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    before, after = json.loads(outputs[0].splitlines()[-1])
    assert before is None
    assert after["num_processes"] == after["num_devices"] == "2"
    assert after["num_hosts"] == "1"


@pytest.mark.parametrize(("names", "hosts"), [(["a", "b", "a", "b"], "2"), (["a", "b", "c"], None)])
def test_hosts_are_unknown_until_each_process_has_published_its_own(
    monkeypatch: pytest.MonkeyPatch, names: list[str], hosts: str | None
) -> None:
    _job_on(monkeypatch, [types.SimpleNamespace(platform="cpu", device_kind="cpu")] * 4, processes=4)
    monkeypatch.setattr(agreement, "jax_processes", lambda: (0, 4))
    monkeypatch.setattr(agreement, "published", lambda folder: names)
    configs = collect_hardware({}, hosts_seconds=0.2)
    assert configs is not None
    assert configs.get("num_hosts") == hosts


def _job_on(monkeypatch: pytest.MonkeyPatch, devices: list[Any], processes: int) -> None:
    """Simulate a job that has initialised JAX on these devices."""
    bridge = types.SimpleNamespace(backends_are_initialized=lambda: True)
    jax = types.SimpleNamespace(devices=lambda: devices, process_count=lambda: processes)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setitem(sys.modules, "jax", jax)


def _chips(slices: int, each: int, **attributes: Any) -> list[Any]:
    return [
        types.SimpleNamespace(platform="tpu", device_kind="TPU v5 lite", slice_index=index, **attributes)
        for index in range(slices)
        for _ in range(each)
    ]


def test_slices_and_hosts_of_a_tpu_job_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    _job_on(monkeypatch, _chips(slices=2, each=16), processes=8)
    configs = collect_hardware({"TPU_ACCELERATOR_TYPE": "v5litepod-16", "TPU_TOPOLOGY": "4x4"})
    assert configs is not None
    assert configs["device_type"] == "TPU v5 lite"
    assert configs["accelerator_type"] == "tpu"
    assert (configs["num_slices"], configs["devices_per_slice"], configs["num_devices"]) == ("2", "16", "32")
    assert (configs["num_hosts"], configs["num_processes"]) == ("8", "8")
    assert (configs["tpu_accelerator_type"], configs["tpu_topology"]) == ("v5litepod-16", "4x4")


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({"SLURM_JOB_NUM_NODES": "2"}, "2"),
        ({"LOCAL_WORLD_SIZE": "8"}, "2"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "4"),
        ({"LOCAL_WORLD_SIZE": "many"}, None),
        ({}, None),
    ],
)
def test_hosts_of_several_processes_each_are_counted_if_the_launcher_provides_them(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], hosts: str | None
) -> None:
    gpus = [types.SimpleNamespace(platform="cuda", device_kind="NVIDIA H100", slice_index=None)] * 16
    _job_on(monkeypatch, gpus, processes=16)
    configs = collect_hardware(environ)
    assert configs is not None
    assert configs.get("num_hosts") == hosts
    assert configs["accelerator_type"] == "gpu"
    assert configs["num_slices"] == "1"


def test_devices_of_pytorch_xla_are_known_once_its_runtime_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At protocol level: against the names of torch_xla.runtime, with no torch_xla."""
    is_up = False
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", None)
    bridge = types.SimpleNamespace(_xla_runtime_is_initialized=lambda: is_up)
    monkeypatch.setitem(sys.modules, "torch_xla", types.SimpleNamespace(_XLAC=bridge))
    runtime = types.SimpleNamespace(
        device_type=lambda: "TPU", global_runtime_device_count=lambda: 8, process_count=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)
    assert collect_hardware({}) is None
    is_up = True
    configs = collect_hardware({"TPU_ACCELERATOR_TYPE": "v4-16", "MEGASCALE_NUM_SLICES": "2"})
    assert configs is not None
    assert (configs["device_type"], configs["accelerator_type"]) == ("v4-16", "tpu")
    assert (configs["num_slices"], configs["devices_per_slice"], configs["num_hosts"]) == ("2", "4", "2")


def test_the_host_is_known_before_any_device() -> None:
    configs = collect_host({"TPU_TOPOLOGY": "2x2x1"})
    assert float(configs["cpu_count"]) > 0
    assert int(configs["memory_bytes"]) > 1 << 20
    assert configs["tpu_topology"] == "2x2x1"
    assert configs["machine"] == platform.machine()


def test_the_limits_of_the_container_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_configs, "cpu_limit", lambda: 0.5)
    monkeypatch.setattr(system_configs, "memory_limit_bytes", lambda: 123_456)
    configs = collect_host({})
    assert configs["cpu_count"] == "0.5"
    assert configs["memory_bytes"] == "123456"


# --- Containers ---------------------------------------------------------------------------------------


def _files(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_limits_of_version_2_count_on_every_level(tmp_path: Path) -> None:
    root, process = tmp_path / "cgroup", tmp_path / "self"
    process.write_text("0::/kubepods/pod1\n")
    _files(root, memory__max="max", memory__current="999")
    _files(root / "kubepods", cpu__max="400000 100000", memory__max="4000", memory__current="900")
    _files(root / "kubepods/pod1", cpu__max="max 100000", memory__max="1000", memory__current="700")
    (root / "kubepods/pod1/memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert cpu_limit(root, process) == 4.0
    assert memory_limit_bytes(root, process) == 1000
    assert memory_used_bytes(root, process) == 550


def test_limits_of_version_1_are_read_too(tmp_path: Path) -> None:
    root, process = tmp_path / "cgroup", tmp_path / "self"
    process.write_text("4:memory:/job\n2:cpu,cpuacct:/\n0::/\n")
    _files(root / "cpu", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    _files(root / "memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="5")
    _files(root / "memory/job", memory__limit_in_bytes="2000", memory__usage_in_bytes="1500")
    (root / "memory/job/memory.stat").write_text("inactive_file 1\ntotal_inactive_file 500\n")
    assert cpu_limit(root, process) == 1.5
    assert (memory_limit_bytes(root, process), memory_used_bytes(root, process)) == (2000, 1000)


def test_a_missing_limit_is_returned_as_none(tmp_path: Path) -> None:
    process = tmp_path / "self"
    process.write_text("2:cpu:/\n0::/../..\ndamaged\n")
    _files(tmp_path / "cgroup/cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    _files(tmp_path / "cgroup", memory__max="max", memory__current="7")
    assert cpu_limit(tmp_path / "cgroup", process) is None
    assert memory_limit_bytes(tmp_path / "cgroup", process) is None
    assert cpu_limit(tmp_path / "nowhere", tmp_path / "nothing") is None


# --- The revision -------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "src" / "deep").mkdir(parents=True)
    _git(folder, "init", "--quiet", ".")
    _git(folder, "commit", "--quiet", "--allow-empty", "-m", "one")
    return folder


def revision_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the git settings of a program with its script in this folder."""
    script = types.ModuleType("__main__")
    script.__file__ = str(folder / "train.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.chdir("/")
    if not (folder / ".git" / "HEAD").is_fifo():
        monkeypatch.setattr(system_configs, "_GIT_TIMEOUT_SECONDS", 60.0)
    return {name: value for name, value in collect_software(environ={}).items() if name.startswith("git_")}


def test_the_revision_is_that_of_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = _git(checkout, "rev-parse", "HEAD")
    assert revision_of(checkout / "src" / "deep", monkeypatch) == {"git_revision": revision, "git_branch": "main"}
    _git(checkout, "checkout", "--quiet", "-b", "feature/x")
    _git(checkout, "commit", "--quiet", "--allow-empty", "-m", "two")
    _git(checkout, "pack-refs", "--all")
    packed = revision_of(checkout, monkeypatch)
    assert packed == {"git_revision": _git(checkout, "rev-parse", "HEAD"), "git_branch": "feature/x"}
    _git(checkout, "checkout", "--quiet", "--detach", revision)
    assert revision_of(checkout, monkeypatch) == {"git_revision": revision}


def test_the_revision_of_a_worktree_is_its_own(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _git(checkout, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "tree"))
    _git(tmp_path / "tree", "commit", "--quiet", "--allow-empty", "-m", "two")
    found = revision_of(tmp_path / "tree", monkeypatch)
    assert found == {"git_revision": _git(tmp_path / "tree", "rev-parse", "HEAD"), "git_branch": "side"}
    assert found["git_revision"] != _git(checkout, "rev-parse", "HEAD")


def test_the_environment_of_another_repository_is_ignored(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = _git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    assert revision_of(checkout, monkeypatch)["git_revision"] == revision


@pytest.mark.parametrize(
    "head", ["", "ref: refs/heads/.invalid", "ref: ../../etc/passwd", "ref: refs/../../../secret", "\x00", "zz" * 20]
)
def test_a_damaged_checkout_has_no_revision(tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    (tmp_path / "secret").write_text(REVISION)
    assert revision_of(tmp_path, monkeypatch) == {}


def test_a_hostile_checkout_runs_no_program(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "alias.rev-parse", "diff.external"):
        _git(checkout, "config", name, f"!{program}" if name.startswith("alias") else str(program))
    hooks = checkout / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (hooks / hook).symlink_to(program)
    assert revision_of(checkout, monkeypatch)["git_branch"] == "main"
    assert not (tmp_path / "ran").exists()


def test_git_is_stopped_when_it_takes_too_long(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".git" / "HEAD").unlink()
    os.mkfifo(checkout / ".git" / "HEAD")  # Opening it blocks until there is a writer.
    assert revision_of(checkout, monkeypatch) == {}


def test_without_git_there_is_no_revision(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert revision_of(checkout, monkeypatch) == {}
