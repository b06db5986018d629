"""`mldiagnostics kubernetes check`: what is missing in a cluster, and the command that fixes it."""
