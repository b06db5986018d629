"""`doctor --live`: a job that is watched until it ends."""
