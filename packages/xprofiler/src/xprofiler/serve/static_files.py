"""The modules and styles of the summary page: only listed files are served; paths are never built from a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ml_diagnostics_common import page

__all__ = ["FOLDERS", "StaticFile", "read_static_files"]

FOLDERS: Final = MappingProxyType({"common/": page.FOLDER, "xprofiler/": Path(__file__).parent / "static"})
"""The folders by the start of the names of their files. The page of `mldiagnostics ui` has the same names."""

_MEDIA_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


class StaticFile(NamedTuple):
    """A file that is served.

    Attributes:
        media_type: Its media type.
        data: Its bytes.
    """

    media_type: str
    data: bytes


def read_static_files() -> Mapping[str, StaticFile]:
    """Return all files by their names, such as `common/dom.js`."""
    return {
        f"{prefix}{path.name}": StaticFile(_MEDIA_TYPES[path.suffix], path.read_bytes())
        for prefix, folder in FOLDERS.items()
        for path in folder.iterdir()
        if path.suffix in _MEDIA_TYPES
    }
