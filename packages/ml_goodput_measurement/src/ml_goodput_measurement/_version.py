"""The version; its local part, which no release on the public index can have, shows that it is ours."""

__version__ = "1.3.0+mld"
