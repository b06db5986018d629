"""Second names of what `cloud_tpu_diagnostics.configuration` has."""
