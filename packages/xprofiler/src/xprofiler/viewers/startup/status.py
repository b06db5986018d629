"""The status of the startup script: an object in the log directory, rewritten at every step.

The format is compatible with older releases, which wrote a Python literal: one flat object of strings and numbers.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.labels import BACKEND_LABEL, label_value

__all__ = ["StartupStatus", "status_path"]

_LABELLED: Final = ("startup_script_begin_ts", "tb_launched_ts", "tb_attempts_count", BACKEND_LABEL)


@dataclass(frozen=True)
class StartupStatus:
    """The status of a viewer VM.

    Attributes:
        state: "starting", "ready" or "failed"; a status of older releases is "ready" or "failed".
        step: The current or failed step, such as "installing XProf".
        error: The error; a ready viewer has one if its registration with the proxy failed.
        labels: The labels to add to the VM, including its id in the proxy.
    """

    state: str
    step: str = ""
    error: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> StartupStatus | None:
        """Parse a status; return None if its format is not valid.

        Args:
            data: The object's content.
        """
        fields = _literal(data.decode("utf-8", "replace"))
        if not isinstance(fields, dict):
            return None
        launched = str(fields.get("tb_launched_ts") or "0") not in ("", "0")
        return cls(
            state=str(fields.get("state") or ("ready" if launched else "failed")),
            step=str(fields.get("step", "")),
            error=str(fields.get("error", "")),
            labels={name: label_value(str(fields[name])) for name in _LABELLED if fields.get(name)},
        )


def status_path(log_directory: LogDirectory, vm_name: str) -> str:
    """Return the path to which a viewer VM writes its status."""
    return log_directory.child(f"{vm_name}/startup_output.json")


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
