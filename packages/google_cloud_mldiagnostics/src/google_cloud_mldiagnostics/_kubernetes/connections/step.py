"""The next step for one object, from what is known of it. No clock, no network.

The API server sends every object again after each interruption, so each step can be asked for again at any time.

    none or Pending -> (refused) Failed
                    -> Pending, with its position in the queue
                    -> Running, claimed with the version that was read: another operator's claim makes ours fail
    Running         -> Succeeded or Failed by the operator that claimed it
                    -> captured by it, if it did not receive the answer to its claim
                    -> checked by the next leader, if that operator is gone
    final           -> deleted, after its time to live
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from google_cloud_mldiagnostics._kubernetes.connections.resource import Capture, Connection, Phase
from google_cloud_mldiagnostics._kubernetes.names import ALLOW_CAPTURES_FROM

__all__ = ["Claim", "Delete", "Policy", "Queue", "Recover", "Refuse", "Situation", "Start", "Step", "Wait", "next_step"]

_USUAL_PORT: Final = 9999
_FIRST_UNPRIVILEGED_PORT: Final = 1024


class Policy(NamedTuple):
    """The settings of an operator.

    Attributes:
        allows_local_storage: True if a location may be a folder of the pods.
        ports: The ports of profiler servers; none for 9999 and all from 1024 on.
        most_captures: How many objects are captured at once.
        ttl_seconds: How long a finished object is kept; 0 for ever.
    """

    allows_local_storage: bool = False
    ports: tuple[int, ...] = ()
    most_captures: int = 8
    ttl_seconds: int = 7 * 24 * 3600


class Situation(NamedTuple):
    """The knowledge of an operator beside the object.

    Attributes:
        operator: Its own identity, which no other process ever has.
        is_leader: True if it holds the lease.
        captures: How many objects it captures now.
        busy_pods: The names of the pods of the same namespace that it captures for other objects now.
        queued_before: How many objects wait that were created before this one.
        was_started_here: True if it has started to capture this object, or to check its files; it also reports the end.
        allowed_namespaces: The namespaces that may capture pods of the capture's namespace, beside that itself.
        finished_seconds_ago: The time since the object's end; None before that.
    """

    operator: str
    is_leader: bool
    captures: int = 0
    busy_pods: frozenset[str] = frozenset()
    queued_before: int = 0
    was_started_here: bool = False
    allowed_namespaces: frozenset[str] = frozenset()
    finished_seconds_ago: float | None = None


class Wait(NamedTuple):
    """Do nothing; ask again after some seconds, or when the object changes if it is None."""

    seconds: float | None


class Refuse(NamedTuple):
    """Set the phase Failed, with a message."""

    message: str


class Queue(NamedTuple):
    """Set the phase Pending, with a message, and ask again."""

    message: str


class Claim(NamedTuple):
    """Claim the object, and start its capture."""

    capture: Capture


class Start(NamedTuple):
    """Start the capture of an object that is claimed already."""

    capture: Capture


class Recover(NamedTuple):
    """Check the files of a capture whose operator has ended."""

    capture: Capture


class Delete(NamedTuple):
    """Delete the object; its files stay."""


Step: TypeAlias = Wait | Refuse | Queue | Claim | Start | Recover | Delete


def next_step(connection: Connection, situation: Situation, policy: Policy) -> Step:
    """Return the next step for an object.

    Args:
        connection: The object.
        situation: The knowledge of the operator beside it.
        policy: The operator's settings.
    """
    if not situation.is_leader:
        return Wait(None)
    if connection.phase is not None and connection.phase.is_final:
        return _of_finished(connection, situation, policy)
    if situation.was_started_here:
        return Wait(None)
    if connection.capture is None:
        return Refuse(connection.problem)
    if connection.phase is Phase.RUNNING:
        # Only a leader claims, and we lead: we have claimed it, or the operator that claimed it has ended.
        is_ours = connection.claimed_by == situation.operator
        return Start(connection.capture) if is_ours else Recover(connection.capture)
    problem = refusal(connection.capture, connection.namespace, situation.allowed_namespaces, policy)
    if problem:
        return Refuse(problem)
    busy = next((pod for pod in connection.capture.pods if pod in situation.busy_pods), None)
    if busy is not None:  # It would hold one of the few places for as long as the other capture runs.
        return Queue(f"waits for the capture of {busy} by another object")
    if situation.captures >= policy.most_captures:
        return Queue(f"waits for {situation.captures} other captures; {situation.queued_before} more are before it")
    return Claim(connection.capture)


def refusal(capture: Capture, namespace: str, allowed_namespaces: frozenset[str], policy: Policy) -> str:
    """Return why a capture is refused before any pod is asked; empty if it is not.

    Args:
        capture: The capture.
        namespace: The namespace of the object that asks for it.
        allowed_namespaces: The namespaces that may capture pods of the capture's namespace, beside that itself.
        policy: The operator's settings.
    """
    if capture.namespace != namespace and namespace not in allowed_namespaces:
        return (
            f"pods of the namespace {capture.namespace} can be captured by objects in it only: create this object "
            f"there, or annotate that namespace with {ALLOW_CAPTURES_FROM}: {namespace}"
        )
    if not capture.location.startswith("gs://") and not policy.allows_local_storage:
        return f"expected storageLocation to be gs://BUCKET/FOLDER, got {capture.location:.200}"
    if policy.ports and capture.port not in policy.ports:
        allowed = ", ".join(map(str, policy.ports))
        return f"expected capturePort to be one that this operator allows ({allowed}), got {capture.port}"
    if not policy.ports and capture.port != _USUAL_PORT and capture.port < _FIRST_UNPRIVILEGED_PORT:
        return f"expected capturePort to be that of a profiler server, 1024 or higher, got {capture.port}"
    return ""


def _of_finished(connection: Connection, situation: Situation, policy: Policy) -> Step:
    ttl_seconds = policy.ttl_seconds if connection.ttl_seconds is None else connection.ttl_seconds
    if not ttl_seconds or situation.finished_seconds_ago is None:
        return Wait(None)
    remaining = ttl_seconds - situation.finished_seconds_ago
    return Delete() if remaining <= 0 else Wait(remaining)
