"""When a job that makes no progress is taken for stuck, and what is done then."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HangConfig"]


@dataclass
class HangConfig:
    """Watching for hangs.

    Attributes:
        enabled: False: hangs are not watched for.
    """

    enabled: bool = False
