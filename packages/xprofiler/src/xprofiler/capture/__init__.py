"""Profiles of many hosts at the same moment: who they are, the way to them, and what they wrote."""
