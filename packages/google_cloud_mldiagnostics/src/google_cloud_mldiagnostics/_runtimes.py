"""The framework that the job computes with, and the state of its devices. Nothing is imported for it."""

from __future__ import annotations

import sys

__all__ = ["computes_with_pytorch", "is_imported", "jax_is_initialised", "torch_xla_is_initialised"]


def computes_with_pytorch() -> bool:
    """Return True if the program seems to compute with PyTorch rather than with JAX.

    If either has initialised devices, that decides: programs import torch for its data loaders, and torch_xla imports
    JAX for a few functions. Otherwise the imported modules decide.
    """
    cuda = sys.modules.get("torch.cuda")
    if torch_xla_is_initialised() or (is_imported("torch.cuda") and bool(getattr(cuda, "is_initialized", bool)())):
        return not jax_is_initialised()
    return not is_imported("jax") and (is_imported("torch_xla") or is_imported("torch"))


def is_imported(name: str) -> bool:
    """Return True if the program has imported a module, to its end."""
    module = sys.modules.get(name)
    specification = getattr(module, "__spec__", None)
    return module is not None and not getattr(specification, "_initializing", False)


def jax_is_initialised() -> bool:
    """Return True if the job has initialised JAX's backends; waits for a thread that does so now."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    are_initialised = getattr(bridge, "backends_are_initialized", None)
    return bool(are_initialised()) if are_initialised is not None else False


def torch_xla_is_initialised() -> bool:
    """Return True if the job has initialised PyTorch/XLA's runtime."""
    bridge = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    is_initialised = getattr(bridge, "_xla_runtime_is_initialized", None)
    return bool(is_initialised()) if is_initialised is not None else False
