"""What the startup script tells of itself: an object in the log directory, written again at every step.

Its format is that of older releases, whose viewers wrote a Python literal: one flat object of texts and numbers.
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
    """How far a viewer VM is.

    Attributes:
        state: "starting", "ready" or "failed"; what older releases wrote is one of the latter.
        step: What it does, or what failed: "installing XProf".
        error: What went wrong; also of a viewer that is ready, where the proxy does not know it.
        labels: What its VM is to be labelled with, the proxy's id for it among them.
    """

    state: str
    step: str = ""
    error: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> StartupStatus | None:
        """Read it; None where it is not of that form.

        Args:
            data: The object's content.
        """
        told = _literal(data.decode("utf-8", "replace"))
        if not isinstance(told, dict):
            return None
        launched = str(told.get("tb_launched_ts") or "0") not in ("", "0")
        return cls(
            state=str(told.get("state") or ("ready" if launched else "failed")),
            step=str(told.get("step", "")),
            error=str(told.get("error", "")),
            labels={name: label_value(str(told[name])) for name in _LABELLED if told.get(name)},
        )


def status_path(log_directory: LogDirectory, vm_name: str) -> str:
    """Where a viewer VM tells how far it is."""
    return log_directory.child(f"{vm_name}/startup_output.json")


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
