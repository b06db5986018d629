"""What is wrong with a profile, by what is in it."""

from __future__ import annotations

from ml_diagnostics_common.xplane import Xplane

__all__ = ["problem_of"]


def problem_of(xplane: Xplane, *, has_accelerator: bool) -> str:
    """Says what is wrong with a profile; empty when nothing is.

    Args:
        xplane: The profile.
        has_accelerator: Whether the process has a TPU or a GPU, which then must be in it.
    """
    if not xplane.size_bytes:
        return "its file is empty"
    if not xplane.is_whole:
        return "its file is cut off, or is no profile"
    if not xplane.planes:
        return "it has no events; profile something that takes longer"
    if has_accelerator and not xplane.device_planes:
        return "it shows no device: nothing ran on one meanwhile, or another profiler holds it"
    return ""
