"""The start of a pod as a process of this machine: its command line, its variables and its folder. Pure.

A process gets the variables of its pod, and few of this shell: one that is set here and missing in the manifest would
hide a mistake.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from google_cloud_mldiagnostics import injection
from ml_diagnostics_common.redaction import is_secret_key, redact_text

from ml_diagnostics_console._simulate.manifest import Job, Workload
from ml_diagnostics_console._simulate.variables import Pod, Sources, expanded, variables_of

__all__ = ["Launch", "Settings", "group_of", "groups_of", "launch_of"]

_KEPT: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV|CONDA_\w+|(?:DY)?LD_LIBRARY_PATH"
    r"|PYTHONPATH|(?:REQUESTS_CA_BUNDLE|SSL_CERT_\w+|CURL_CA_BUNDLE)|(?:https?|no)_proxy|(?:HTTPS?|NO)_PROXY"
    r"|COVERAGE_\w+",
    re.ASCII,
)
"""Variables that a container's image has as well, and those by which this machine reaches the network."""
_CREDENTIALS: Final = re.compile(
    r"GOOGLE_(?!CLOUD_PROJECT\Z|CLOUD_REGION\Z|CLOUD_ZONE\Z)\w*CREDENTIALS\w*|CLOUDSDK_\w+|AWS_(?!(?:DEFAULT_)?REGION\Z)\w+"
    r"|AZURE_\w+|BOTO_CONFIG|BOTO_PATH|KUBECONFIG|HF_TOKEN\w*|HUGGING_FACE_HUB_TOKEN\w*|WANDB_API_KEY|NETRC|RCLONE_\w+",
    re.ASCII,
)
"""Variables with credentials, or with the path of a file that has them; further ones the redactor knows by name."""
_UNREACHABLE: Final = "127.0.0.1:9"
_NO_METADATA: Final = {
    "NO_GCE_CHECK": "true",
    "GCE_METADATA_HOST": _UNREACHABLE,
    "GCE_METADATA_IP": _UNREACHABLE,
    "GCE_METADATA_ROOT": _UNREACHABLE,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""A virtual machine gets credentials from a server: Google's libraries and TensorStore ask here, where nothing is."""
_BUCKET: Final = re.compile(r"(?:gs|s3)://[^\s\"'`,;()<>\[\]{}]+", re.ASCII)
_NOT_FOR_CPU: Final = re.compile(r"--(?:xla_tpu_|xla_jf_|xla_sc_|megascale_)\S*")
"""Flags that XLA ends the process for on a CPU, since it does not know them there."""
_DEVICES: Final = "--xla_force_host_platform_device_count"
_LOOPBACK: Final = "127.0.0.1"
SIMULATION: Final = "ML_DIAGNOSTICS_SIMULATION"


@dataclass(frozen=True)
class Settings:
    """Settings of all pods.

    Attributes:
        shell: The variables of this shell.
        directory: The diagnostics folder.
        folder: The folder in which the launcher leaves its reports.
        launcher: The folder of the launcher's `sitecustomize`.
        given: Variables from `--env`.
        volumes: Folders from `--volume`, by the volume's name.
        devices: Virtual devices of each process; None takes the chips that the pod asks for.
        created: When the workload was created, as the API server writes it.
        here: The current folder.
        may_exit: True if the fault `exit` may be injected.
        home: An empty folder that is HOME, and no credentials are passed on; empty keeps HOME and credentials.
        user_base: The folder with packages that the user has installed for himself, which Python finds by HOME.
    """

    shell: Mapping[str, str]
    directory: str
    folder: str
    launcher: str
    created: str
    here: str
    given: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None
    may_exit: bool = False
    home: str = ""
    user_base: str = ""


@dataclass(frozen=True)
class Launch:
    """The start of one pod.

    Attributes:
        command: The program and its arguments.
        variables: All variables of the process.
        python_path: PYTHONPATH of the command alone: the launcher is its first folder.
        directory: The folder that it starts in.
        notes: Differences to a cluster, for the user.
        buckets: The addresses of buckets in its command line and in the variables of the pod.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    python_path: str
    directory: str
    notes: tuple[str, ...]
    buckets: tuple[str, ...] = ()


def group_of(pod: Pod, pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods that form one job of JAX: all on TPUs, else those of one replicated job."""
    if pod.job.template.is_on_tpu:
        return [each for each in pods if each.job.template.is_on_tpu]
    return [each for each in pods if each.job.replicated_job == pod.job.replicated_job]


def groups_of(pods: Sequence[Pod]) -> list[list[Pod]]:
    """Return the pods by their job of JAX."""
    groups: list[list[Pod]] = []
    for pod in pods:
        group = group_of(pod, pods)
        if group not in groups:
            groups.append(group)
    return groups


def _is_injected(workload: Workload) -> bool:
    """Return True if the injection webhook gives its pods variables, by their label or that of the workload."""
    labels = [workload.labels, *(job.template.labels for job in workload.jobs)]
    return any(each.get(injection.LABEL) == "true" for each in labels)


def launch_of(sources: Sources, pods: Sequence[Pod], address: str, settings: Settings) -> Launch:
    """Return the start of a pod.

    Args:
        sources: The pod, and what its variables are made from.
        pods: All pods.
        address: The coordinator's address on this machine.
        settings: Settings of all pods.
    """
    pod, container = sources.pod, sources.pod.job.template.container
    group = group_of(pod, pods)
    base = {
        **_of_cluster(sources, pods),
        **_of_webhook(sources.workload, settings.created),
        "JAX_COORDINATOR_ADDRESS": address,
    }
    variables = variables_of(sources, base)
    command = [expanded(word, variables) for word in (*container.texts("command"), *container.texts("args"))]
    directory = expanded(container.text("workingDir"), variables)
    mounts = _mounts(pod.job, settings.volumes)
    names = [f"{each.name}.{sources.workload.subdomain}" if sources.workload.subdomain else each.name for each in pods]
    changed = _Changes(names, mounts)
    command = [changed.apply(word) for word in command]
    made = {name: value if name in settings.given else changed.apply(value) for name, value in variables.items()}
    if changed.addresses:
        sources.notes.append(f"addresses of pods are {_LOOPBACK} here: {', '.join(sorted(changed.addresses))}")
    if "JAX_COORDINATOR_ADDRESS" not in settings.given:
        made["JAX_COORDINATOR_ADDRESS"] = address
    texts = [*command, *made.values()]
    merged = {
        **_of_shell(settings),
        **_without_credentials(made, settings, sources.notes),
        **_of_backend(made, pod.job, settings, sources.notes),
    }
    merged |= {
        "ML_DIAGNOSTICS_DIR": settings.directory,
        "ML_DIAGNOSTICS_ATTEMPT": str(sources.attempt),
        SIMULATION: json.dumps(
            {
                "pod": pod.rank,
                "index": next((n for n, each in enumerate(group) if each.name == pod.name), pod.index),
                "count": len(group),
                "address": address,
                "names": names,
                "folder": settings.folder,
                "may_exit": settings.may_exit,
            }
        ),
    }
    folders = [settings.launcher, merged.get("PYTHONPATH", "")]
    where = changed.apply(directory)
    return Launch(
        command=tuple(command),
        variables=merged,
        python_path=":".join(filter(None, folders)),
        directory=where or settings.here,
        notes=tuple(sources.notes),
        buckets=tuple(dict.fromkeys(redact_text(found) for text in texts for found in _BUCKET.findall(text))),
    )


def _is_credential(name: str) -> bool:
    return _CREDENTIALS.fullmatch(name) is not None or is_secret_key(name)


def _of_shell(settings: Settings) -> dict[str, str]:
    """Return the variables that a pod gets from this shell: without credentials, unless they are to be kept."""
    if not settings.home:
        return {name: value for name, value in settings.shell.items() if _KEPT.fullmatch(name) or _is_credential(name)}
    kept = {name: value for name, value in settings.shell.items() if _KEPT.fullmatch(name) and not _is_credential(name)}
    base = {"PYTHONUSERBASE": settings.user_base} if settings.user_base else {}
    return {**kept, **base, "HOME": settings.home, **_NO_METADATA}


def _without_credentials(made: Mapping[str, str], settings: Settings, notes: list[str]) -> dict[str, str]:
    """Return the variables of a pod without the credentials that its manifest has; `--env` is the user's own choice."""
    found = dict(made)
    for name in made:
        if settings.home and name not in settings.given and (_is_credential(name) or name in (*_NO_METADATA, "HOME")):
            del found[name]
            notes.append(f"variable {name}: a rehearsal gets no credentials; give it with --env {name}=VALUE")
    return found


def _of_cluster(sources: Sources, pods: Sequence[Pod]) -> dict[str, str]:
    """Return the variables that controllers and the webhook of a cluster add, and those of our own libraries."""
    pod, job, workload = sources.pod, sources.pod.job, sources.workload
    found = {"HOSTNAME": pod.name, "ML_DIAGNOSTICS_JOB": workload.name}
    if job.is_indexed:
        workers = sum(1 for each in pods if each.job is job)
        found |= {
            "JOB_COMPLETION_INDEX": str(pod.index),
            "TPU_WORKER_ID": str(pod.index),
            "TPU_WORKER_HOSTNAMES": ",".join([_LOOPBACK] * workers),
        }
        if job.replicas > 1:
            found |= {
                "MEGASCALE_SLICE_ID": str(job.job_index),
                "MEGASCALE_NUM_SLICES": str(job.replicas),
                "MEGASCALE_COORDINATOR_ADDRESS": _LOOPBACK,
            }
    if workload.kind == "JobSet":
        found |= {
            "JOBSET_NAME": workload.name,
            "JOBSET_RESTART_ATTEMPT": str(sources.restarts),
            "JOBSET_REPLICATED_JOB_NAME": job.replicated_job,
            "JOBSET_JOB_INDEX": str(job.job_index),
        }
    return found


def _of_webhook(workload: Workload, created: str) -> dict[str, str]:
    if not _is_injected(workload):
        return {}
    uid = hashlib.sha256(f"{workload.name}/{created}".encode()).hexdigest()
    described = injection.Workload(workload.name, workload.kind, uid[:36], workload.labels, created, "")
    given = injection.variables_of(described, cluster="", namespace=workload.namespace)
    # Outside of a cluster a run takes the identity of its workload from this variable.
    return {**given, "RUN_WORKLOAD_ID": f"{workload.name}-{created}"}


def _of_backend(variables: Mapping[str, str], job: Job, settings: Settings, notes: list[str]) -> dict[str, str]:
    """Return the variables by which JAX runs on the CPU, with a virtual device for each chip."""
    devices = settings.devices or job.template.chips or 1
    given = variables.get("XLA_FLAGS", "")
    flags = _NOT_FOR_CPU.sub("", given).split()
    if len(flags) < len(given.split()):
        notes.append("flags of XLA_FLAGS that are for TPUs: the CPU does not know them")
    if not any(flag.startswith(_DEVICES) for flag in flags) or settings.devices:
        flags = [flag for flag in flags if not flag.startswith(_DEVICES)] + [f"{_DEVICES}={devices}"]
    found = {"XLA_FLAGS": " ".join(flags), "TPU_SKIP_MDS_QUERY": "1"}  # Else libtpu asks for minutes, if it is there.
    if "JAX_PLATFORMS" not in settings.given:
        found["JAX_PLATFORMS"] = "cpu"
    if "ML_DIAGNOSTICS_BACKEND" not in settings.given:
        found["ML_DIAGNOSTICS_BACKEND"] = "local"
    return found


def _mounts(job: Job, volumes: Mapping[str, str]) -> dict[str, str]:
    """Return the folders of this machine by the paths at which the container has them."""
    mounts = list(job.template.container.each("volumeMounts"))
    return {
        mount.text("mountPath").rstrip("/"): volumes[mount.text("name")]
        for mount in mounts
        if mount.text("name") in volumes and mount.text("mountPath").strip("/")
    }


class _Changes:
    """Texts with addresses of pods and paths of volumes replaced by those of this machine."""

    def __init__(self, names: Sequence[str], mounts: Mapping[str, str]) -> None:
        self.addresses: set[str] = set()
        hosts = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._hosts = re.compile(rf"(?<![\w.-])(?:{hosts})(?:\.[\w-]+\.svc(?:\.[\w.-]+)?)?(?![\w-])")
        self._mounts = mounts
        paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
        self._paths = re.compile(rf"(?<![\w./-])(?:{paths})(?=/|\Z|[\s,:;\"'])") if paths else None

    def apply(self, text: str) -> str:
        """Return the text for a process of this machine."""

        def replace(found: re.Match[str]) -> str:
            self.addresses.add(found[0])
            return _LOOPBACK

        # A name alone, as of a pod without a subdomain, may be any text.
        changed = self._hosts.sub(replace, text) if "." in text else text
        return self._paths.sub(lambda found: self._mounts[found[0]], changed) if self._paths else changed
