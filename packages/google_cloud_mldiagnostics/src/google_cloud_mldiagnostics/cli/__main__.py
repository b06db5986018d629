"""`python -m google_cloud_mldiagnostics.cli`, where the command is not on the path."""

from __future__ import annotations

import sys

from google_cloud_mldiagnostics.cli.main import main

sys.exit(main())
