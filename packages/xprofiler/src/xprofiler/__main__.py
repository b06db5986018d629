"""Run the command as `python -m xprofiler`, if it is not on the PATH."""

from __future__ import annotations

import sys

from xprofiler.cli import main

sys.exit(main())
