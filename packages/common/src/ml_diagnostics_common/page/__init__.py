"""Parts of pages in a browser: elements and texts (ES modules), colours and styles.

The page of `mldiagnostics ui` and the page of `xprofiler serve` have both. Their servers give these files names that
begin with `common/`, beside their own folders, so that a module finds them as `../common/dom.js`. `format.js` is the
twin of `ml_diagnostics_common.texts`.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "policy_hash"]

FOLDER: Final = Path(__file__).parent
"""The folder of the files."""


def policy_hash(text: str) -> str:
    """Return the source by which a Content-Security-Policy allows one inline script or style.

    Args:
        text: All text between its tags.
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
