"""From a call of a trainer to a payload in the journal."""
