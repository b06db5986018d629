"""Profiles of a run: taken by the program itself (`xprof`), or on demand by another process (`on_demand`).

A profile is a session: a folder `plugins/profile/<session>` with one `<host>.xplane.pb` of each host, as XProf and
TensorBoard open it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.worker import start, wait_until

if TYPE_CHECKING:
    from google_cloud_mldiagnostics._run_state.active_run import ActiveRun

__all__ = ["end_profiles"]

_GRACE_SECONDS: Final = 0.2


def end_profiles(active: ActiveRun, seconds_left: Callable[[], float]) -> None:
    """End the profile of a run that ends, and wait for uploads, for a time that may become shorter."""
    if "google_cloud_mldiagnostics._profiling.uploads" not in sys.modules:
        return  # No profile was taken.
    from google_cloud_mldiagnostics._profiling.captures import end_profiles_of

    # In another thread, since the thread that a signal interrupted may hold the lock of a profiler or of deliveries.
    task = start(lambda: end_profiles_of(active, seconds_left), "mldiagnostics-profiles")
    if task is None:  # The interpreter exits.
        end_profiles_of(active, seconds_left)
    else:
        wait_until(lambda: task.wait(0), lambda: seconds_left() + _GRACE_SECONDS)
