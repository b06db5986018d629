"""Progress in, verdicts out: pure, with the time given."""
