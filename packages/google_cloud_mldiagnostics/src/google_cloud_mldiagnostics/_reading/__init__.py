"""What is known of runs: read from control planes, the journal and Cloud Logging, put together, and drawn."""
