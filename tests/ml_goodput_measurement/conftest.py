"""Fixtures of several tests: the reference, small sizes of the ledger, and the helper process of a monitor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..reference_environment import GOODPUT, ReferenceUnavailableError, reference_python
from .reference.process import Reference

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.facts import Sizes
    from ml_goodput_measurement._monitor.uploaders import Uploaders


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """The public library of the same name; without it the tests that compare with it are skipped."""
    try:
        python = reference_python(GOODPUT)
    except ReferenceUnavailableError as error:
        pytest.skip(f"the reference cannot be installed here: {error}")
    with Reference(python) as process:
        yield process


@pytest.fixture(scope="module", params=["as they are", "as small as can be"])
def sizes(request: pytest.FixtureRequest) -> Sizes:
    """The ledger's sizes, and small ones: with them, short generated lives reach code that only long ones would."""
    from ml_goodput_measurement._ledger.facts import Sizes

    if request.param == "as small as can be":
        return Sizes(unsettled_steps=1, few_steps=2, marks_part=2, step_times_block=2)
    return Sizes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder to which a monitor uploads; it does not exist yet."""
    return tmp_path / "runs"


@pytest.fixture
def uploaders(folder: Path) -> Iterator[Uploaders]:
    """Uploaders in this process, with a helper process that is restarted at once; its job has ten steps."""
    from .monitored_trainers import uploaders_of_ten_steps  # Few tests need a monitor.

    with uploaders_of_ten_steps(folder) as uploaders:
        yield uploaders
