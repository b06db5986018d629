"""One module a subcommand; `cli` knows their names."""
