"""Recording: the calls of a trainer become payloads in the journal."""
