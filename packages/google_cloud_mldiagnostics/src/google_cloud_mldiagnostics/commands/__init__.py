"""Programs that are run with `python -m google_cloud_mldiagnostics.commands.<name>`."""
