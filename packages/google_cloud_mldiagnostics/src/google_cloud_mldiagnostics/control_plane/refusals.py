"""What to tell people when Google's control plane refuses: who was refused what, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ml_diagnostics_common.failures import RemoteError

from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunChangedError

__all__ = ["Asker", "refusal"]

_SERVICE = "hypercomputecluster.googleapis.com"
_ROLE = "roles/hypercomputecluster.editor"
_OTHER_ROLE = "roles/clusterdirector.editor"


@dataclass(frozen=True)
class Asker:
    """Who asks, and in which project and region.

    Attributes:
        project: The project's id.
        location: The region.
        credentials: A `google.auth.credentials.Credentials`.
        named: Whom they stand for, where that is known.
    """

    project: str
    location: str
    credentials: Any
    named: str | None = None

    @property
    def principal(self) -> str:
        """Whom the credentials stand for; those of a machine know it only once they were used."""
        if self.named:
            return self.named
        for attribute in ("service_account_email", "signer_email", "account"):
            value = getattr(self.credentials, attribute, None)
            if isinstance(value, str) and "@" in value:
                return value
        return "the account of these credentials"


def refusal(
    asker: Asker, doing: str, error: RemoteError, kind: type[ControlPlaneError] = ControlPlaneError
) -> ControlPlaneError:
    """Returns the error to raise for a request that failed.

    Args:
        asker: Who asked.
        doing: What was asked for: "create the run train-1".
        error: What came of it.
        kind: The error's class.
    """
    message = (
        f"Google's control plane could not {doing} in project {asker.project}, region {asker.location}, "
        f"for {asker.principal}: {error.message.rstrip('. ')} ({error.shown_status})"
    )
    advice = _advice(asker, error)
    return kind(
        f"{message}; {advice}" if advice else message,
        code=401 if error.code == "UNAUTHENTICATED" else error.status,
        is_temporary=error.is_temporary or kind is RunChangedError,
    )


def _advice(asker: Asker, error: RemoteError) -> str:
    if error.code == "UNAUTHENTICATED":
        return "renew the credentials: 'gcloud auth application-default login', or another key"
    if error.status == 0:
        return f"check that this machine can reach {_SERVICE}"
    if error.status == 429:
        return f"the project's quota for {_SERVICE} is used up for now"
    if error.status != 403:
        return ""
    if error.reason in ("SERVICE_DISABLED", "API_DISABLED") or "has not been used in project" in error.message:
        return (
            "enable the Cluster Director API: "
            f"'gcloud services enable {_SERVICE} --project={asker.project}', and wait some minutes"
        )
    if error.reason == "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
        return "give the machine's service account the access scope https://www.googleapis.com/auth/cloud-platform"
    return (
        f"grant {asker.principal} the role {_ROLE} on project {asker.project} "
        f"(or {_OTHER_ROLE}, where that is not offered), and see that the project is the one meant"
    )
