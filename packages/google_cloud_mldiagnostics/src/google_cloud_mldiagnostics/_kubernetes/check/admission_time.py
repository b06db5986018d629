"""The question how long the creation of a pod takes with and without the webhook."""

from __future__ import annotations

import statistics
import time
from typing import Final

from google_cloud_mldiagnostics._kubernetes.check.configuration import CONFIGURATION_PATH
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State, existing
from google_cloud_mldiagnostics._kubernetes.check.workload import admitted
from google_cloud_mldiagnostics._kubernetes.names import EXEMPT_LABEL, LABEL, NAMESPACE

__all__ = ["QUESTION", "check"]

QUESTION: Final = "time to admit a pod"
_PODS: Final = 5
_SLOW_SECONDS: Final = 0.5
_REMEDY: Final = (
    f"kubectl -n {NAMESPACE} get pods,endpoints; a firewall must let the control plane reach port 8443 of the pods"
)


async def check(case: Case) -> Finding:
    """Return how long the API server takes for a pod, which is not kept."""
    is_installed = await existing(case.api, CONFIGURATION_PATH) is not None
    with_us: list[float] = []
    without: list[float] = []
    for _ in range(_PODS):  # By turns: the load of the API server changes.
        without.append(await _seconds(case, EXEMPT_LABEL))
        if is_installed:
            with_us.append(await _seconds(case, LABEL))
    detail = f"{statistics.median(without) * 1e3:.1f} ms without the webhook"
    if not is_installed:
        return Finding(QUESTION, State.OK, f"{detail}, which is not installed")
    longer = statistics.median(with_us) - statistics.median(without)
    detail += f", {longer * 1e3:+.1f} ms with it"
    if longer > _SLOW_SECONDS:
        return Finding(QUESTION, State.MISSING, f"{detail}: the webhook does not answer", _REMEDY)
    return Finding(QUESTION, State.OK, detail)


async def _seconds(case: Case, label: str) -> float:
    started = time.perf_counter()
    await admitted(case.api, case.namespace, {label: "true"})
    return time.perf_counter() - started
