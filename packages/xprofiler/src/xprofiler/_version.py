"""The version; its local part, which no release on the public index can have, shows that it is ours."""

__version__ = "1.1.0+mld"
