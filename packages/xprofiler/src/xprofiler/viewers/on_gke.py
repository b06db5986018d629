"""Viewers on the current Kubernetes cluster: services with a label and a link, and their deployments.

A viewer is created until its link leads to XProf, and can be deleted at every stage.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import TimedOutError, UsageError
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.worker import in_parallel

from xprofiler.gcloud.kubectl import Cluster, error_of
from xprofiler.gcloud.processes import Programs
from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.startup import XPROF_VERSION
from xprofiler.viewers.viewer import Sought, Viewer

__all__ = ["Progress", "ViewerSetupOnGke", "ViewersOnGke", "manifest"]

_ROLE: Final = "role=xprofiler-proxy-service"
_KINDS: Final = "deployments,services,horizontalpodautoscalers"
_CREATION: Final = "xprofiler-creation"
_ROLES: Final = "role in (xprofiler-tb,xprofiler-proxy-service,xprofiler-agent)"
_URL: Final = "proxy-url"
_LOG_DIRECTORY: Final = "xprofiler_log_directory"
_DEFAULTS: Final = {"namespace": "xprofiler", "pod-port": "9001", "image": "python:3.12-slim", "context": ""}
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,47}[a-z0-9])?", re.ASCII)
_FOLDER: Final = Path(__file__).parent / "startup"
_TIMEOUT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 2.0


class Progress(NamedTuple):
    """The progress of a viewer's creation.

    Attributes:
        url: The proxy's link; None until it is registered.
        waits_for: The deployments without a ready pod. XProf's pod is ready when XProf answers.
    """

    url: str | None
    waits_for: list[str]


class ViewersOnGke:
    """The viewers on a cluster, through kubectl.

    Args:
        console: Receives command lines, with `--verbose`.
        extra: `--namespace=...`, `--context=...`, `--pod-port=...` and `--image=...`.

    Attributes:
        noun: The kind of a viewer, for messages.

    Raises:
        UsageError: An extra flag is not valid.
    """

    noun = "Pod"

    def __init__(self, console: Console, extra: Sequence[str] = ()) -> None:
        self._console = console
        self._settings = {**_DEFAULTS, **_settings_in(extra)}
        self._cluster = Cluster(self._settings["namespace"], self._settings["context"] or None)

    def find(self, sought: Sought) -> list[Viewer]:
        """Return the matching viewers, sorted by log directory and name.

        Raises:
            CommandError: The viewers cannot be listed.
        """
        selector = ",".join([_ROLE, *_in("zone", sought.zones)])
        answer = self._kubectl([*self._cluster.argv("get"), "services", f"--selector={selector}", "--output=json"])
        return sought.among(_viewer(service) for service in json.loads(answer)["items"])

    def delete(self, viewers: Sequence[Viewer]) -> list[Exception | None]:
        """Delete viewers in parallel, wait until they are gone, and return an error or None for each."""
        with Programs(self._console) as programs:  # An interrupt ends them all.
            outcomes = in_parallel(lambda argv: self._delete(argv, programs), self.delete_argv(viewers))
        return list(outcomes)

    def _delete(self, argv: Sequence[str], programs: Programs) -> None:
        self._run(programs, argv, timeout_seconds=5 * _TIMEOUT_SECONDS)

    def delete_argv(self, viewers: Sequence[Viewer]) -> list[list[str]]:
        """Return the equivalent command lines, one for each viewer.

        They name the kinds of a viewer's objects, since other objects may have the label `instance`.
        """
        return [[*self._cluster.argv("delete"), _KINDS, f"--selector={_parts_of(viewer.name)}"] for viewer in viewers]

    def manifest(self, name: str, zone: str, log_directory: LogDirectory, creation_id: str) -> list[dict[str, Any]]:
        """Return the objects to pass to `create`: see `manifest`."""
        return manifest(name, zone, log_directory, creation_id, self._settings)

    def create(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Create objects that must not exist. They are passed to kubectl by standard input, without a file.

        Raises:
            CommandError: The objects could not be created; some may exist.
        """
        self._kubectl(
            [*self._cluster.argv("create"), "--filename=-"], stdin="\n".join(map(json.dumps, objects)).encode()
        )

    def taken(self, name: str, objects: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return existing objects, as kind/name, that belong to a viewer of a name, or have its objects' names.

        Args:
            name: The viewer's name.
            objects: The objects that would be created.
        """
        named = [f"{one['kind']}/{one['metadata']['name']}" for one in objects]
        get = [*self._cluster.argv("get"), "--ignore-not-found", "--output=name"]
        found = self._kubectl([*get, *named]) + self._kubectl([*get, _KINDS, f"--selector={_parts_of(name)}"])
        return sorted(set(found.decode().split()))

    def delete_creation(self, creation_id: str) -> None:
        """Delete the objects of one `create` command, and wait until they are gone.

        Raises:
            CommandError: The objects may still exist.
        """
        argv = [*self._cluster.argv("delete"), _KINDS, f"--selector={_ROLES},{_CREATION}={creation_id}"]
        with Programs(self._console) as programs:
            self._delete(argv, programs)

    def progress(self, creation_id: str) -> Progress:
        """Return the progress of the viewer of one `create` command."""
        selector = f"--selector={_ROLES},{_CREATION}={creation_id}"
        answer = self._kubectl([*self._cluster.argv("get"), "deployments,services", selector, "--output=json"])
        parts = json.loads(answer)["items"]
        deployments = [part for part in parts if part.get("kind") == "Deployment"]
        return Progress(
            url=next((viewer.url for viewer in map(_viewer, parts) if viewer.url), None),
            waits_for=[
                str(one["metadata"]["name"]) for one in deployments if not one.get("status", {}).get("readyReplicas")
            ],
        )

    def _kubectl(self, argv: Sequence[str], *, stdin: bytes = b"") -> bytes:
        with Programs(self._console) as programs:
            return self._run(programs, argv, stdin=stdin)

    def _run(
        self, programs: Programs, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> bytes:
        ended = programs.run(argv, stdin=stdin, timeout_seconds=timeout_seconds)
        if ended.exit_code:
            verb = next(argument for argument in argv[1:] if not argument.startswith("-"))
            raise error_of(ended, f"{verb} viewers in namespace {self._cluster.namespace}")
        return ended.output


def manifest(
    name: str, zone: str, log_directory: LogDirectory, creation_id: str, settings: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the objects of a viewer.

    Args:
        name: The viewer's name; a prefix of the objects' names.
        zone: The zone in its label; the proxy of its region is used.
        log_directory: The log directory to show.
        creation_id: A label of all objects. A failed creation deletes by this label, never by name.
        settings: The namespace, pod-port and image.

    Raises:
        UsageError: A value is not valid.
    """
    import yaml

    port = settings["pod-port"]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--pod-port={port} is not the number of a port")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a viewer on Kubernetes: use 1 to 49 lower-case letters, digits, dashes; "
            "start with a letter, and do not end with a dash"
        )
    values = {
        "name": name,
        "zone": _label_value("zone", zone),
        "region": zone.rpartition("-")[0],
        "namespace": settings["namespace"],
        "image": settings["image"],
        "pod_port": port,
        "xprof_version": XPROF_VERSION,
        "log_directory": _literal(log_directory.path),
        "log_directory_annotation": log_directory.path,
        "viewer_program": _literal((_FOLDER / "gke_viewer.py").read_text(encoding="utf-8")),
        "agent_program": _literal((_FOLDER / "gke_agent.py").read_text(encoding="utf-8")),
    }
    templates = yaml.safe_load_all((_FOLDER / "gke_manifest.yaml").read_text(encoding="utf-8"))
    objects = [_filled(one, values) for one in templates]
    for one in objects:
        one["metadata"]["labels"][_CREATION] = creation_id
    return objects


def _filled(part: Any, values: Mapping[str, str]) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    number = re.fullmatch(r"\{\{(\w+):number\}\}", part)
    if number:
        return int(values[number[1]])
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], part)


def _literal(text: str) -> str:
    """Escape a container's argument, since Kubernetes replaces $(NAME) by a variable."""
    return text.replace("$", "$$")


def _viewer(service: Mapping[str, Any]) -> Viewer:
    metadata = service.get("metadata", {})
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    link = str(annotations.get(_URL, "")).strip()
    return Viewer(
        name=str(labels.get("instance", "")),
        zone=str(labels.get("zone", "")),
        log_directory=str(annotations.get(_LOG_DIRECTORY, "")),
        url=(link if "://" in link else f"https://{link}") if link else None,
        status="RUNNING",
        labels=dict(labels),
    )


def _parts_of(name: str) -> str:
    """Return a selector for the objects of a viewer."""
    return f"{_ROLES},instance={_label_value('name', name)}"


def _in(label: str, values: Collection[str]) -> list[str]:
    return [f"{label} in ({','.join(_label_value(label, value) for value in values)})"] if values else []


def _label_value(what: str, text: str) -> str:
    if not _LABEL_VALUE.fullmatch(text):
        raise UsageError(
            f"{text!r} is not a valid {what} on Kubernetes: use 1 to 63 letters, digits, '-', '_' and '.'; start and "
            "end with a letter or digit"
        )
    return text


def _settings_in(extra: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for flag, _, value in (argument.partition("=") for argument in extra):
        if flag.removeprefix("--") not in _DEFAULTS or not value:
            known = ", ".join(f"--{name}" for name in _DEFAULTS)
            raise UsageError(f"{flag}: with --gke, other flags are {known}, each with a value")
        settings[flag.removeprefix("--")] = value
    return settings


class ViewerSetupOnGke:
    """A `NewViewer` for deployments and services on a cluster.

    Args:
        viewers: The viewers of the cluster.
        name: The viewer's name.
        zone: The zone in its label.
        log_directory: The log directory to show.
        console: Receives progress messages.
        timeout_seconds: The time XProf has to answer and to be registered with the proxy.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.

    Raises:
        UsageError: The name is not valid.
    """

    def __init__(
        self,
        viewers: ViewersOnGke,
        name: str,
        zone: str,
        log_directory: LogDirectory,
        console: Console,
        timeout_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.noun = viewers.noun
        self.name = name
        self.zone = zone
        self.others = Sought(log_directories=[log_directory.path])
        self.delete_command = f"xprofiler delete --gke -z {zone} -n {name}"
        self.may_exist = False
        self._viewers = viewers
        self._console = console
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._sleep = sleep
        self._creation_id = uuid.uuid4().hex
        self._objects = viewers.manifest(name, zone, log_directory, self._creation_id)

    def recipe(self) -> str:
        """See `NewViewer.recipe`: the input of kubectl."""
        import yaml

        return "# for: kubectl create --filename=-\n" + yaml.safe_dump_all(self._objects, sort_keys=False).rstrip("\n")

    def check(self) -> None:
        """See `NewViewer.check`.

        Raises:
            UsageError: The name is in use.
            CommandError: The cluster does not answer.
        """
        taken = self._viewers.taken(self.name, self._objects)
        if taken:
            raise UsageError(
                f"a viewer {self.name} already exists on this cluster, or some of its objects do "
                f"({', '.join(taken)}): choose another name with --vm-name"
            )

    def make(self) -> str:
        """See `NewViewer.make`.

        Raises:
            TimedOutError: XProf does not answer, or is not registered with the proxy.
            CommandError: kubectl could not create it.
        """
        self.may_exist = True
        self._viewers.create(self._objects)
        self._console.notify(f"{self.name} exists; installing XProf in it.")
        return f"\nStarted on URL {self._wait()}"

    def remove(self) -> DiagnosticsError | None:
        """See `NewViewer.remove`."""
        try:
            self._viewers.delete_creation(self._creation_id)
        except DiagnosticsError as error:
            return error
        return None

    def _wait(self) -> str:
        deadline = self._clock() + self._timeout_seconds
        while True:
            progress = self._viewers.progress(self._creation_id)
            if progress.url and not progress.waits_for:
                return progress.url
            left = deadline - self._clock()
            if left <= 0:
                raise TimedOutError(self._timeout_message(progress))
            self._sleep(min(_POLL_SECONDS, left))

    def _timeout_message(self, progress: Progress) -> str:
        why = (
            f"No pod of {', '.join(progress.waits_for)} is ready"
            if progress.waits_for
            else "It is not registered with the proxy"
        )
        return (
            f"Timed out to wait XProfiler start after {self._timeout_seconds:g} seconds. {why}. Inspect the pods with "
            f"the label instance={self.name}, with --auto-delete-on-failure-off"
        )
