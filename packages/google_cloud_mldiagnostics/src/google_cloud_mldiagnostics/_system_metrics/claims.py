"""What several processes of a run could measure, one of them does: who holds the lock of a host, or of a chip."""

from __future__ import annotations

import re
from pathlib import Path

from ml_diagnostics_common.descriptors import Descriptor
from ml_diagnostics_common.files import open_lock_file, try_lock, unlock
from ml_diagnostics_common.process_hooks import LiveObjects, at_fork

__all__ = ["Claims"]


class Claims:
    """The locks of one process. The kernel lets go of them when it ends, and the next to ask goes on.

    A child that is forked has them open, too, and may outlive its parent: it closes its copies, which frees nothing.

    Args:
        folder: Where the lock files are: the same for all processes of the run on this host.
        host: The host's name: the folder may be shared with other hosts.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._folder = folder
        self._host = host
        self._held: dict[str, Descriptor] = {}
        _claims_of_this_process.add(self)

    def hold(self, what: str) -> bool:
        """Whether it is this process that measures `what`. Where there are no locks, all do: twice is not wrong."""
        held = self._held.get(what)
        if held is not None and held.number() is not None:
            return True
        name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{self._host}.{what}")[:200]
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = open_lock_file(self._folder / f"{name}.lock")
        except OSError:
            return True
        descriptor = Descriptor(number)
        try:
            is_ours = try_lock(number)
        except OSError:
            descriptor.close()
            return True
        if is_ours:
            self._held[what] = descriptor
        else:
            descriptor.close()
        return is_ours

    def forget(self) -> None:
        """In a forked child: closes its copies."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            descriptor.close()

    def release(self) -> None:
        """Leaves all of it to others."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            number = descriptor.number()
            if number is not None:
                unlock(number)
            descriptor.close()


_claims_of_this_process: LiveObjects[Claims] = LiveObjects()


def _forget_in_child() -> None:
    for claims in _claims_of_this_process:
        claims.forget()


at_fork(_forget_in_child)
