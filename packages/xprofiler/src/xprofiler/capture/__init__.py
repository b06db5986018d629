"""Capture of many hosts at the same moment: targets, connections to them, and the files that they write."""
