"""MLRun, which `machinelearning_run` returns, and the values of its fields."""

from __future__ import annotations

import datetime
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ml_diagnostics_common.program_end import failure_of
from ml_diagnostics_common.raised_exception import RaisedException, describe_exception

from google_cloud_mldiagnostics.exceptions import MLRunConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "AcceleratorOrchestrator",
    "ApplicationFramework",
    "ConfigDict",
    "Framework",
    "MLRun",
    "Orchestrator",
    "RlOrchestrator",
    "RunPhase",
    "ServingEngine",
]


class RunPhase(enum.Enum):
    """The phase of a run."""

    PHASE_UNSPECIFIED = "RUN_PHASE_UNSPECIFIED"
    PHASE_ACTIVE = "ACTIVE"
    PHASE_COMPLETED = "COMPLETED"
    PHASE_FAILED = "FAILED"


class Framework(enum.Enum):
    """The framework that the job computes with."""

    JAX = "JAX"
    PYTORCH = "PYTORCH"


class ServingEngine(enum.Enum):
    """The engine that serves a model, if the job serves one."""

    NONE = "NONE"
    VLLM = "VLLM"


class AcceleratorOrchestrator(enum.Enum):
    """The system between the job and its accelerators."""

    NONE = "NONE"
    PATHWAYS = "PATHWAYS"


class ApplicationFramework(enum.Enum):
    """The training framework that the job is written with."""

    NONE = "NONE"
    MAXTEXT = "MAXTEXT"
    AXLEARN = "AXLEARN"
    MAXDIFFUSION = "MAXDIFFUSION"


class RlOrchestrator(enum.Enum):
    """The orchestrator of reinforcement learning."""

    NONE = "NONE"
    TUNIX = "TUNIX"


class Orchestrator(str, enum.Enum):
    """The system that started the job."""

    GKE = "GKE"
    SLURM = "SLURM"
    CUSTOM = "CUSTOM"
    NONE = "NONE"


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _notifying(change: _Function) -> _Function:
    """Return a method of dict that also calls the change callback."""

    @functools.wraps(change)
    def call(self: ConfigDict, *args: Any, **kwargs: Any) -> Any:
        try:
            return change(self, *args, **kwargs)
        finally:
            self._notify()

    return cast("_Function", call)


class ConfigDict(dict[str, Any]):
    """A run's configs, by key or by attribute; the stores of the run receive a change within seconds."""

    __slots__ = ("_changed",)
    _changed: Callable[[], object]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the run has no config {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"the run has no config {name!r}") from None

    __setitem__ = _notifying(dict.__setitem__)
    __delitem__ = _notifying(dict.__delitem__)
    __ior__ = _notifying(dict.__ior__)
    clear = _notifying(dict.clear)
    pop = _notifying(dict.pop)
    popitem = _notifying(dict.popitem)
    setdefault = _notifying(dict.setdefault)
    update = _notifying(dict.update)

    def __reduce__(self) -> tuple[Any, ...]:
        """Drop the change callback in copies and pickles."""
        return ConfigDict, (dict(self),)

    def on_change(self, changed: Callable[[], object]) -> None:
        """Call `changed` after each change; it must neither wait nor raise."""
        object.__setattr__(self, "_changed", changed)

    def set_quietly(self, name: str, value: Any) -> None:
        """Set a config without calling the change callback."""
        dict.__setitem__(self, name, value)

    def _notify(self) -> None:
        try:
            changed = object.__getattribute__(self, "_changed")
        except AttributeError:  # No callback is set.
            return
        changed()


@dataclass
class MLRun:
    """One run of a job, in all its attempts and on all its hosts.

    Attributes:
        name: The run's id.
        run_group: The group that it belongs to.
        configs: The user's configs, and the collected ones under `softwareConfigs` and `hardwareConfigs`.
        gcs_path: The destination of its profiles: `gs://...` or a folder.
        location: The region that stores the run.
        project: The project that stores it; empty without a cloud.
        run_phase: The phase that this process knows.
        created_at: The start of its first attempt, as far as this machine knows.
        workload_details: The workload that started it, in the control plane's format.
        orchestrator: The system that started it.
        display_name: The name that the user gave.
        metrics_exporter_config: The argument of that name; not used.
        workload_id: The id of the workload, if the caller or RUN_WORKLOAD_ID gives one.
        namespace: The namespace of the workload on GKE.
        ml_run_id: The run's id, as `name`.
        workload_targets: Always None, for programs that read it.
        attempt: The number of this attempt; the first is 1.
    """

    name: str
    run_group: str = ""
    configs: ConfigDict = field(default_factory=ConfigDict)
    gcs_path: str | None = None
    location: str = "us-central1"
    project: str = ""
    run_phase: RunPhase = RunPhase.PHASE_ACTIVE
    created_at: datetime.datetime | None = None
    workload_details: Mapping[str, Any] | None = None
    orchestrator: Orchestrator | None = None
    display_name: str = ""
    on_demand_xprof: bool = False
    environment: str = "prod"
    log_system_metrics: bool = True
    metric_only_run: bool = False
    framework: Framework = Framework.JAX
    serving_engine: ServingEngine = ServingEngine.NONE
    accelerator_orchestrator: AcceleratorOrchestrator = AcceleratorOrchestrator.NONE
    application_framework: ApplicationFramework | str = ApplicationFramework.NONE
    rl_orchestrator: RlOrchestrator | str = RlOrchestrator.NONE
    workload_targets: list[dict[str, Any]] | None = None
    control_plane_url: str | None = None
    cluster_id: str | None = None
    workload_id: str | None = None
    namespace: str | None = None
    metrics_exporter_config: Any = None
    ml_run_id: str | None = None
    attempt: int = 1

    def finish(self, status: str | RunPhase = "COMPLETED") -> None:
        """End the run: send its entries, within a few seconds. Later entries do not belong to it.

        Without this call, the run ends with the process. A run that has ended does not change.

        Args:
            status: COMPLETED or FAILED.

        Raises:
            MLRunConfigurationError: `status` has another value.
        """
        text = status.value if isinstance(status, RunPhase) else status if isinstance(status, str) else ""
        phase = text.strip().upper()
        if phase not in ("COMPLETED", "FAILED"):
            shown = repr(text[:100]) if isinstance(status, (str, RunPhase)) else f"a {type(status).__name__}"
            raise MLRunConfigurationError(f"status is {shown}; give 'COMPLETED' or 'FAILED'")
        self.end(phase, "" if phase == "COMPLETED" else "finish('FAILED')")

    def __enter__(self) -> Self:
        """Return the run; it ends when the block is left."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the run, as FAILED if an exception left the block; the exception is raised further."""
        reason = failure_of(error) if error is not None else ""
        raised = describe_exception(error) if error is not None and reason else ()
        self.end("FAILED" if reason else "COMPLETED", reason, raised=raised)

    def _repr_html_(self) -> str:
        """Return the run's page as HTML, for notebooks: see `run_page`."""
        from html import escape

        page = self.__dict__.get("_page")
        return str(page(self.name)) if page is not None else f"<pre>{escape(repr(self))}</pre>"

    def is_shown_by(self, page: Callable[[str], str]) -> None:
        """Call `page` with the run's id for its page as HTML."""
        self.__dict__["_page"] = page  # Not a field, as in `ends_with`.

    def ends_with(self, finish: Callable[..., object]) -> None:
        """Call `finish` with the arguments of `end`."""
        self.__dict__["_finish"] = finish  # Not a field, so that a copy of the run cannot end it.

    def end(
        self,
        phase: str,
        reason: str,
        wait_seconds: float | None = None,
        raised: Sequence[RaisedException] = (),
    ) -> None:
        """End the run as `finish` does, with a reason.

        Args:
            phase: COMPLETED or FAILED.
            reason: The reason, for users.
            wait_seconds: The longest wait until the end is recorded; None for the default.
            raised: The exception that ends it, and those that it is linked to.
        """
        finish = self.__dict__.get("_finish")
        if finish is not None:
            finish(phase, reason, wait_seconds, raised)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that is copied and pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_finish"}
