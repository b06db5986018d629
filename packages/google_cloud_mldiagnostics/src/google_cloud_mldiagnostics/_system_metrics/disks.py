"""The free space where a job writes: checkpoints, temporary files, and what these libraries record."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.file_systems import (
    FileSystem,
    FileSystemProbes,
    announced_checkpoint_folders,
    temporary_folder,
)

from google_cloud_mldiagnostics._system_metrics import Reading
from google_cloud_mldiagnostics._system_metrics.changes import Changes

__all__ = ["DiskMeter", "folders_in", "folders_of_job"]

_SHORTEST_SECONDS: Final = 10.0
_STEPS_PER_DOUBLING: Final = 16
"""A change of the free bytes by 4 % is recorded at once, however full the disk is."""
_FOLDER_NAME: Final = re.compile(
    r"(\w*(checkpoint|ckpt|output|save)\w*_?(dir|directory|path|folder)|work_?dir)s?", re.I
)
_MOST_CONFIGS: Final = 4096
_MOST_DEPTH: Final = 4


class DiskMeter:
    """Measure the file systems of some folders, without waiting for one that does not answer.

    Args:
        folders: Returns the folders; they need not exist.
        monotonic: The clock, in seconds.
    """

    def __init__(self, folders: Callable[[], list[str]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folders = folders
        self._monotonic = monotonic
        self._changes = Changes(monotonic)
        self._asked: list[str] = []
        self._probes = FileSystemProbes([])
        self._next = -math.inf

    def collect(self) -> list[Reading]:
        """Return the free bytes if they have changed, and once a minute."""
        if self._monotonic() < self._next:
            return []
        self._next = self._monotonic() + _SHORTEST_SECONDS
        waiting = self._probes.waiting()  # Since the last collection.
        folders = self._folders()
        if folders == self._asked:
            self._probes.ask()
        else:
            self._asked, self._probes = folders, FileSystemProbes(folders)
        found = self._probes.answers()
        if not found:
            return []
        beside: dict[str, Any] = {
            "paths": [each.path for each in found],
            "total_bytes": [each.total_bytes for each in found],
            "free_inodes": [each.free_inodes for each in found],
        }
        if waiting:
            beside["not_answering"] = waiting
        if not self._changes.take("host_disk_free", [waiting, *(_state(each) for each in found)]):
            return []
        return [
            Reading(
                "host_disk_free", "bytes", [float(each.free_bytes) for each in found], beside=beside, is_detail=True
            )
        ]


def folders_of_job(configs: Mapping[str, Any], profiles: str | None) -> list[str]:
    """Return the folders that a job writes to: those of checkpoints, for temporary files, and of what is recorded.

    Args:
        configs: The configs of the run.
        profiles: The destination of its profiles.
    """
    found = [*announced_checkpoint_folders(), *folders_in(configs)]
    if profiles is not None and "://" not in profiles:
        found.append(os.path.abspath(profiles))  # noqa: PTH100
    return list(dict.fromkeys([*found, temporary_folder(), str(diagnostics_directory())]))


def folders_in(configs: Mapping[str, Any]) -> list[str]:
    """Return the folders of checkpoints and output that configs name, by the names of the configs.

    Args:
        configs: Values by name, nested or not.
    """
    texts = [value for name, value in _flat(configs) if _FOLDER_NAME.fullmatch(name)]
    return [os.path.abspath(text) for text in texts if text and "://" not in text and "\0" not in text]  # noqa: PTH100


def _flat(configs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of all configs that are texts or paths."""
    waiting: list[tuple[Mapping[Any, Any], int]] = [(configs, 0)]
    seen = 0
    while waiting:
        mapping, depth = waiting.pop()
        for name, value in list(mapping.items()):
            seen += 1
            if seen > _MOST_CONFIGS:
                return
            if isinstance(value, Mapping) and depth < _MOST_DEPTH:
                waiting.append((value, depth + 1))
            elif isinstance(value, (str, os.PathLike)):
                text = os.fspath(value)
                if isinstance(text, str):
                    yield str(name), text


def _state(found: FileSystem) -> tuple[object, ...]:
    numbers = (found.free_bytes, found.free_inodes or 0)
    return found.path, *(int(_STEPS_PER_DOUBLING * math.log2(number + 1)) for number in numbers)
