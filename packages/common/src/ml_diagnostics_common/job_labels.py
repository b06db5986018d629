"""Labels that a user gives a job: its team, its owner, its chips; for the goodput of a fleet, and in every entry."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Final

from ml_diagnostics_common.guard import warn_once

__all__ = ["chips_label", "configured_labels"]

_MOST_LABELS: Final = 16
_MOST_CHARACTERS: Final = 63
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_OURS: Final = frozenset(
    {"attempt", "chips", "coordinator", "expected_processes", "host", "job", "pid", "process_index", "run", "seq"}
    | {"writer"}
)


def configured_labels(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the labels in `ML_DIAGNOSTICS_LABELS`, such as `team=llm,owner=ana`, and `chips`.

    Those that are not valid are left out, with one warning: recording must go on.

    Args:
        environ: The environment variables.

    Returns:
        At most 16 labels, each name and value of at most 63 characters, and `chips` if `ML_DIAGNOSTICS_CHIPS` is set.
    """
    labels: dict[str, str] = {}
    for text in environ.get("ML_DIAGNOSTICS_LABELS", "").split(","):
        if not text.strip():
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        problem = _problem(name, value, has_equals=bool(equals), is_full=len(labels) == _MOST_LABELS)
        if problem:
            warn_once(
                ("label", text),
                "A label in ML_DIAGNOSTICS_LABELS is left out: %r %s. Set it to a list such as team=llm,owner=ana.",
                text.strip()[:200],
                problem,
            )
        else:
            labels[name] = value
    return {**labels, **_configured_chips(environ)}


def _problem(name: str, value: str, *, has_equals: bool, is_full: bool) -> str:
    if not has_equals or not value:
        return "has no value"
    if not _NAME.fullmatch(name):
        return "has a name that is not valid"
    if len(name) > _MOST_CHARACTERS or len(value) > _MOST_CHARACTERS:
        return f"is longer than {_MOST_CHARACTERS} characters"
    if name in _OURS:
        return "has a name that these libraries set themselves"
    return f"is more than {_MOST_LABELS} labels" if is_full else ""


def _configured_chips(environ: Mapping[str, str]) -> dict[str, str]:
    text = environ.get("ML_DIAGNOSTICS_CHIPS", "").strip()
    if not text:
        return {}
    if text.isascii() and text.isdigit() and int(text[:10]) > 0 and len(text) < 10:
        return {"chips": str(int(text))}
    warn_once(
        ("chips", text),
        "ML_DIAGNOSTICS_CHIPS is %r, and left out; set it to the number of the job's chips, such as 256",
        text[:200],
    )
    return {}


def chips_label(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the label `chips` as JAX knows it, if it has initialized its devices; never initialize them.

    Args:
        environ: The environment variables: `ML_DIAGNOSTICS_CHIPS` comes first.

    Returns:
        `{"chips": "256"}`; empty if the number is not known, or is that of CPUs.
    """
    configured = _configured_chips(environ)
    if configured:
        return configured
    try:
        backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
        backend = next(iter(backends.values())) if backends and len(backends) == 1 else None
        if backends and backend is None:  # An accelerator, and the CPU beside it.
            backend = next(each for name, each in backends.items() if name != "cpu")
        if backend is None or backend.platform == "cpu":
            return {}
        return {"chips": str(int(backend.device_count()))}
    except Exception:  # Internals of JAX, of whatever version; or a module that is only being imported.
        return {}
