"""Runs as they are shown: read from control planes, the journal and Cloud Logging, and put together."""
