"""The rights that the accounts of the webhook and the operator need: those of the charts, and no others."""

from __future__ import annotations

from typing import Final, NamedTuple

from google_cloud_mldiagnostics._kubernetes.names import CONNECTION_GROUP, CONNECTIONS, LOOKED_UP, NAMESPACE

__all__ = ["FACT_RIGHTS", "OPERATOR_RIGHTS", "STAND_DOWN_RIGHTS", "WEBHOOK_RIGHTS", "Right"]


class Right(NamedTuple):
    """One right of an account.

    Attributes:
        group: The API group; empty for the core group.
        resource: The plural of the kind, with `/status` for the status alone.
        verb: The verb, such as `get`.
        namespace: The namespace; empty for all.
    """

    group: str
    resource: str
    verb: str
    namespace: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """The right as an access review asks for it."""
        name, _, subresource = self.resource.partition("/")
        asked = {"group": self.group, "resource": name, "subresource": subresource, "verb": self.verb}
        return {**asked, "namespace": self.namespace}

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{where}"


WEBHOOK_RIGHTS: Final = (
    Right("", "namespaces", "get"),
    *(Right(group, resource, "get") for (group, _), resource in LOOKED_UP.items()),
)
STAND_DOWN_RIGHTS: Final = tuple(
    Right("admissionregistration.k8s.io", resource, "list")
    for resource in ("mutatingwebhookconfigurations", "mutatingadmissionpolicies")
)
"""To search for other injectors; not with `--stand-down=never`."""
OPERATOR_RIGHTS: Final = (
    *(Right(CONNECTION_GROUP, CONNECTIONS, verb) for verb in ("list", "watch", "patch", "delete")),
    Right(CONNECTION_GROUP, f"{CONNECTIONS}/status", "patch"),
    Right("", "namespaces", "get"),
    Right("", "pods", "get"),
    *(Right("coordination.k8s.io", "leases", verb, NAMESPACE) for verb in ("get", "create", "update")),
)
FACT_RIGHTS: Final = tuple(Right("", resource, verb) for resource in ("pods", "events") for verb in ("list", "watch"))
"""To record what changes of pods; only with `--record-facts`."""
