"""The colour of each part of a step's time, in all charts.

Based on Okabe and Ito's palette for colour-blind people, https://jfly.uni-koeln.de/color/, for light and dark pages.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

__all__ = ["PART_COLOURS"]

PART_COLOURS: Final = MappingProxyType(
    {
        "Device compute": "#3b82c4",
        "Device to device": "#7c6fd0",
        "Device collective communication": "#d9822b",
        "Host compute": "#2f9e83",
        "Kernel launch": "#c2679f",
        "Input": "#d64550",
        "Output": "#b59a2b",
        "Compilation": "#8c6d52",
        "XLA operations": "#3b82c4",
        "Transfers": "#b59a2b",
        "Annotated regions": "#d64550",
        "Calls of JAX and XLA": "#2f9e83",
        "All others": "#aab2bd",
    }
)
"""Colours by XProf's names of the parts of a device's step, and by our names for a host's."""
