"""The saved state of a job: a file on this machine, and a copy from which other machines can continue.

The copy is in `<gcs_path>/goodput_state/`, under the name of the local file, which is a hash of the job, its log, the
project and the retention. `gcs_path` is `gs://bucket`, `gs://bucket/folder`, or a folder, for example on a shared disk.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.backoff import Backoff, Retries
from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    DiagnosticsError,
    ObjectNotFoundError,
)
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.storage import Storage, storage_for
from ml_diagnostics_common.worker import call

from ml_goodput_measurement._query.saved_state import (
    FRONT_BYTES,
    SavedState,
    UnusableStateError,
    decode_state,
    encode_state,
    facts_in_front,
    load_state,
    save_state,
    saved_facts,
)

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.recorders import Recorders

__all__ = ["StateStore", "checked_gcs_path"]

_THREAD = "goodput-state"
_FOLDER = "goodput_state"

_READ_DEADLINE_SECONDS = 1.0
"""The deadline of a request during a query: all of them together take at most 2 s."""
_CHECK_PATIENCE_SECONDS = 1.5
_DOWNLOAD_PATIENCE_SECONDS = 30.0
"""A download may take longer, since reading the log itself takes minutes."""

_SYNC_DEADLINE_SECONDS = 20.0
_MOST_WRITES = 6


DEFAULT_CACHE_DIR = "/tmp"
"""Stands for the state folder of ML_DIAGNOSTICS_DIR: the public package's default, which any user may write to."""


def state_folder(root: Path, cache_dir: str) -> Path:
    """Return the folder of saved state on this machine."""
    return root / "state" / "goodput" if cache_dir == DEFAULT_CACHE_DIR else Path(cache_dir)


def checked_gcs_path(gcs_path: str | os.PathLike[str] | None) -> str | None:
    """Return a folder for copies of saved state as text; None for no copy.

    Raises:
        ConfigurationError: It is not `gs://bucket`, `gs://bucket/folder` or a local folder.
    """
    if gcs_path is None or gcs_path == "":
        return None
    try:
        folder = os.fspath(gcs_path)
    except TypeError:
        folder = None
    if not isinstance(folder, str):
        raise ConfigurationError(f"gcs_path is {gcs_path!r:.200}; give gs://bucket/folder, a local folder, or None")
    storage_for(folder)
    return folder


class StateStore:
    """The saved state of one job from one log.

    Args:
        local_path: The file of this machine.
        gcs_path: The folder of the copy: see the module; None for no copy.

    Raises:
        ConfigurationError: `gcs_path` is not valid.
    """

    def __init__(self, local_path: Path, gcs_path: str | os.PathLike[str] | None = None) -> None:
        self._local_path = local_path
        folder = checked_gcs_path(gcs_path)
        self._copy = None if folder is None else _StateCopy(f"{folder.rstrip('/')}/{_FOLDER}/{local_path.name}")

    def load(self, job_name: str, *, local_only: bool = False) -> SavedState | None:
        """Return the state with more facts, the local one or the copy; None if neither can be used.

        Takes about two seconds at most if the copy's store does not answer.

        Args:
            job_name: The job.
            local_only: True to ignore the copy.
        """
        if local_only:
            return load_state(self._local_path, job_name)
        copied = self._copy.facts(job_name) if self._copy is not None else -1
        if self._copy is not None and copied > saved_facts(self._local_path, job_name):
            return self._copy.load(job_name) or load_state(self._local_path, job_name)
        state = load_state(self._local_path, job_name)
        if state is None and self._copy is not None and copied >= 0:
            return self._copy.load(job_name)
        return state

    def save(self, recorders: Recorders, position: dict[str, Any]) -> bool:
        """Save the state on this machine; see `save_state`."""
        return save_state(self._local_path, recorders, position)

    def sync(self, recorders: Recorders, position: dict[str, Any]) -> bool:
        """Update the copy; one with as many facts or more stays unchanged.

        Blocks while the copy is written, about 20 s if its store does not answer. A failure is logged once.

        Returns:
            True if the copy now has all facts; False without a copy, or with nothing to copy.
        """
        return self._copy is not None and recorders.fact_count > 0 and self._copy.write(recorders, position)


class _Seen(NamedTuple):
    """The facts and the generation of a copy."""

    facts: int
    """The number of its facts; -1 if it cannot be used."""
    generation: int
    """Its generation; 0 if there is no copy."""


class _StateCopy:
    """The copy: an object of Cloud Storage, or a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._damaged_generation = 0  # Such a copy is replaced, even if it seems to have as many facts.

    def facts(self, job_name: str) -> int:
        """Return the number of its facts, -1 if it cannot be used; read only its first bytes."""
        try:
            return call(lambda: self._read_front(self._store(), job_name), _CHECK_PATIENCE_SECONDS, _THREAD).facts
        except (DiagnosticsError, OSError) as error:
            self._warn_unreadable(error)
            return -1

    def load(self, job_name: str) -> SavedState | None:
        """Return its state; None if it cannot be used."""
        try:
            data, generation = call(
                lambda: self._store().read_with_generation(self._path), _DOWNLOAD_PATIENCE_SECONDS, _THREAD
            )
        except (DiagnosticsError, OSError) as error:
            self._warn_unreadable(error)
            return None
        try:
            return decode_state(io.BytesIO(data), len(data), job_name)
        except UnusableStateError as error:
            self._damaged_generation = generation
            self._warn_unusable(error)
            return None

    def write(self, recorders: Recorders, position: dict[str, Any]) -> bool:
        """Replace it, unless it has as many facts."""
        facts, encoded = recorders.fact_count, b""

        def replace() -> None:
            nonlocal encoded
            seen = self._read_front(store, recorders.job_name)
            if seen.facts < facts:
                encoded = encoded or b"".join(encode_state(recorders, position))
                store.write(self._path, encoded, if_generation=seen.generation)

        retries = Retries(
            Backoff(0.05, 0.5), most_tries=_MOST_WRITES, retry_if=lambda failure: failure.kind is Kind.CONFLICT
        )
        try:
            store = self._store(_SYNC_DEADLINE_SECONDS)
            retries(replace)
            return True
        except (DiagnosticsError, OSError) as error:
            warn_once(
                ("goodput state", self._path, "write"),
                "The state of goodput queries could not be copied to %s: %s. Other machines read the log from the "
                "beginning, or from an older copy, until a later try succeeds.",
                self._path,
                error,
            )
            return False

    def _store(self, deadline_seconds: float = _READ_DEADLINE_SECONDS) -> Storage:
        return storage_for(self._path, deadline_seconds=deadline_seconds)

    def _read_front(self, store: Storage, job_name: str) -> _Seen:
        try:
            front, generation = store.read_with_generation(self._path, first_bytes=FRONT_BYTES)
        except ObjectNotFoundError:
            return _Seen(-1, 0)
        if generation == self._damaged_generation:
            return _Seen(-1, generation)
        try:
            return _Seen(facts_in_front(front, job_name), generation)
        except UnusableStateError as error:
            self._warn_unusable(error)
            return _Seen(-1, generation)

    def _warn_unreadable(self, error: Exception) -> None:
        warn_once(
            ("goodput state", self._path, "read"),
            "Cannot read the copy of goodput's state in %s: %s. Continuing from this machine's state.",
            self._path,
            error,
        )

    def _warn_unusable(self, error: Exception) -> None:
        warn_once(
            ("goodput state", self._path, "use"),
            "The copy of goodput's state in %s cannot be used and is replaced: %s",
            self._path,
            error,
        )
