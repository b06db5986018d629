"""Parts of a manifest without an effect on this machine: a line for each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._simulate.fields import Fields
from ml_diagnostics_console._simulate.manifest import Job, Template, Workload

__all__ = ["ignored_parts"]

_USED_BY_POD: Final = frozenset(
    {"containers", "initContainers", "volumes", "restartPolicy", "subdomain", "hostname", "nodeSelector"}
    | {"terminationGracePeriodSeconds", "serviceAccountName"}
)
_USED_BY_CONTAINER: Final = frozenset(
    {"name", "command", "args", "env", "envFrom", "workingDir", "volumeMounts", "resources", "imagePullPolicy", "image"}
)
_USED_BY_JOB: Final = frozenset(
    {"parallelism", "completions", "completionMode", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes"}
    | {"template", "activeDeadlineSeconds", "podFailurePolicy", "successPolicy"}
)
_USED_BY_JOBSET: Final = frozenset({"replicatedJobs", "failurePolicy", "successPolicy", "coordinator"})
_REASONS: Final[Mapping[str, str]] = {
    "affinity": "all processes run on this machine",
    "topologySpreadConstraints": "all processes run on this machine",
    "tolerations": "all processes run on this machine",
    "hostNetwork": "all processes share the network of this machine",
    "dnsPolicy": "addresses of pods are 127.0.0.1",
    "dnsConfig": "addresses of pods are 127.0.0.1",
    "network": "addresses of pods are 127.0.0.1",
    "livenessProbe": "no probe is made",
    "readinessProbe": "no probe is made",
    "startupProbe": "no probe is made",
    "lifecycle": "no hook is run",
    "ports": "all processes share the ports of this machine",
    "securityContext": "the processes run as this user",
    "serviceAccount": "the processes have the credentials of this user",
    "imagePullSecrets": "no image is pulled",
    "suspend": "the rehearsal starts at once",
    "startupPolicy": "all jobs start at once",
    "ttlSecondsAfterFinished": "nothing is created that would be deleted",
    "priorityClassName": "there is no queue here",
    "schedulingGates": "there is no queue here",
    "managedBy": "there is no controller here",
    "shareProcessNamespace": "there is one process for each pod",
}
_OBJECTS: Final[Mapping[str, str]] = {
    "NetworkPolicy": "all processes share the network of this machine",
    "Service": "addresses of pods are 127.0.0.1",
    "Secret": "secrets are not read; give variables with --env NAME=VALUE",
    "PersistentVolumeClaim": "volumes are folders that --volume gives",
}


def ignored_parts(workload: Workload, volumes: Mapping[str, str]) -> list[str]:
    """Return a line for each thing that the rehearsal ignores, each once.

    Args:
        workload: The workload.
        volumes: The folders of volumes, from `--volume`.
    """
    lines = [*_of_spec(workload.spec, _USED_BY_JOBSET)] if workload.kind == "JobSet" else []
    for job in workload.jobs:
        lines += _of_job(job, volumes)
    for document in workload.other_documents:
        kind, _, name = document.partition(" ")
        if kind != "ConfigMap":
            lines.append(f"{kind} {name}: {_OBJECTS.get(kind, 'nothing is created')}".replace(" :", ":"))
    return list(dict.fromkeys(one_line(line, 400) for line in lines))


def _of_job(job: Job, volumes: Mapping[str, str]) -> Iterator[str]:
    template, container = job.template, job.template.container
    if "image" in container:
        yield f"image {container.text('image')}: the command is run with the programs of this machine"
    yield from _containers(template)
    yield from _volumes(template, volumes)
    yield from _of_spec(job.spec, _USED_BY_JOB)
    yield from _of_spec(template.spec, _USED_BY_POD)
    yield from _of_spec(container, _USED_BY_CONTAINER)
    if "serviceAccountName" in template.spec:
        yield f"serviceAccountName {template.spec.text('serviceAccountName')}: {_REASONS['serviceAccount']}"
    if job.template.is_on_tpu or job.template.chips:
        names = sorted({*template.resources.pairs("limits"), *template.resources.pairs("requests")})
        chips = ", ".join(name for name in names if "/" in name) or "the accelerator"
        yield f"accelerator {chips}: JAX runs on the CPU, with a virtual device for each chip (JAX_PLATFORMS=cpu)"


def _of_spec(spec: Fields, used: frozenset[str]) -> Iterator[str]:
    for name in spec.names():
        if name not in used and not (name == "suspend" and spec.raw[name] is False):
            yield f"{name}: {_REASONS.get(name, 'it has no effect here')}"


def _containers(template: Template) -> Iterator[str]:
    for name in template.init:
        yield f"init container {name}: it is not run"
    for name in template.others:
        yield f"sidecar {name}: only the container {template.container.text('name')} is run"


def _volumes(template: Template, volumes: Mapping[str, str]) -> Iterator[str]:
    mounted = {mount.text("name"): mount.text("mountPath") for mount in template.container.each("volumeMounts")}
    for volume in template.spec.each("volumes"):
        name = volume.text("name")
        if name not in volumes:
            where = f" at {mounted[name]}" if name in mounted else ""
            yield f"volume {name}{where}: it is not mounted; give a folder with --volume {name}=DIR"
