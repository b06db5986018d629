"""The subcommands that this package adds to `mldiagnostics`."""
