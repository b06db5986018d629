"""Names of the public package that nothing here uses: kept for the programs that do."""
