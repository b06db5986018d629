"""`python -m xprofiler`, where the command is not on the path."""

from __future__ import annotations

import sys

from xprofiler.cli import main

sys.exit(main())
