"""The defaults of configurations."""
