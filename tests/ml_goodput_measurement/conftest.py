"""The reference is started once for all tests that ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..reference_environment import GOODPUT, ReferenceUnavailableError, reference_python
from .reference.process import Reference


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """The public library of the same name; without it the tests that compare with it are skipped."""
    try:
        python = reference_python(GOODPUT)
    except ReferenceUnavailableError as error:
        pytest.skip(f"the reference cannot be installed here: {error}")
    with Reference(python) as process:
        yield process
