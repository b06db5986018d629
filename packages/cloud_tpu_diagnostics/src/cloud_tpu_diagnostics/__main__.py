"""`python -m cloud_tpu_diagnostics`: see `run`."""

from cloud_tpu_diagnostics.run import main

main()
