"""Whether the job has initialised its devices: asked without that anything is imported or initialised."""

from __future__ import annotations

import sys

__all__ = ["jax_is_initialised", "torch_xla_is_initialised"]


def jax_is_initialised() -> bool:
    """Whether the job has initialised JAX's backends; waits for a thread that does so now."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    are_initialised = getattr(bridge, "backends_are_initialized", None)
    return bool(are_initialised()) if are_initialised is not None else False


def torch_xla_is_initialised() -> bool:
    """Whether the job has initialised PyTorch/XLA's runtime."""
    bridge = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    is_initialised = getattr(bridge, "_xla_runtime_is_initialized", None)
    return bool(is_initialised()) if is_initialised is not None else False
