"""The identity of a run: an id that people can read, the same on all hosts of a job.

It is also the same in each of the job's attempts if one of these names the workload: the caller or RUN_WORKLOAD_ID; the
injection webhook for pods on GKE (GKE_DIAGON_IDENTIFIER, GKE_DIAGON_METADATA); Slurm; torchrun. Else it is the name and
the time, on which the processes agree through the coordinator of `jax.distributed` or `torch.distributed`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ml_diagnostics_common import environment
from ml_diagnostics_common.agreement import agree, has_coordinator, jax_processes
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.texts import readable_id

from google_cloud_mldiagnostics.mlrun_types import Orchestrator

__all__ = [
    "RunIdentity",
    "Workload",
    "identify",
    "process_position",
    "warn_if_split",
    "warn_if_started_too_early",
    "with_instance",
    "workload_of",
]

CUSTOM = "CUSTOM"
UNKNOWN_INSTANCE = "unknown-instance-id"
"""The public package sends it in place of the id of a VM."""

_LONGEST_VALUE = 8192
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class Workload(NamedTuple):
    """The workload that started this process.

    Attributes:
        orchestrator: The system that started the process.
        wire: The orchestrator, as the API calls it.
        id_parts: Texts that all processes and attempts of the workload share, for the run's id; empty if the
            environment has none.
        token: The same text in all processes until the workload restarts; empty if the environment has none.
        details: The workload in the control plane's format.
        given_id: The id from the caller or RUN_WORKLOAD_ID; empty without either.
    """

    orchestrator: Orchestrator
    wire: str
    id_parts: tuple[str, ...] = ()
    token: str = ""
    details: Mapping[str, Any] | None = None
    given_id: str = ""


class RunIdentity(NamedTuple):
    """The run, and the life of the job that it is in.

    Attributes:
        run_id: The run's id.
        token: A text that is the same on all processes of this life of the job, and differs after a restart.
    """

    run_id: str
    token: str


def workload_of(run_workload_id: str | None = None, environ: Mapping[str, str] = os.environ) -> Workload:
    """Return the workload of this process, from the environment alone.

    Args:
        run_workload_id: The id of the workload that the caller gave; None reads RUN_WORKLOAD_ID.
        environ: The environment variables.
    """
    orchestrator = environment.orchestrator(environ)
    token = _token(environ)
    workload = Workload(Orchestrator.NONE, CUSTOM, token=token)
    if orchestrator is environment.Orchestrator.GKE:
        workload = _of_gke(environ, token)
    elif orchestrator is environment.Orchestrator.SLURM:
        workload = _of_slurm(environ, token)
    elif orchestrator is environment.Orchestrator.GCE:
        workload = Workload(Orchestrator.CUSTOM, CUSTOM, token=token)
    if not workload.id_parts and (launch := _launch_by_torchrun(environ)):
        workload = workload._replace(id_parts=(launch,))
    given = (run_workload_id or environ.get("RUN_WORKLOAD_ID", "").strip())[:_LONGEST_VALUE]
    if given:
        workload = workload._replace(id_parts=(given,), given_id=given)
    return workload._replace(details=_custom_details(given)) if workload.wire == CUSTOM else workload


def identify(
    name: str,
    workload: Workload,
    *,
    occasion: int = 1,
    clock: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
    agree_on: Callable[[str, str], str] = agree,
) -> RunIdentity:
    """Return the identity of the run that is about to start, the same on all processes.

    Args:
        name: The name that the user gave.
        workload: The workload of this process.
        occasion: The number of runs of that name that this process has started, with this one.
        clock: Seconds since 1970.
        random_bytes: Randomness.
        agree_on: See `agreement.agree`.
    """
    again = (str(occasion),) if occasion > 1 else ()
    chance = random_bytes(8).hex()
    if workload.id_parts:
        parts = workload.id_parts if workload.id_parts != (name,) else ()
        run_id = readable_id(name, *parts, *again, is_exact=True)
    else:
        # In UTC, and not alone: two runs of one name may start in one second.
        run_id = readable_id(name, time.strftime("%Y%m%d-%H%M%S", time.gmtime(clock())), chance[:4])
    token = f"{workload.token}/{occasion}" if workload.token else ""
    if workload.id_parts and jax_processes() is None:
        return RunIdentity(run_id, token)  # The environment is the same on all processes: no one needs to be asked.
    agreed = agree_on(f"run/{readable_id(name, is_exact=True)}/{occasion}", json.dumps([run_id, token or chance]))
    run_id, agreed_token = _strings(agreed) or (run_id, token)
    # Without a coordinator, chance is this process's own, and no token of the others'.
    return RunIdentity(run_id, agreed_token if jax_processes() is not None else token)


def process_position(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the index of this process among all of the job, and how many there are: 1 if unknown."""
    identity = environment.identity(environ)
    return identity.process_index, identity.process_count


def warn_if_split(run_id: str, workload: Workload, process_count: int) -> None:
    """Warn if each of the job's processes has started a run of its own. On GKE, `workload_of` has warned already."""
    if process_count > 1 and not workload.id_parts and workload.wire != "GKE" and not has_coordinator():
        warn_once(
            "too early",
            "The %d processes of this job cannot agree on one run: this one's is %s, and the others have "
            "their own. Set RUN_WORKLOAD_ID to the same text on all of them, or give torchrun an --rdzv-id, or "
            "call machinelearning_run after jax.distributed.initialize or torch.distributed.init_process_group.",
            process_count,
            run_id,
        )


def warn_if_started_too_early(run_id: str, process_count: int) -> None:
    """Warn if JAX knows of more processes by now than when the run started."""
    position = jax_processes()
    if position is not None and position[1] > process_count:
        warn_once(
            "too early",
            "machinelearning_run was called before jax.distributed.initialize: the %d processes of this job could "
            "not agree on one run, and this one's is %s. Call it afterwards, or set RUN_WORKLOAD_ID.",
            position[1],
            run_id,
        )


# --- Sources ------------------------------------------------------------------------------------------


def _custom_details(given: str) -> dict[str, Any]:
    """Return what the control plane has of a workload that neither GKE nor Slurm runs."""
    host = environment.identity().host
    target = {"displayName": host, "instanceId": UNKNOWN_INSTANCE, "hostname": host, "state": "RUNNING"}
    workload = {"id": given or UNKNOWN_INSTANCE, "displayName": given or host}
    return {"custom": {**workload, "createTime": format_timestamp(time.time_ns())}, "targets": [target]}


def with_instance(details: Mapping[str, Any], instance_id: str, zone: str) -> dict[str, Any]:
    """Return the details of a custom workload with the VM that it runs on, which only the metadata server knows."""
    custom = dict(details["custom"])
    if custom["id"] == UNKNOWN_INSTANCE:
        custom["id"] = instance_id
    targets = [{**target, "instanceId": instance_id, "zone": zone} for target in details["targets"]]
    return {**details, "custom": custom, "targets": targets}


def _of_gke(environ: Mapping[str, str], token: str) -> Workload:
    identifier, metadata = _json(environ, "GKE_DIAGON_IDENTIFIER"), _json(environ, "GKE_DIAGON_METADATA")
    name = identifier.get("metadata.name", "")
    if not name:
        warn_once(
            "no webhook",
            "This is a Kubernetes pod, and GKE_DIAGON_IDENTIFIER is not set: the run is not linked to its workload, "
            "and a restart starts another run. Install the injection webhook and label the workload "
            "managed-mldiagnostics-gke=true, or set RUN_WORKLOAD_ID.",
        )
        return Workload(Orchestrator.GKE, "GKE", token=token)
    kind, cluster = identifier.get("metadata.kind", ""), identifier.get("clustername", "")
    namespace = identifier.get("namespace", "")
    created = metadata.get("creation-timestamp") or metadata.get("timestamp") or ""
    details = {"id": name, "kind": kind, "cluster": cluster, "namespace": namespace}
    if metadata.get("parent-workload"):
        details["parentWorkload"] = metadata["parent-workload"]
    labels = dict(pair.split("=", 1) for pair in metadata.get("associated-labels", "").split(",") if "=" in pair)
    gke: dict[str, Any] = {**details, "labels": labels} if labels else dict(details)
    # Without either, a workload that is created again under its name would continue the run of the first.
    life = _compact_time(created) or metadata.get("uid", "")[:8]
    parts = (cluster.rpartition("/")[2], namespace, kind, name, life)
    return Workload(Orchestrator.GKE, "GKE", tuple(part for part in parts if part), token, {"gke": gke})


def _of_slurm(environ: Mapping[str, str], token: str) -> Workload:
    job, cluster = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_CLUSTER_NAME", "")
    details = {
        "jobId": job,
        "cluster": cluster,
        "displayName": environ.get("SLURM_JOB_NAME", ""),
        "submitTime": environ.get("SLURM_JOB_START_TIME", ""),
    }
    parts = tuple(part for part in (cluster, "slurm", job) if part)
    slurm = {key: text for key, text in details.items() if text}
    return Workload(Orchestrator.SLURM, "SLURM", parts, token, {"slurm": slurm})


def _launch_by_torchrun(environ: Mapping[str, str]) -> str:
    """Return what all processes and restarts of one launch by torchrun share; empty if the environment has nothing."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if run_id not in ("", "none"):  # `none` is what torchrun sets if neither --rdzv-id nor --standalone was given.
        return run_id[:8] if _UUID.fullmatch(run_id) else run_id[:_LONGEST_VALUE]
    if environ.get("LOCAL_WORLD_SIZE", "-") == environ.get("WORLD_SIZE"):
        # torchrun makes a folder of a random name for each launch, on each host; here there is only one host.
        folder, found, _ = environ.get("TORCHELASTIC_ERROR_FILE", "").partition("/attempt_")
        if found:
            return hashlib.sha256(folder.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return ""


def _token(environ: Mapping[str, str]) -> str:
    """Return what all processes of one life of the job share, and no other life has."""
    if environ.get("SLURM_JOB_ID"):
        names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
        return "slurm:" + ".".join(environ.get(name, "") for name in names)
    if environ.get("TORCHELASTIC_RUN_ID"):
        names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        return "torch:" + ".".join(environ.get(name, "") for name in names)
    return ""


def _json(environ: Mapping[str, str], variable: str) -> dict[str, str]:
    """Return a variable's JSON object of texts; warn once if it is invalid."""
    text = environ.get(variable, "")
    if not text:
        return {}
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            return {str(key): str(item) for key, item in value.items()}
    except (ValueError, RecursionError):
        pass
    warn_once((variable, "damaged"), "%s holds no JSON object and is not used: %s", variable, text[:200])
    return {}


def _compact_time(text: str) -> str:
    """2026-03-10T01:02:03Z as 20260310-010203; anything else as it is."""
    match = re.match(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)", text, re.ASCII)
    return "{}{}{}-{}{}{}".format(*match.groups()) if match else text


def _strings(agreed: str) -> tuple[str, str] | None:
    try:
        run_id, token = json.loads(agreed)
    except (ValueError, TypeError):
        return None
    return str(run_id), str(token)
