"""Goodput of a program that records nothing: what JAX, PyTorch and data loaders do shows where its time goes."""

import os

__all__ = ["STARTUP_FOLDER"]

STARTUP_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_startup")  # noqa: PTH100, PTH118, PTH120
"""The folder that Python programs of a job have first on PYTHONPATH; without pathlib, which takes 3 ms to import."""
