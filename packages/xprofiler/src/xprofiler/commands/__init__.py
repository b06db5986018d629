"""One module for each subcommand; `cli` lists their names."""
