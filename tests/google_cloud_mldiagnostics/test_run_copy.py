"""A run's copy at a control plane: here a second folder, with no thread between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_cloud_mldiagnostics._run_state.mirroring import RunCopy, attempt_of
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.exceptions import RunNotFoundError

RUN = "train-1"


class Planes:
    """The folder of this machine, with a run in it, and a control plane."""

    def __init__(self, folder: Path) -> None:
        self.local = LocalControlPlane(folder / "local")
        self.cloud = LocalControlPlane(folder / "cloud")
        self.numbers: list[int] = []
        self.local.create_run(RUN, {"displayName": "train", "runPhase": "ACTIVE"})

    def copy(self, *, is_owner: bool = True, is_shared: bool = False) -> RunCopy:
        return RunCopy(
            RUN, self.local, self.cloud, is_owner=is_owner, is_shared=is_shared, on_attempt=self.numbers.append
        )

    def set_phase(self, phase: str) -> None:
        self.local.update_run(RUN, lambda run: {**run, "runPhase": phase})


@pytest.fixture
def planes(tmp_path: Path) -> Planes:
    return Planes(tmp_path)


def test_the_first_report_creates_the_run_and_later_ones_update_it(planes: Planes) -> None:
    copy = planes.copy()
    copy.report("")
    assert planes.cloud.get_run(RUN)["runPhase"] == "ACTIVE"
    planes.set_phase("COMPLETED")
    copy.report("COMPLETED")
    assert planes.cloud.get_run(RUN)["runPhase"] == "COMPLETED"
    assert planes.numbers == [1]


def test_an_existing_run_gets_another_attempt_unless_it_is_shared(planes: Planes) -> None:
    planes.copy().report("")
    planes.copy().report("")
    planes.copy(is_shared=True).report("")
    assert planes.numbers == [1, 2, 2]
    assert attempt_of(planes.cloud.get_run(RUN)) == 2


def test_another_process_reports_its_failure_alone(planes: Planes) -> None:
    other = planes.copy(is_owner=False)
    other.report("")
    with pytest.raises(RunNotFoundError):
        planes.cloud.get_run(RUN)
    planes.copy().report("")
    other.report("COMPLETED")
    assert planes.cloud.get_run(RUN)["runPhase"] == "ACTIVE"
    other.report("FAILED")
    assert planes.cloud.get_run(RUN)["runPhase"] == "FAILED"


def test_a_failure_of_another_process_is_copied_to_the_folder(planes: Planes) -> None:
    copy = planes.copy()
    copy.report("")
    planes.copy(is_owner=False).report("FAILED")
    planes.set_phase("COMPLETED")
    copy.report("COMPLETED")
    assert planes.local.get_run(RUN)["runPhase"] == "FAILED"
