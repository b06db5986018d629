"""Parts of pages in a browser: elements and texts (ES modules), colours and styles.

The page of `mldiagnostics ui` and the page of `xprofiler serve` have both. Their servers give these files names that
begin with `common/`, beside their own folders, so that a module finds them as `../common/dom.js`. `format.js` is the
twin of `ml_diagnostics_common.texts`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["FOLDER"]

FOLDER: Final = Path(__file__).parent
"""The folder of the files."""
