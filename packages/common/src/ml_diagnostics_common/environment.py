"""Backend, folder and identity, read from the process's environment at no cost.

Nothing here uses the network or imports more than the standard library, so that a recorder may call it at construction.
"""

from __future__ import annotations

import enum
import functools
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.job_labels import configured_labels

__all__ = [
    "Backend",
    "ExpectedProcesses",
    "Identity",
    "Orchestrator",
    "announce_job",
    "announce_plan",
    "announce_run",
    "announced_labels",
    "configured_backend",
    "configured_mirror",
    "diagnostics_directory",
    "expected_processes",
    "identity",
    "mirror_seconds",
    "on_google_hardware",
    "orchestrator",
    "planned_steps",
]

_PRODUCT_NAME_FILE = "/sys/class/dmi/id/product_name"
_LONGEST_ADDRESS: Final = 300
"""A name of a host has 253 characters at most."""


class Backend(str, enum.Enum):
    """The destination of recorded entries besides the journal, which is always written."""

    AUTO = "auto"
    """To Cloud Logging if a project and credentials are found, else nowhere."""
    CLOUD = "cloud"
    """To Cloud Logging; missing credentials are an error at construction."""
    LOCAL = "local"
    """Nowhere: nothing leaves the machine, and no cloud is searched for."""


def configured_backend(environ: Mapping[str, str] = os.environ) -> Backend:
    """Read `ML_DIAGNOSTICS_BACKEND`.

    Args:
        environ: The environment variables.

    Returns:
        The backend; `Backend.AUTO` when the variable is not set or empty.

    Raises:
        ConfigurationError: The variable has another value than auto, cloud or local.
    """
    value = environ.get("ML_DIAGNOSTICS_BACKEND", "").strip().lower() or Backend.AUTO.value
    try:
        return Backend(value)
    except ValueError:
        raise ConfigurationError(
            f"ML_DIAGNOSTICS_BACKEND is {value!r}; set it to 'auto' (the default), 'cloud' or 'local'"
        ) from None


def configured_mirror(environ: Mapping[str, str] = os.environ) -> str:
    """Return `ML_DIAGNOSTICS_MIRROR`: `gs://bucket/prefix` or a folder; empty without a mirror.

    Args:
        environ: The environment variables.
    """
    return environ.get("ML_DIAGNOSTICS_MIRROR", "").strip()


def mirror_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Return `ML_DIAGNOSTICS_MIRROR_SECONDS`: the time between two objects of a mirror while a job is new or watched.

    Args:
        environ: The environment variables.

    Returns:
        Seconds; 30 when the variable is not set or empty.

    Raises:
        ConfigurationError: The variable is not a number from 5 to 3600.
    """
    value = environ.get("ML_DIAGNOSTICS_MIRROR_SECONDS", "").strip() or "30"
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 5.0 <= seconds <= 3600.0:
        raise ConfigurationError(
            f"ML_DIAGNOSTICS_MIRROR_SECONDS is {value!r}; set it to a number of seconds from 5 to 3600"
        )
    return seconds


# --- The folder ---------------------------------------------------------------------------------------


def diagnostics_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of journals, runs, profiles and state: `ML_DIAGNOSTICS_DIR`, or `~/.ml-diagnostics`.

    It is created (0700) if it does not exist. If it is not writable, one WARNING names a private folder under `TMPDIR`
    that is used instead, because recording must go on. For the same value, the result stays the same.

    Args:
        environ: The environment variables.

    Returns:
        An absolute path. Never raises.
    """
    return _usable_directory(environ.get("ML_DIAGNOSTICS_DIR", ""), environ.get("HOME", ""), environ.get("TMPDIR", ""))


@functools.cache
def _usable_directory(configured: str, home: str, temporary: str) -> Path:
    try:
        wanted = _absolute(configured, home)
        _make_private(wanted)
        return wanted
    except (OSError, ValueError, RuntimeError) as error:
        fallback = _private_fallback(temporary)
        warn_once(
            ("no folder", configured, home, temporary),
            "%s cannot be written (%s): journals go to %s instead, which may not outlive this machine; "
            "set ML_DIAGNOSTICS_DIR to a folder that this user can write",
            configured or "~/.ml-diagnostics",
            error,
            fallback,
        )
        return fallback


def _absolute(configured: str, home: str) -> Path:
    if not configured:
        return (Path(home) if home else Path.home()).absolute() / ".ml-diagnostics"
    if "://" in configured or configured.startswith("gs:/"):
        raise ValueError("it must be a folder of this machine, not a URL")
    return Path(configured).expanduser().absolute()


def _make_private(folder: Path) -> None:
    """Create the folder for this user only, and check that a file can be created in it.

    Raises:
        OSError: The folder cannot be made or written.
        ValueError: The path cannot be one (it has a NUL byte).
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe = folder / f".probe-{os.getpid()}-{os.urandom(4).hex()}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    probe.unlink()


def _private_fallback(temporary: str) -> Path:
    """Return a folder in the shared temporary one that belongs to this user and that no other user created."""
    import tempfile

    shared = Path(temporary or tempfile.gettempdir()).absolute()
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = shared / f"ml-diagnostics-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == os.getuid()):
            folder.chmod(0o700)
            return folder
    except OSError:
        pass
    try:
        return Path(tempfile.mkdtemp(prefix=f"ml-diagnostics-{user}-"))
    except OSError:
        return folder  # Nothing can be written anywhere; the journal counts what it drops.


# --- Identity -----------------------------------------------------------------------------------------

_JAX_INDEX_VARIABLES = ("JAX_PROCESS_ID", "JAX_PROCESS_INDEX")
_PROCESS_INDEX_VARIABLES: tuple[str, ...] = (
    *_JAX_INDEX_VARIABLES,
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "TPU_WORKER_ID",
    "CLOUD_TPU_TASK_ID",
    "RANK",
    "JOB_COMPLETION_INDEX",
)
_PROCESS_COUNT_VARIABLES: tuple[str, ...] = ("JAX_NUM_PROCESSES", "SLURM_NTASKS", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
_LAUNCHER_COUNTS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
_HOST_NAME = re.compile(r"[A-Za-z0-9._:\[\]-]+")
_INDEX_IN_SLICE_VARIABLES = ("TPU_WORKER_ID", "JOB_COMPLETION_INDEX")
_SLICE_VARIABLES = ("MEGASCALE_SLICE_ID", "JOB_INDEX")
_ATTEMPT_VARIABLES = (
    "ML_DIAGNOSTICS_ATTEMPT",
    "JOBSET_RESTART_ATTEMPT",
    "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RESTART_COUNT",
)


@dataclass(frozen=True)
class Identity:
    """Which process of which job this is.

    Attributes:
        host: The host's name; on Kubernetes the pod's.
        process_index: The process's index among all of the job, 0 when unknown.
        pid: The process id.
        job: `ML_DIAGNOSTICS_JOB`, or empty.
        run: `ML_DIAGNOSTICS_RUN`, or empty.
        attempt: How often the scheduler has restarted the job, as text; empty if unknown.
        process_count: How many processes the job has; the process index and one, when unknown.
        configured: The labels of `ML_DIAGNOSTICS_LABELS`, and `chips` if `ML_DIAGNOSTICS_CHIPS` is set.
    """

    host: str
    process_index: int
    pid: int
    job: str = ""
    run: str = ""
    attempt: str = ""
    process_count: int = 1
    configured: Mapping[str, str] = field(default_factory=dict, hash=False)

    def labels(self, job: str = "") -> dict[str, str]:
        """Return the labels that every entry of this process carries.

        Args:
            job: The job's name, where the caller knows it.

        Returns:
            job, run (the job's name when no run was named), attempt, host, process_index and pid, as text; and the
            configured ones.
        """
        job = job or self.job
        return {
            **self.configured,
            "job": job,
            "run": self.run or job,
            "attempt": self.attempt,
            "host": self.host,
            "process_index": str(self.process_index),
            "pid": str(self.pid),
        }


def identity(environ: Mapping[str, str] = os.environ) -> Identity:
    """Return the identity of this process from JAX or PyTorch if they are initialized, or else the environment.

    Args:
        environ: The environment variables.

    Returns:
        The identity. Never raises.
    """
    index, count = _initialised_jax_position() or _initialised_torch_position() or _environment_position(environ)
    return Identity(
        host=_host_name(),
        process_index=index,
        pid=os.getpid(),
        job=environ.get("ML_DIAGNOSTICS_JOB", ""),
        run=environ.get("ML_DIAGNOSTICS_RUN", ""),
        attempt=next((environ[name] for name in _ATTEMPT_VARIABLES if environ.get(name)), ""),
        process_count=max(count, index + 1),
        configured=configured_labels(environ),
    )


# State of the process: what its recorders and its run call the job, for those parts of it that are given no name.
_announced: dict[str, str] = {}


def announce_job(name: str) -> None:
    """Publish, within this process, the job's name: the one that a recorder was given last."""
    _announced["job"] = name


def announce_run(run_id: str, name: str, attempt: int | None = None) -> None:
    """Publish, within this process, the run that has started.

    Args:
        run_id: The run's id.
        name: Its name, which is the job's if no recorder was given another.
        attempt: The run's attempt, from 1; None keeps that of the environment.
    """
    _announced["run"] = run_id
    _announced["run name"] = name
    _announced["attempt"] = "" if attempt is None else str(attempt)


def announced_labels() -> dict[str, str]:
    """Return `identity().labels()` with the run that has started, its attempt, and the plan of the job.

    Where the environment names no job, it is the one that was announced.

    Returns:
        The labels. `expected_processes` is one of them only if the number is known, and `coordinator`, the address that
        was given to `jax.distributed.initialize`, only once that waits for the others: if one process was given
        another one, all wait in the same way.
    """
    labels = identity().labels()
    job = labels["job"] or _announced.get("job") or _announced.get("run name") or ""
    labels |= {
        "job": job,
        "run": _announced.get("run") or labels["run"] or job,
        "attempt": _announced.get("attempt") or labels["attempt"],
    }
    expected = expected_processes()
    if expected is not None:
        labels["expected_processes"] = str(expected.number)
    coordinator = _jax_coordinator()
    return labels if coordinator is None else {**labels, "coordinator": coordinator}


# --- The plan of the job ------------------------------------------------------------------------------


class ExpectedProcesses(NamedTuple):
    """The number of processes that the job should have, which some of them may not know, or not reach.

    Attributes:
        number: The number.
        source: `argument`, `jax`, `torch`, or the name of the variable that it is from.
    """

    number: int
    source: str


def announce_plan(*, expected_processes: int | None = None, planned_steps: int | None = None) -> None:
    """Publish, within this process, what the program has said of its job; None keeps what was said before."""
    for name, number in (("expected_processes", expected_processes), ("planned_steps", planned_steps)):
        if number is not None:
            _announced[name] = str(number)


def planned_steps() -> int | None:
    """Return how many steps the program has said that the job takes; None if it has not."""
    return _natural_number(_announced.get("planned_steps", ""))


def expected_processes(environ: Mapping[str, str] = os.environ) -> ExpectedProcesses | None:
    """Return how many processes the job should have, also before they are connected; never import or initialize JAX.

    Args:
        environ: The environment variables.

    Returns:
        The number that the program said; else JAX's, which is known as soon as `jax.distributed.initialize` waits for
        the others; else what the launcher set. None if it is unknown, or if two launchers contradict each other, as
        where a step of Slurm starts one program a node, which starts others.
    """
    announced = _natural_number(_announced.get("expected_processes", ""))
    if announced:
        return ExpectedProcesses(announced, "argument")
    for source, position in (("jax", _initialised_jax_position()), ("torch", _initialised_torch_position())):
        if position is not None and position[1] > 0:
            return ExpectedProcesses(position[1], source)
    certain = ["JAX_NUM_PROCESSES", *(["WORLD_SIZE"] if environ.get("TORCHELASTIC_RUN_ID") else [])]
    for name in certain:
        if number := _natural_number(environ.get(name, "")):
            return ExpectedProcesses(number, name)
    found = [ExpectedProcesses(number, name) for name, number in _launcher_counts(environ) if number]
    return found[0] if len({each.number for each in found}) == 1 else None


def _launcher_counts(environ: Mapping[str, str]) -> list[tuple[str, int | None]]:
    """Return the number of processes by each launcher that may have started this one."""
    numbers = {name: _natural_number(environ.get(name, "")) for name in _LAUNCHER_COUNTS}
    if "SLURM_STEP_ID" not in environ and "SLURM_STEPID" not in environ:
        numbers["SLURM_NTASKS"] = None  # The batch script itself has it too, and is one process.
    slices = _natural_number(environ.get("MEGASCALE_NUM_SLICES", ""))
    in_job = _natural_number(environ.get("PROCESSES_IN_JOB", ""))
    if in_job and (slices or not any(environ.get(name) for name in _SLICE_VARIABLES)):
        numbers["PROCESSES_IN_JOB"] = in_job * (slices or 1)
    hosts = environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    # libtpu sets it to a warning where it does not find the hosts. With bounds of processes, there are several a host.
    if all(_HOST_NAME.fullmatch(host.strip()) for host in hosts) and not environ.get("TPU_PROCESS_BOUNDS"):
        numbers["TPU_WORKER_HOSTNAMES"] = len(hosts) * (slices or 1)
    return list(numbers.items())


def _host_name() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    return os.environ.get("COMPUTERNAME", "unknown")


def _initialised_jax_position() -> tuple[int, int] | None:
    """Return the arguments of `jax.distributed.initialize`: index and count; never import or initialize anything."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is None:
        return None
    index, count = getattr(state, "process_id", None), getattr(state, "num_processes", None)
    if not isinstance(index, int) or index < 0:
        return None
    return index, count if isinstance(count, int) else 0


def _jax_coordinator() -> str | None:
    """Return the address that `jax.distributed.initialize` was called with; never import or initialize anything."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    address = getattr(state, "coordinator_address", None)
    return address[:_LONGEST_ADDRESS] if isinstance(address, str) and address.isprintable() and address else None


def _initialised_torch_position() -> tuple[int, int] | None:
    """Return rank and size of PyTorch's process group; never import or initialize anything.

    Launchers such as Lightning's own, and `torch.multiprocessing.spawn`, set no RANK.
    """
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized():
            return None
        index, count = int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:  # Such as a module that is only being imported, in another thread.
        return None
    return (index, count) if index >= 0 else None


def _environment_position(environ: Mapping[str, str]) -> tuple[int, int]:
    indexes, counts = _PROCESS_INDEX_VARIABLES, _PROCESS_COUNT_VARIABLES
    if environ.get("TORCHELASTIC_RUN_ID"):
        # torchrun was started once a host, by Slurm or the TPU's agent; all ranks inherit their variables.
        indexes, counts = (*_JAX_INDEX_VARIABLES, "RANK", *indexes), ("JAX_NUM_PROCESSES", "WORLD_SIZE", *counts)
    count = next((number for name in counts if (number := _natural_number(environ.get(name, ""))) is not None), 0)
    for name in indexes:
        index = _natural_number(environ.get(name, ""))
        if index is not None:
            return _over_slices(index, environ) if name in _INDEX_IN_SLICE_VARIABLES else index, count
    return 0, count


def _over_slices(worker: int, environ: Mapping[str, str]) -> int:
    """Return the index among all workers of a multislice job, where the given one starts at 0 in each slice.

    The slice and its number of workers are those of libtpu, or of a Kubernetes JobSet if its template copies the label
    `jobset.sigs.k8s.io/job-index` and the job's parallelism into JOB_INDEX and PROCESSES_IN_JOB. If one of them is not
    known, return the given index.
    """
    numbers = (_natural_number(environ.get(name, "")) for name in _SLICE_VARIABLES)
    slice_id = next((number for number in numbers if number is not None), 0)
    hosts = [name for name in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    workers = len(hosts) or _natural_number(environ.get("PROCESSES_IN_JOB", "")) or 0
    return slice_id * workers + worker


def _natural_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class Orchestrator(str, enum.Enum):
    """The system that started this process."""

    GKE = "gke"
    SLURM = "slurm"
    GCE = "gce"
    NONE = "none"


def orchestrator(
    environ: Mapping[str, str] = os.environ, *, product_name_file: str = _PRODUCT_NAME_FILE
) -> Orchestrator:
    """Return the system that started this process, from the environment and the firmware's product name.

    Args:
        environ: The environment variables.
        product_name_file: The system's file with the firmware's product name.

    Returns:
        GKE for any Kubernetes pod, SLURM inside a Slurm job, GCE on a bare Google VM, else NONE.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return Orchestrator.GKE
    if environ.get("SLURM_JOB_ID"):
        return Orchestrator.SLURM
    return Orchestrator.GCE if on_google_hardware(product_name_file) else Orchestrator.NONE


def on_google_hardware(product_name_file: str = _PRODUCT_NAME_FILE) -> bool:
    """Return True if this machine is Google's, according to the firmware's product name in that file of the system."""
    try:
        with open(product_name_file, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read(64).startswith("Google")
    except OSError:
        return False
