"""Collect the software and hardware of a run.

No function here initialises JAX, torch or a device, or waits for a network. Versions of packages that are not imported
yet are read from their metadata on disk. The only program that is started is git, if the job runs in a checkout.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common import agreement
from ml_diagnostics_common.process_hooks import PROCESS_START_LOCK, import_undisturbed
from ml_diagnostics_common.redaction import redact, redact_text

from google_cloud_mldiagnostics._runtimes import computes_with_pytorch, jax_is_initialised, torch_xla_is_initialised
from google_cloud_mldiagnostics._system_metrics.cgroup import cpu_limit, memory_limit_bytes
from google_cloud_mldiagnostics.mlrun_types import Framework, MLRun

__all__ = ["collect_hardware", "collect_host", "collect_software", "collector"]

_PACKAGES: Final = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "chex",
    "grain",
    "maxtext",
    "axlearn",
    "torch",
    "torch-xla",
    "transformers",
    "tensorflow",
    "numpy",
    "xprof",
)
_MAX_COMMAND_BYTES: Final = 8192
_MAX_FLAGS_BYTES: Final = 8192
_UNSET: Final = "default"
_UNKNOWN: Final = "n/a"
_HOSTS_KEY: Final = "host"
_HOSTS_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_GIT_TIMEOUT_SECONDS: Final = 1.0
_REVISION: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

# State of the process: the index and count with which it has published its host.
_published_by_this_process: tuple[int, int] | None = None


def collector(run: MLRun) -> Callable[[], tuple[dict[str, dict[str, str]], bool]]:
    """Return a function that collects software and hardware, in a separate thread.

    The function returns the sections of a run's configs, and True if the devices are known.
    """
    software: dict[bool, dict[str, str]] = {}
    given = run.framework

    def collect() -> tuple[dict[str, dict[str, str]], bool]:
        hardware = collect_hardware()
        is_pytorch = computes_with_pytorch()
        if is_pytorch not in software:
            import_undisturbed("importlib.metadata", "importlib.metadata._adapters", "email.parser", "subprocess")
            software[is_pytorch] = collect_software(given)
        if hardware is not None:  # Until then, the program may import another framework.
            run.framework = Framework(software[is_pytorch]["framework"])
        known = collect_host() if hardware is None else hardware
        return {"softwareConfigs": dict(software[is_pytorch]), "hardwareConfigs": known}, hardware is not None

    return collect


# --- Software -----------------------------------------------------------------------------------------


def collect_software(
    framework: Framework = Framework.JAX,
    environ: Mapping[str, str] = os.environ,
    command: Sequence[str] | None = None,
) -> dict[str, str]:
    """Return the software of the job.

    Args:
        framework: The framework that the user gave. JAX is the default; the one that the program
            uses replaces it.
        environ: The environment variables.
        command: The program and its arguments; by default those of this process.

    Returns:
        framework, framework_version, xla_flags, libtpu_init_args and libtpu_version as the public package has them,
        python_version, command_line, `<package>_version` for each of the well-known ones that are installed, and
        git_revision and git_branch where the program is in a checkout. Secrets in flags and arguments are redacted.
    """
    versions = installed_versions((*_PACKAGES, "libtpu", "libtpu-nightly"))
    if computes_with_pytorch() or ("jax" not in versions and "torch" in versions):
        framework = Framework.PYTORCH
    main = "jax" if framework is Framework.JAX else "torch-xla" if "torch-xla" in versions else "torch"
    configs = {
        "framework": framework.value,
        "framework_version": versions.get(main, _UNKNOWN),
        "xla_flags": _flags(environ, "XLA_FLAGS"),
        "libtpu_init_args": _flags(environ, "LIBTPU_INIT_ARGS"),
        "libtpu_version": versions.get("libtpu") or versions.get("libtpu-nightly") or _UNKNOWN,
        "python_version": platform.python_version(),
        "command_line": _command_line(sys.orig_argv if command is None else command),
    }
    configs |= {f"{name.replace('-', '_')}_version": versions[name] for name in _PACKAGES if name in versions}
    return configs | _git_revision(_program_folders())


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    from importlib import metadata

    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except Exception:  # Mostly PackageNotFoundError; and metadata that is damaged.
            continue
    return {name: version for name, version in versions.items() if version}


def _flags(environ: Mapping[str, str], variable: str) -> str:
    value = environ.get(variable, "").strip()
    return str(redact(value, max_bytes=_MAX_FLAGS_BYTES)) if value else _UNSET


def _command_line(command: Sequence[str]) -> str:
    return redact_text(shlex.join(redact(list(command), max_bytes=_MAX_COMMAND_BYTES)))


def _program_folders() -> list[Path]:
    """Return the folders that may be in the program's checkout: the script's folder, then the current one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path(script).absolute().parent] if script else []
    try:
        folders.append(Path.cwd())
    except OSError:  # The folder was deleted.
        pass
    return folders


def _git_revision(folders: Iterable[Path]) -> dict[str, str]:
    """Return the git_revision, and the git_branch if there is one, of the first folder in a checkout; never raises.

    Empty without a checkout or without git, and for a checkout of another user, which git does not trust.
    """
    for folder in folders:
        if any((parent / ".git").exists() for parent in (folder, *folder.parents)):
            revision, _, reference = _git_head(folder).partition("\n")
            if _REVISION.fullmatch(revision):
                is_branch = reference.startswith("refs/heads/")
                branch = {"git_branch": reference.removeprefix("refs/heads/")[:256]} if is_branch else {}
                return {"git_revision": revision, **branch}
    return {}


def _git_head(folder: Path) -> str:
    """Return the revision of HEAD and its full reference, one per line; empty if git fails or takes too long."""
    import subprocess

    # A checkout may be hostile: run no hook and no file system monitor, write no lock, fetch nothing.
    settings = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "protocol.allow=never")
    command = ["git", "--no-pager", *(part for setting in settings for part in ("-c", setting)), "-C", str(folder)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        with PROCESS_START_LOCK.held():
            process = subprocess.Popen(
                [*command, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Out of reach of Ctrl-C.
            )
        with process:
            try:
                output = process.communicate(timeout=_GIT_TIMEOUT_SECONDS)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                return ""
    except (OSError, ValueError):  # There is no git; or the job closed the descriptor of the pipe.
        return ""
    return output.decode(errors="replace").strip()


# --- Hardware -----------------------------------------------------------------------------------------


def collect_host(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the known hardware before devices are initialised: this host, and the TPU by environment variables.

    Args:
        environ: The environment variables.

    Returns:
        cpu_count and memory_bytes (what this process may use: a container's limits count), machine, system, and
        tpu_accelerator_type and tpu_topology where they are set.
    """
    configs = {"cpu_count": f"{_cpu_count():g}", "machine": platform.machine(), "system": platform.system()}
    memory = _memory_bytes()
    if memory is not None:
        configs["memory_bytes"] = str(memory)
    for key, variable in (("tpu_accelerator_type", "TPU_ACCELERATOR_TYPE"), ("tpu_topology", "TPU_TOPOLOGY")):
        if environ.get(variable):
            configs[key] = redact_text(environ[variable][:256])
    return configs


def collect_hardware(
    environ: Mapping[str, str] = os.environ, *, hosts_seconds: float = _HOSTS_SECONDS
) -> dict[str, str] | None:
    """Return the hardware of the job, once the job itself has initialised its devices.

    Call it in a thread: while another thread initialises JAX, this waits for it. If no launcher sets the number of
    hosts, it waits until each process has published its host: so all processes should call it.

    Args:
        environ: The environment variables.
        hosts_seconds: The longest to wait for other processes to publish their hosts.

    Returns:
        device_type, num_slices, devices_per_slice as the public package has them; accelerator_type, num_devices,
        num_processes, num_hosts where each process asks; and what `collect_host` returns. None while the job has not
        initialised its devices: call it again later.
    """
    _publish_host()
    devices = (
        _jax_devices(environ, hosts_seconds)
        or _torch_xla_devices(environ, hosts_seconds)
        or _torch_devices(environ, hosts_seconds)
    )
    return None if devices is None else devices | collect_host(environ)


def _jax_devices(environ: Mapping[str, str], hosts_seconds: float) -> dict[str, str] | None:
    if not jax_is_initialised():
        return None
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return None
    devices = jax.devices()
    processes = int(jax.process_count())
    platform_name = str(devices[0].platform)
    slices = len({_slice_index(device) for device in devices})
    return _described(
        kind=str(devices[0].device_kind),
        accelerator={"cuda": "gpu", "rocm": "gpu"}.get(platform_name, platform_name),
        devices=len(devices),
        slices=slices,
        processes=processes,
        environ=environ,
        hosts_seconds=hosts_seconds,
    )


def _slice_index(device: Any) -> int:
    return int(getattr(device, "slice_index", None) or getattr(device, "partition_index", None) or 0)


def _torch_xla_devices(environ: Mapping[str, str], hosts_seconds: float) -> dict[str, str] | None:
    runtime: Any = sys.modules.get("torch_xla.runtime")
    if runtime is None or not torch_xla_is_initialised():
        return None
    kind = str(runtime.device_type())
    return _described(
        kind=environ.get("TPU_ACCELERATOR_TYPE") or kind,
        accelerator={"cuda": "gpu"}.get(kind.lower(), kind.lower()),
        devices=int(runtime.global_runtime_device_count()),
        slices=_number(environ, "MEGASCALE_NUM_SLICES") or 1,
        processes=int(runtime.process_count()),
        environ=environ,
        hosts_seconds=hosts_seconds,
    )


def _torch_devices(environ: Mapping[str, str], hosts_seconds: float) -> dict[str, str] | None:
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    distributed: Any = sys.modules.get("torch.distributed")
    is_distributed = distributed is not None and distributed.is_available() and distributed.is_initialized()
    processes = int(distributed.get_world_size()) if is_distributed else 1
    return _described(
        kind=str(cuda.get_device_name()),
        accelerator="gpu",
        devices=processes if is_distributed else int(cuda.device_count()),  # By its custom: one a process.
        slices=1,
        processes=processes,
        environ=environ,
        hosts_seconds=hosts_seconds,
    )


def _described(
    *,
    kind: str,
    accelerator: str,
    devices: int,
    slices: int,
    processes: int,
    environ: Mapping[str, str],
    hosts_seconds: float,
) -> dict[str, str]:
    configs = {
        "device_type": kind,
        "accelerator_type": accelerator,
        "num_slices": str(slices),
        "devices_per_slice": str(devices // slices),
        "num_devices": str(devices),
        "num_processes": str(processes),
    }
    hosts = _hosts(accelerator, processes, environ, hosts_seconds)
    return configs if hosts is None else configs | {"num_hosts": str(hosts)}


def _hosts(accelerator: str, processes: int, environ: Mapping[str, str], wait_seconds: float) -> int | None:
    """Return the number of hosts: by the launcher's variables, else as published; on TPU, a process for each host."""
    if processes == 1:
        return 1
    nodes = _number(environ, "SLURM_JOB_NUM_NODES") or _number(environ, "SLURM_NNODES")
    if nodes is not None:
        return nodes
    for variable in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PJRT_LOCAL_PROCESS_COUNT"):
        on_this_host = _number(environ, variable)
        if on_this_host is not None:
            return -(-processes // on_this_host)
    if accelerator == "tpu" and not environ.get("TPU_PROCESS_BOUNDS"):
        return processes
    return _published_hosts(processes, wait_seconds)


def _publish_host() -> None:
    """Publish this host once: the coordinator keeps it."""
    global _published_by_this_process
    known = agreement.jax_processes()
    if known is not None and known != _published_by_this_process:
        _published_by_this_process = known
        agreement.publish(f"{_HOSTS_KEY}/{known[0]}", platform.node())


def _published_hosts(processes: int, wait_seconds: float) -> int | None:
    """Return the number of hosts that the processes of `jax.distributed` published; None if one is late."""
    if agreement.jax_processes() is None:
        return None
    deadline = time.monotonic() + wait_seconds
    while len(hosts := agreement.published(_HOSTS_KEY)) < processes:
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_SECONDS)
    return len(set(hosts))


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0 else None


def _cpu_count() -> float:
    count: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()
    return count if limit is None else min(count, limit)


def _memory_bytes() -> int | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    limit = memory_limit_bytes()
    return total if limit is None else min(total, limit)
