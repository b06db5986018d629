"""The errors of this library.

    DiagnosticsError                              of all our libraries
    └── MLDiagnosticError
        ├── MLRunConfigurationError               (also a ConfigurationError) an argument cannot be used
        ├── RecordingError                        (also a ValueError) not raised by `record`; for scripts that catch it
        ├── NoActiveRunError                      never raised: without a run, recording and profiling warn
        ├── ProfilingError                        a profile could not be taken, or has no destination
        ├── ControlPlaneError                     the control plane refused, or could not be reached
        │   ├── ControlPlaneClientNotInitializedError
        │   ├── RunNotFoundError
        │   ├── RunExistsError
        │   └── RunChangedError                   another process changed the run first
        └── KubernetesError                       a cluster cannot be used
            ├── KubernetesApiError                its API server refused a request
            ├── KubernetesConfigurationError      (also a ConfigurationError) a kubeconfig cannot be used
            └── KubernetesUnreachableError        its API server did not answer, or is not known

Problems while the job runs are warnings instead.
"""

from __future__ import annotations

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError

__all__ = [
    "ControlPlaneClientNotInitializedError",
    "ControlPlaneError",
    "KubernetesApiError",
    "KubernetesConfigurationError",
    "KubernetesError",
    "KubernetesUnreachableError",
    "MLDiagnosticError",
    "MLRunConfigurationError",
    "NoActiveRunError",
    "ProfilingError",
    "RecordingError",
    "RunChangedError",
    "RunExistsError",
    "RunNotFoundError",
]


class MLDiagnosticError(DiagnosticsError):
    """Base of every error that this library raises."""


class MLRunConfigurationError(MLDiagnosticError, ConfigurationError):
    """An argument of `machinelearning_run` cannot be used; nothing was created."""


class RecordingError(MLDiagnosticError, ValueError):
    """A metric could not be recorded. Recording counts and warns instead: this is here for scripts that catch it."""


class NoActiveRunError(MLDiagnosticError):
    """There is no current run. Recording and profiling warn instead: this is here for scripts that catch it."""


class ProfilingError(MLDiagnosticError):
    """A profile could not be taken, or has no destination."""


class ControlPlaneError(MLDiagnosticError):
    """The control plane refused a request, or could not be reached.

    Attributes:
        code: The HTTP status; 0 without an answer.
        is_temporary: True if the same request may succeed later.
    """

    def __init__(self, message: str, *, code: int = 0, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_temporary = is_temporary


class ControlPlaneClientNotInitializedError(ControlPlaneError):
    """A control plane was called before it was found."""


class RunNotFoundError(ControlPlaneError):
    """The run does not exist."""


class RunExistsError(ControlPlaneError):
    """A run with that id exists."""


class RunChangedError(ControlPlaneError):
    """Another process changed the run since it was read."""


class KubernetesError(MLDiagnosticError):
    """A cluster cannot be used.

    Attributes:
        is_transient: True if the same request may succeed a moment later.
    """

    is_transient = False


class KubernetesConfigurationError(KubernetesError, ConfigurationError):
    """A kubeconfig is missing, or has what cannot be used."""


class KubernetesApiError(KubernetesError):
    """The API server of a cluster refused a request.

    Attributes:
        status: The HTTP status, such as 403.
    """

    def __init__(self, path: str, status: int, reason: str) -> None:
        super().__init__(f"{path}: the API server refused with {status}: {reason}")
        self.status = status
        self.is_transient = status == 429 or status >= 500


class KubernetesUnreachableError(KubernetesError):
    """The API server of a cluster did not answer in time, or no address of one is known."""

    is_transient = True
