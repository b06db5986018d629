"""The page of `mldiagnostics ui`: a store of runs, pure functions that answer requests, and a server for them."""
