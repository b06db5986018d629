"""The command `xprofiler`: host XProf, and capture profiles of many hosts at the same moment."""

from __future__ import annotations

from xprofiler._version import __version__

__all__ = ["__version__"]
