"""The subcommands of `mldiagnostics`."""
