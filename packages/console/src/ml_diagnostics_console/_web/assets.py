"""The static files of the page: only files that are listed are served; paths are never built from a request."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ml_diagnostics_common import page

__all__ = ["STATIC", "Asset", "Assets", "page_folders"]

STATIC: Final = Path(__file__).parent / "static"

_OF_OTHERS: Final = {"xprofiler/": ("xprofiler", "serve", "static"), "fleet/": ("ml_diagnostics_fleet", "page_parts")}
"""The package and the folder in it of the files of distributions that may be missing, by the start of their names."""

_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_TEXT: Final = frozenset({".html", ".css", ".js", ".json", ".svg", ".txt"})
_RELIST_SECONDS: Final = 1.0


class Asset:
    """A file, read once, or one that was made of others.

    Args:
        data: Its bytes.
        suffix: The end of its name, such as ".js".

    Attributes:
        data: Its bytes.
        media_type: Its media type.
        version: A text that changes with its content.
    """

    def __init__(self, data: bytes, suffix: str) -> None:
        self.data = data
        self.media_type = _MEDIA_TYPES[suffix]
        self.version = hashlib.sha256(data).hexdigest()[:20]
        self._is_text = suffix in _TEXT

    @property
    def etag(self) -> str:
        """Its strong entity tag, with quotes."""
        return f'"{self.version}"'

    @functools.cached_property
    def zipped(self) -> bytes | None:
        """The same, compressed by gzip; None if that does not make it smaller."""
        zipped = gzip.compress(self.data, 9, mtime=0) if self._is_text else None
        return zipped if zipped is not None and len(zipped) < len(self.data) else None


def page_folders() -> dict[str, Path]:
    """Return the folders of the page's files, by the start of their names.

    Elements, texts and colours are a part of common, the drawing of a profile is one of xprofiler, and the report of a
    fleet one of the fleet; their own pages have them, too. Nothing of xprofiler or the fleet is imported here.
    """
    folders = {"": STATIC, "common/": page.FOLDER}
    for prefix, (package, *below) in _OF_OTHERS.items():
        try:
            found = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            found = None
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            folders[prefix] = Path(folder, *below)
    return folders


class Assets:
    """The files below some folders, by their path with slashes.

    A file that changes on disk is read again, so that an upgrade or a developer's edit shows at the next reload.

    Args:
        folders: Each folder by the start of the names of its files: "" or a name that ends with a slash. One that
            does not exist has no files. Links in a folder are not followed out of it. None for those of the page.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        self._folders = page_folders() if folders is None else dict(folders)
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._listed_at = float("-inf")
        self._read: dict[str, tuple[tuple[int, int], Asset]] = {}

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        with self._lock:
            self._list()
            return sorted(self._paths)

    def find(self, name: str) -> Asset | None:
        """Return a listed file; None for anything else.

        Args:
            name: The path below its folder, with slashes, after the start of all names of that folder.
        """
        with self._lock:
            if name not in self._paths and time.monotonic() - self._listed_at > _RELIST_SECONDS:
                self._list()
            path = self._paths.get(name)
            if path is None:
                return None
            try:
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_size)
                known = self._read.get(name)
                if known is None or known[0] != stamp:
                    known = self._read[name] = (stamp, Asset(path.read_bytes(), path.suffix))
            except OSError:
                return None
            return known[1]

    def text(self, name: str) -> str:
        """Return the text of a listed file.

        Args:
            name: The name, with slashes; see `find`.

        Raises:
            KeyError: There is no such file.
        """
        asset = self.find(name)
        if asset is None:
            raise KeyError(name)
        return asset.data.decode()

    def _list(self) -> None:
        self._paths = {name: path for prefix, folder in self._folders.items() for name, path in _listed(prefix, folder)}
        self._listed_at = time.monotonic()


def _listed(prefix: str, folder: Path) -> Iterator[tuple[str, Path]]:
    root = folder.resolve()
    for path in root.rglob("*"):
        is_wanted = path.suffix in _MEDIA_TYPES and not path.name.startswith(".")
        if is_wanted and path.is_file() and path.resolve().is_relative_to(root):
            yield f"{prefix}{path.relative_to(root).as_posix()}", path
