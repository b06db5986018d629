"""Which Google Cloud project, as whom: found in a fixed order, in bounded time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CloudEnvironment", "find_cloud"]


@dataclass(frozen=True)
class CloudEnvironment:
    """A Google Cloud project and the credentials to reach it.

    Attributes:
        project: The project's id.
        credentials: A `google.auth.credentials.Credentials`.
        principal: The account that the credentials stand for, where they tell, for messages.
        project_source: What named the project, for messages.
    """

    project: str
    credentials: Any
    principal: str | None
    project_source: str


def find_cloud(
    project: str | None = None, credentials: Any = None, *, environ: Mapping[str, str] = os.environ
) -> CloudEnvironment:
    """Finds a project and credentials; may block, for a second at most where no cloud is.

    Args:
        project: The project's id, if the caller knows it.
        credentials: A `google.auth.credentials.Credentials`, if the caller has one.
        environ: The environment variables.

    Returns:
        The project and credentials.

    Raises:
        CredentialsError: One of them was not found, or a file that should hold them is broken; the message says
            what was missing, where it was looked for, and what to do.
    """
    raise NotImplementedError
