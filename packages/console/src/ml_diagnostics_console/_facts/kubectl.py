"""The user's own kubectl, for questions: command lines, answers, and what to do if it cannot answer.

Names are positional arguments, so only valid ones are passed; every other value is passed as `--flag=value`.
"""

from __future__ import annotations

import enum
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any, Final

from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.programs import Answer, ProgramError, ask

__all__ = ["ALL_NAMESPACES", "Kubectl", "KubectlError", "Reason"]

ALL_NAMESPACES: Final = "*"
_MOST_BYTES: Final = 32 * 2**20
"""About 3,000 pods: larger answers need several hundred MB of memory."""
_LONGEST_CALL_SECONDS: Final = 10.0
_KLOG: Final = re.compile(r"[EWI]\d{4} ")
_LONGEST_MESSAGE: Final = 300
_CREDENTIALS: Final = "`gcloud container clusters get-credentials CLUSTER --region=REGION`"


class Reason(enum.Enum):
    """The reasons for which kubectl does not answer."""

    MISSING = "not installed"
    NO_CONTEXT = "no context"
    FORBIDDEN = "forbidden"
    NO_LOGIN = "no login"
    UNREACHABLE = "unreachable"
    NO_SUCH_KIND = "no such kind"
    OTHER = "other"


_PATTERNS: Final = (
    (Reason.NO_SUCH_KIND, r"doesn't have a resource type|could not find the requested resource"),
    (Reason.FORBIDDEN, r"\(Forbidden\)|is forbidden"),
    (Reason.NO_LOGIN, r"\(Unauthorized\)|must be logged in|exec plugin|getting credentials|auth-plugin"),
    (
        Reason.NO_CONTEXT,
        r"current-context|cannot locate context|context \S+ does not exist|context was not found"
        r"|no configuration has been provided|localhost:8080",
    ),
    (
        Reason.UNREACHABLE,
        r"Unable to connect|was refused|i/o timeout|deadline exceeded|no such host|Client\.Timeout|TLS|x509"
        r"|connection reset|\(Timeout\)|ServiceUnavailable|did not (?:answer|end)",
    ),
)


class KubectlError(Exception):
    """kubectl did not answer; the message has the remedy.

    Attributes:
        reason: The kind of failure.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Kubectl:
    """kubectl with one context and a default namespace, until a moment.

    Attributes:
        context: The name of the context; empty in a pod of the cluster, without one.
        namespace: The namespace of commands by default.
    """

    def __init__(self, context: str, namespace: str, deadline: float) -> None:
        """Ask nothing yet: see `connect`."""
        self.context = context
        self.namespace = namespace
        self._deadline = deadline

    @classmethod
    def connect(cls, context: str | None, namespace: str, deadline: float) -> Kubectl:
        """Return kubectl for a context; asks no cluster.

        Args:
            context: The context; None is the current one.
            namespace: The namespace; empty is that of the context.
            deadline: The moment of the monotonic clock at which all questions end.

        Raises:
            KubectlError: kubectl is not installed, or there is no such context.
        """
        unset = cls(context or "", namespace, deadline)
        if context is not None and (not context or context.startswith("-") or "\0" in context):
            raise unset._error(Reason.NO_CONTEXT, f"{context!r} is not a valid context")
        try:
            config = unset._json(["config", "view", "--minify", "--output=json"])
        except KubectlError as error:
            if error.reason is not Reason.NO_CONTEXT or context or "KUBERNETES_SERVICE_HOST" not in os.environ:
                raise
            return cls("", namespace or "default", deadline)  # kubectl finds the cluster that its pod is in.
        found = config.get("contexts")
        chosen = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
        settings = chosen.get("context")
        default = settings.get("namespace") if isinstance(settings, dict) else None
        return cls(str(chosen.get("name") or context or ""), namespace or str(default or "default"), deadline)

    def get(
        self, kind: str, namespace: str, *, names: Sequence[str] = (), selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return objects; those that do not exist are left out.

        Args:
            kind: The plural of the kind, with its group: `jobs.batch`.
            namespace: Their namespace, or ALL_NAMESPACES; empty for kinds without one.
            names: Their names, which must be valid; empty for all.
            selector: A selector of labels.
            fields: A selector of fields.

        Raises:
            KubectlError: There is no answer, with the remedy.
        """
        options = [
            "--all-namespaces" if namespace == ALL_NAMESPACES else f"--namespace={namespace}",
            f"--selector={selector}",
            f"--field-selector={fields}",
        ]
        given = [option for option in options if not option.endswith("=")]
        arguments = ["get", "--output=json", "--ignore-not-found", *given, kind, *names]
        answer = self._json(arguments, what=f"list {kind.partition('.')[0]}", namespace=namespace)
        items = answer.get("items") if "items" in answer else [answer] if answer else []
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    def command(self, *words: str, namespace: str = "") -> str:
        """Return a command line for the user."""
        more = [f"--namespace {namespace}"] if namespace else []
        return " ".join(["kubectl", *words, *more, *([f"--context {self.context}"] if self.context else [])])

    def _json(self, arguments: Sequence[str], *, what: str = "", namespace: str = "") -> dict[str, Any]:
        answer = self._ask(arguments)
        if answer.exit_code:
            lines = [line for line in answer.errors.splitlines() if line and not _KLOG.match(line)]
            message = " ".join(lines or answer.errors.splitlines()[-1:]) or f"exit code {answer.exit_code}"
            reason = next((reason for reason, pattern in _PATTERNS if re.search(pattern, answer.errors)), Reason.OTHER)
            raise self._error(reason, message, what, namespace)
        try:
            found = json.loads(answer.output or b"{}")
        except (ValueError, RecursionError) as error:
            raise self._error(Reason.OTHER, f"its answer is not valid JSON: {error}", what) from error
        if not isinstance(found, dict):
            raise self._error(Reason.OTHER, "its answer is not an object", what)
        return found

    def _ask(self, arguments: Sequence[str]) -> Answer:
        left = min(_LONGEST_CALL_SECONDS, self._deadline - time.monotonic())
        if left <= 0.0:
            raise self._error(Reason.UNREACHABLE, "there was no time left to ask")
        chosen = [f"--context={self.context}"] if self.context else []
        argv = ["kubectl", *chosen, f"--request-timeout={max(1, int(left))}s", *arguments]
        try:
            return ask(argv, timeout_seconds=left, most_bytes=_MOST_BYTES)
        except ProgramError as error:
            is_missing = "not installed" in str(error)
            reason = Reason.MISSING if is_missing else Reason.UNREACHABLE if "did not" in str(error) else Reason.OTHER
            raise self._error(reason, str(error)) from error

    def _error(self, reason: Reason, message: str, what: str = "", namespace: str = "") -> KubectlError:
        """Return the error with what to do about it."""
        return KubectlError(reason, f"{one_line(message, _LONGEST_MESSAGE)}: {self._remedy(reason, what, namespace)}")

    def _remedy(self, reason: Reason, what: str, namespace: str) -> str:
        if reason is Reason.MISSING:
            return "install it (https://kubernetes.io/docs/tasks/tools/, or `gcloud components install kubectl`)"
        if reason is Reason.NO_CONTEXT:
            return (
                f"give --kubernetes CONTEXT (see `kubectl config get-contexts`), or add the cluster with {_CREDENTIALS}"
            )
        if reason is Reason.FORBIDDEN:
            scope = "--all-namespaces" if namespace == ALL_NAMESPACES else f"--namespace {namespace}"
            check = self.command("auth", "can-i", *what.split(), *([scope] if namespace else []))
            return f"ask for the role `view` there; check it with `{check}`"
        if reason is Reason.NO_LOGIN:
            return f"log in again, such as with `gcloud auth login`, and then {_CREDENTIALS}"
        if reason is Reason.UNREACHABLE:
            return f"check the connection with `{self.command('version')}`"
        return f"try `{self.command('get', 'pods')}`"
