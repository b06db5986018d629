"""The question whether objects of the connection operator can be created, as this version knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State, existing
from google_cloud_mldiagnostics._kubernetes.connections.resource import custom_resource_definition
from google_cloud_mldiagnostics._kubernetes.names import CONNECTIONS, OPERATOR

__all__ = ["QUESTION", "check"]

QUESTION: Final = "kind of connection objects"
_REMEDY: Final = f"kubectl apply -f deploy/charts/{OPERATOR}/crds/{CONNECTIONS}.yaml"
_LEFT_OUT: Final = "x-kubernetes-validations"
"""API servers before 1.25 do not keep it."""


async def check(case: Case) -> Finding:
    """Return whether the definition is there, served, and equal to ours."""
    ours = custom_resource_definition()
    name = ours["metadata"]["name"]
    path = object_path("apiextensions.k8s.io", "v1", "customresourcedefinitions", name)
    found = await existing(case.api, path)
    if found is None:
        return Finding(QUESTION, State.MISSING, f"{name} is not installed", _REMEDY)
    conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}
    if conditions.get("Established") != "True":
        return Finding(QUESTION, State.MISSING, f"{name} is not served", f"kubectl describe crd {name}")
    different = _difference(found["spec"]["versions"], ours["spec"]["versions"])
    if different:
        return Finding(QUESTION, State.MISSING, f"{name} differs from that of this command in {different}", _REMEDY)
    return Finding(QUESTION, State.OK, name)


def _difference(found: Any, ours: Any, where: str = "versions") -> str:
    """Return where the first difference is; empty without one."""
    if isinstance(found, Mapping) and isinstance(ours, Mapping):
        keys = [key for key in sorted({*found, *ours}) if key != _LEFT_OUT]
        return next(filter(None, (_difference(found.get(key), ours.get(key), f"{where}.{key}") for key in keys)), "")
    if isinstance(found, list) and isinstance(ours, list) and len(found) == len(ours):
        pairs = enumerate(zip(found, ours, strict=True))
        return next(filter(None, (_difference(one, other, f"{where}[{index}]") for index, (one, other) in pairs)), "")
    return "" if found == ours else where
