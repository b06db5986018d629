"""The kinds of objects in the loopback cluster, and their discovery by clients.

Formats: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Kind:
    """One kind of object.

    Attributes:
        name: The name in objects: "Pod".
        plural: The name in paths: "pods".
        group: The API group; empty is the core group.
        version: The group's version.
        short_names: The abbreviations in kubectl.
        is_namespaced: True if its objects are in namespaces.
        is_in_all: True if `kubectl get all` includes it.
        subresources: The subresources of its objects, such as "exec".
    """

    name: str
    plural: str
    group: str = ""
    version: str = "v1"
    short_names: tuple[str, ...] = ()
    is_namespaced: bool = True
    is_in_all: bool = False
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """The apiVersion in objects: "v1", "apps/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """The path of the group and version without outer slashes: "api/v1", "apis/apps/v1"."""
        return f"apis/{self.api_version}" if self.group else f"api/{self.version}"


KINDS: Final = (
    Kind("ConfigMap", "configmaps", short_names=("cm",)),
    Kind("Event", "events", short_names=("ev",)),
    Kind("Namespace", "namespaces", short_names=("ns",), is_namespaced=False),
    Kind("Node", "nodes", short_names=("no",), is_namespaced=False),
    Kind("Pod", "pods", short_names=("po",), is_in_all=True, subresources=("exec", "log", "portforward")),
    Kind("ResourceQuota", "resourcequotas", short_names=("quota",)),
    Kind("Secret", "secrets"),
    Kind("Service", "services", short_names=("svc",), is_in_all=True),
    Kind("ServiceAccount", "serviceaccounts", short_names=("sa",)),
    Kind("Deployment", "deployments", "apps", short_names=("deploy",), is_in_all=True),
    Kind("ReplicaSet", "replicasets", "apps", short_names=("rs",), is_in_all=True),
    Kind("StatefulSet", "statefulsets", "apps", short_names=("sts",), is_in_all=True),
    Kind("HorizontalPodAutoscaler", "horizontalpodautoscalers", "autoscaling", "v2", ("hpa",), is_in_all=True),
    Kind("Job", "jobs", "batch", is_in_all=True),
    Kind("JobSet", "jobsets", "jobset.x-k8s.io", "v1alpha2"),
    Kind("LeaderWorkerSet", "leaderworkersets", "leaderworkerset.x-k8s.io", short_names=("lws",)),
    Kind("LocalQueue", "localqueues", "kueue.x-k8s.io", "v1beta1", ("queue",)),
    Kind("Workload", "workloads", "kueue.x-k8s.io", "v1beta1", ("wl",)),
)


def find_kind(path: str, plural: str) -> Kind | None:
    """Return the kind for a path such as "apis/apps/v1" and a plural name; None if it is unknown."""
    return next((kind for kind in KINDS if (kind.path, kind.plural) == (path, plural)), None)


def find_plural(plural: str) -> Kind:
    """Return the kind for a plural name; KeyError if it is unknown."""
    return {kind.plural: kind for kind in KINDS}[plural]


def kind_of(resource: Mapping[str, Any]) -> Kind:
    """Return an object's kind; KeyError if it is unknown."""
    return {kind.name: kind for kind in KINDS}[resource["kind"]]


def discovery(path: str) -> Mapping[str, Any] | None:
    """Return the discovery document at a path without outer slashes; None if it is not a discovery path."""
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "apis":
        names = {(kind.group, kind.version): None for kind in KINDS if kind.group}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*name) for name in names]}
    if path == "openapi/v3":
        paths = {kind.path: {"serverRelativeURL": f"/openapi/v3/{kind.path}?hash=0"} for kind in KINDS}
        return {"paths": paths}
    if path.startswith("openapi/v3/"):
        return _schema(path.removeprefix("openapi/v3/"))
    kinds = [kind for kind in KINDS if kind.path == path]
    if not kinds:
        return None
    resources = [resource for kind in kinds for resource in _resources(kind)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version,
        "resources": resources,
    }


def _group(group: str, version: str) -> dict[str, Any]:
    versions = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [versions], "preferredVersion": versions}


def _resources(kind: Kind) -> list[dict[str, Any]]:
    whole = {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.is_namespaced,
        "kind": kind.name,
        "verbs": list(_VERBS),
        "shortNames": list(kind.short_names),
        "categories": ["all"] if kind.is_in_all else [],
    }
    parts = [
        {
            "name": f"{kind.plural}/{part}",
            "singularName": "",
            "namespaced": kind.is_namespaced,
            "kind": kind.name,
            "verbs": ["get"] if part == "log" else ["create", "get"],
        }
        for part in kind.subresources
    ]
    return [whole, *parts]


def _schema(path: str) -> dict[str, Any] | None:
    """Return the minimal OpenAPI document that makes kubectl leave the validation of objects to the server."""
    kinds = [kind for kind in KINDS if kind.path == path]
    checked = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {
        f"/{path}/{'namespaces/{namespace}/' * kind.is_namespaced}{kind.plural}/{{name}}": {
            "patch": {
                "parameters": checked,
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": {
                    "group": kind.group,
                    "version": kind.version,
                    "kind": kind.name,
                },
            }
        }
        for kind in kinds
    }
    info = {"title": "Kubernetes", "version": "v1.32.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths} if kinds else None
