"""What is used when a configuration does not say."""
