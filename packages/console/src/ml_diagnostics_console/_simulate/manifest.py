"""The workload of a manifest: a Job or a JobSet, its jobs and the template of their pods. Pure, but `read`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._simulate.fields import Fields, ManifestError
from ml_diagnostics_console._simulate.machines import ACCELERATORS

__all__ = ["Job", "JobSetRule", "PodRule", "Template", "Workload", "of_command", "parse", "read"]

_MOST_BYTES: Final = 524_288
_MOST_DOCUMENTS: Final = 100
_MOST_ALIASES: Final = 200
_MOST_KEYS: Final = 2_000
_DEFAULT_BACKOFF_LIMIT: Final = 6
_ACTIONS: Final = frozenset({"FailJob", "FailIndex", "Ignore", "Count"})
_JOBSET_ACTIONS: Final = frozenset(
    {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts"}
)


class PodRule(NamedTuple):
    """A rule of a Job's podFailurePolicy."""

    action: str
    is_in: bool
    """True if it is about exit codes in the list, False about those that are not."""
    exit_codes: tuple[int, ...]
    container: str
    conditions: tuple[str, ...]


class JobSetRule(NamedTuple):
    """A rule of a JobSet's failurePolicy."""

    action: str
    reasons: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """The pods of a job.

    Attributes:
        labels: The labels of the template.
        annotations: The annotations of the template.
        spec: The spec of the pods.
        container: The container that is simulated: the one with an accelerator, else the first.
        others: The names of the other containers.
        init: The names of the init containers; sidecars are among them.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Fields
    container: Fields
    others: tuple[str, ...] = ()
    init: tuple[str, ...] = ()

    @property
    def resources(self) -> Fields:
        """The resources of the container."""
        return self.container.fields("resources")

    @property
    def chips(self) -> int:
        """The number of accelerators that the container asks for."""
        asked = {**self.resources.pairs("requests"), **self.resources.pairs("limits")}
        return sum(int(asked[name]) for name in ACCELERATORS if asked.get(name, "").isdecimal())

    @property
    def is_on_tpu(self) -> bool:
        """True if the pods ask for a TPU."""
        names = [*self.resources.pairs("limits"), *self.resources.pairs("requests"), *self.spec.pairs("nodeSelector")]
        return "google.com/tpu" in names or any(name.startswith("cloud.google.com/gke-tpu") for name in names)


@dataclass(frozen=True)
class Job:
    """One Job: that of the manifest, or one of those that a JobSet makes.

    Attributes:
        name: Its name.
        template: Its pods.
        completions: How many of them have to end well.
        parallelism: How many of them run at once.
        is_indexed: True if each pod has an index.
        backoff_limit: How many pods may fail before the job does.
        per_index_limit: The same for each index; None if failures are counted together.
        most_failed_indexes: With `per_index_limit`: how many indexes may fail before the job does.
        pod_rules: The rules of its podFailurePolicy.
        succeeds_with: Rules of its successPolicy: the indexes, and how many of them suffice; None takes all.
        deadline_seconds: How long it may run; None for any time.
        spec: Its spec in the manifest.
        replicated_job: The name in the JobSet.
        replicas: How many such jobs the JobSet has.
        job_index: Its index among these.
        global_index: Its index among all jobs of the JobSet.
    """

    name: str
    template: Template
    completions: int = 1
    parallelism: int = 1
    is_indexed: bool = False
    backoff_limit: int = _DEFAULT_BACKOFF_LIMIT
    per_index_limit: int | None = None
    most_failed_indexes: int | None = None
    pod_rules: tuple[PodRule, ...] = ()
    succeeds_with: tuple[tuple[frozenset[int], int], ...] = ()
    deadline_seconds: int | None = None
    spec: Fields = field(default_factory=lambda: Fields({}))
    replicated_job: str = ""
    replicas: int = 1
    job_index: int = 0
    global_index: int = 0


@dataclass(frozen=True)
class Workload:
    """A workload to simulate.

    Attributes:
        kind: Job, JobSet or command.
        name: Its name.
        jobs: Its jobs.
        namespace: Its namespace.
        labels: Its labels.
        spec: Its spec in the manifest.
        most_restarts: How often a failed job restarts the whole JobSet.
        rules: The rules of a JobSet's failurePolicy.
        needs_all: True if the JobSet has succeeded once all of `needed_jobs` have, False if one of them suffices.
        needed_jobs: The replicated jobs of its successPolicy; empty for all.
        subdomain: The second part of the pods' DNS names.
        config_maps: The config maps of the same file.
        other_documents: Kind and name of the other objects of the file.
    """

    kind: str
    name: str
    jobs: tuple[Job, ...]
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Fields = field(default_factory=lambda: Fields({}))
    most_restarts: int = 0
    rules: tuple[JobSetRule, ...] = ()
    needs_all: bool = True
    needed_jobs: tuple[str, ...] = ()
    subdomain: str = ""
    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    other_documents: tuple[str, ...] = ()


def read(path: Path) -> str:
    """Return the text of a manifest.

    Raises:
        NotFoundError: There is no such file.
        ManifestError: It is too large, or not text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {str(path)!r}") from None
    except IsADirectoryError:
        raise ManifestError(f"{str(path)!r} is a folder; give the file of a Job or a JobSet") from None
    if len(data) > _MOST_BYTES:
        raise ManifestError(f"{str(path)!r} is larger than {_MOST_BYTES // 1024} KiB, which no manifest needs")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ManifestError(f"{str(path)!r} is not a text file") from None


def parse(text: str) -> Workload:
    """Return the workload of a manifest of one or several documents.

    Raises:
        ManifestError: It is not YAML, or has no single Job or JobSet that can be simulated.
    """
    documents = [Fields(document) for document in _flat(_load(text))]
    workloads = [document for document in documents if _kind(document) in ("batch/Job", "jobset.x-k8s.io/JobSet")]
    if not workloads:
        kinds = ", ".join(dict.fromkeys(document.text("kind", "no kind") for document in documents))
        raise ManifestError(f"expected a Job (batch/v1) or a JobSet (jobset.x-k8s.io), got {kinds or 'nothing'}")
    if len(workloads) > 1:
        names = ", ".join(_name_of(document) for document in workloads)
        raise ManifestError(f"the file has {len(workloads)} workloads ({names}); leave the one to simulate")
    document = workloads[0]
    others = [each for each in documents if each is not document]
    workload = _jobset(document) if document.text("kind") == "JobSet" else _single_job(document)
    return Workload(
        **{
            **vars(workload),
            "config_maps": {_name_of(each): each.pairs("data") for each in others if _kind(each) == "/ConfigMap"},
            "other_documents": tuple(
                f"{one_line(each.text('kind', 'a document without a kind'))} {_name_of(each)}".strip()
                for each in others
            ),
        }
    )


def of_command(command: tuple[str, ...], *, hosts: int) -> Workload:
    """Return the workload of a command: an indexed Job with a pod for each host.

    Args:
        command: The program and its arguments.
        hosts: The number of pods.
    """
    container = Fields({"name": "command", "command": list(command)})
    template = Template({}, {}, Fields({}), container)
    scripts = [word for word in command if word.endswith((".py", ".sh"))] or [command[0]]
    name = "".join(letter if letter.isalnum() else "-" for letter in Path(scripts[0]).stem.lower()).strip("-") or "job"
    job = Job(name, template, completions=hosts, parallelism=hosts, is_indexed=True, backoff_limit=0)
    return Workload("command", name, (job,), subdomain=name)


# --- Documents ----------------------------------------------------------------------------------------


def _load(text: str) -> list[object]:
    """Return the documents of a text, within limits that aliases and merged keys cannot exceed."""
    import yaml

    class Loader(yaml.SafeLoader):
        aliases = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                self.aliases += 1
                if self.aliases > _MOST_ALIASES:
                    raise ManifestError(f"the manifest has more than {_MOST_ALIASES} aliases")
            return super().compose_node(parent, index)

        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            if len(node.value) > _MOST_KEYS:
                raise ManifestError(f"a mapping of the manifest has more than {_MOST_KEYS:,} keys")

    found: list[object] = []
    try:
        for document in yaml.load_all(text, Loader):
            if document is not None:
                found.append(document)
            if len(found) > _MOST_DOCUMENTS:
                raise ManifestError(f"the manifest has more than {_MOST_DOCUMENTS} documents")
    except yaml.YAMLError as error:
        raise ManifestError(f"the manifest is not valid YAML: {one_line(str(error), 300)}") from None
    except (ValueError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise ManifestError(f"the manifest cannot be read: {one_line(str(error), 300)}") from None
    return found


def _flat(documents: list[object]) -> Iterator[object]:
    for document in documents:
        if isinstance(document, Mapping) and document.get("kind") == "List" and isinstance(document.get("items"), list):
            yield from document["items"][:_MOST_DOCUMENTS]
        else:
            yield document


def _kind(document: Fields) -> str:
    return f"{document.text('apiVersion').rpartition('/')[0]}/{document.text('kind')}"


def _name_of(document: Fields) -> str:
    metadata = document.fields("metadata")
    generated = metadata.text("generateName")
    return metadata.text("name") or (f"{generated}simulated" if generated else "")


# --- Job and JobSet -----------------------------------------------------------------------------------


def _single_job(document: Fields) -> Workload:
    metadata, name = document.fields("metadata"), _name_of(document) or "job"
    spec = document.fields("spec")
    template = spec.fields("template").fields("spec")
    return Workload(
        "Job",
        name,
        (_job(name, spec),),
        namespace=metadata.text("namespace", "default"),
        labels=metadata.pairs("labels"),
        spec=spec,
        subdomain=template.text("subdomain"),
    )


def _jobset(document: Fields) -> Workload:
    metadata, name, spec = document.fields("metadata"), _name_of(document) or "jobset", document.fields("spec")
    jobs: list[Job] = []
    for replicated in spec.each("replicatedJobs"):
        short, replicas = replicated.text("name"), replicated.number("replicas", 1)
        if not short:
            raise ManifestError(f"{replicated.path}.name is missing")
        if len(jobs) + replicas > 1_000:
            raise ManifestError(f"{replicated.path}.replicas: more than 1,000 jobs cannot be simulated")
        job_spec = replicated.fields("template").fields("spec")
        for index in range(replicas):
            # In a JobSet, jobs are indexed unless they are declared otherwise.
            job = _job(f"{name}-{short}-{index}", job_spec, mode="Indexed")
            position = {"replicated_job": short, "replicas": replicas, "job_index": index, "global_index": len(jobs)}
            jobs.append(Job(**{**vars(job), **position}))
    if not jobs:
        raise ManifestError("spec.replicatedJobs has no jobs")
    failures, success = spec.fields("failurePolicy"), spec.fields("successPolicy")
    return Workload(
        "JobSet",
        name,
        tuple(jobs),
        namespace=metadata.text("namespace", "default"),
        labels=metadata.pairs("labels"),
        spec=spec,
        most_restarts=failures.number("maxRestarts", 0),
        rules=tuple(_jobset_rules(failures)),
        needs_all=success.text("operator", "All") != "Any",
        needed_jobs=success.texts("targetReplicatedJobs"),
        subdomain=spec.fields("network").text("subdomain") or name,
    )


def _jobset_rules(policy: Fields) -> Iterator[JobSetRule]:
    for rule in policy.each("rules"):
        action = rule.text("action")
        if action not in _JOBSET_ACTIONS:
            raise ManifestError(f"{rule.path}.action: expected one of {', '.join(sorted(_JOBSET_ACTIONS))}")
        yield JobSetRule(action, rule.texts("onJobFailureReasons"), rule.texts("targetReplicatedJobs"))


def _job(name: str, spec: Fields, mode: str = "NonIndexed") -> Job:
    parallelism = spec.number("parallelism", 1)
    is_indexed = spec.text("completionMode", mode) == "Indexed"
    completions = spec.number("completions", parallelism or 1, least=1)
    has_index_limit = "backoffLimitPerIndex" in spec
    return Job(
        name,
        _template(spec.fields("template")),
        completions=completions,
        parallelism=min(parallelism, completions),
        is_indexed=is_indexed,
        backoff_limit=spec.number("backoffLimit", 10**5 if has_index_limit else _DEFAULT_BACKOFF_LIMIT),
        per_index_limit=spec.number("backoffLimitPerIndex", 0) if has_index_limit else None,
        most_failed_indexes=spec.number("maxFailedIndexes", 0) if "maxFailedIndexes" in spec else None,
        pod_rules=tuple(_pod_rules(spec.fields("podFailurePolicy"))),
        succeeds_with=tuple(_success_rules(spec.fields("successPolicy"), completions)) if is_indexed else (),
        deadline_seconds=spec.number("activeDeadlineSeconds", 0, least=1) or None,
        spec=spec,
    )


def _pod_rules(policy: Fields) -> Iterator[PodRule]:
    for rule in policy.each("rules"):
        action, codes = rule.text("action"), rule.fields("onExitCodes")
        if action not in _ACTIONS:
            raise ManifestError(f"{rule.path}.action: expected one of {', '.join(sorted(_ACTIONS))}")
        conditions = tuple(condition.text("type") for condition in rule.each("onPodConditions"))
        is_in = codes.text("operator", "In") != "NotIn"
        yield PodRule(action, is_in, codes.numbers("values"), codes.text("containerName"), conditions)


def _success_rules(policy: Fields, completions: int) -> Iterator[tuple[frozenset[int], int]]:
    for rule in policy.each("rules"):
        indexes = frozenset(_indexes(rule.text("succeededIndexes"), completions, rule.path))
        indexes = indexes or frozenset(range(completions))
        yield indexes, rule.number("succeededCount", len(indexes))


def _indexes(text: str, completions: int, path: str) -> Iterator[int]:
    """Yield the indexes of a text such as `0,2-4`."""
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and len(part) < 14):
            raise ManifestError(f"{path}.succeededIndexes: expected a form such as 0,2-4, got {text[:40]!r}")
        yield from range(int(first), min(int(last or first), completions - 1) + 1)


def _template(template: Fields) -> Template:
    metadata, spec = template.fields("metadata"), template.fields("spec")
    containers = list(spec.each("containers"))
    if not containers:
        raise ManifestError(f"{spec.path}.containers has no container")

    def asks_for_accelerator(container: Fields) -> bool:
        resources = container.fields("resources")
        return any(name in ACCELERATORS for each in ("limits", "requests") for name in resources.pairs(each))

    main = next(filter(asks_for_accelerator, containers), containers[0])
    if "command" not in main:
        raise ManifestError(
            f"{main.path}.command is missing: the program is the one of the image {main.text('image')!r}, which is not "
            "used here; give the command in the manifest, or run `mldiagnostics simulate -- COMMAND`"
        )
    return Template(
        metadata.pairs("labels"),
        metadata.pairs("annotations"),
        spec,
        main,
        tuple(each.text("name") for each in containers if each is not main),
        tuple(each.text("name") for each in spec.each("initContainers")),
    )
