"""For programs that import `cloud_tpu_diagnostics.src.diagnose` and its like: the same objects under second names."""
