"""`python -m cloud_tpu_diagnostics`: see `run`."""

from __future__ import annotations

import sys

from cloud_tpu_diagnostics.run import main

sys.exit(main())
