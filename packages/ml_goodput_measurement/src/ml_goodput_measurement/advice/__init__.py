"""Advice from a job's ledger: how often to save, and what its goodput would have been otherwise, with ranges."""

from __future__ import annotations

from ml_goodput_measurement.advice.advise import Advice, advise, what_if
from ml_goodput_measurement.advice.history import JobHistory, history_of
from ml_goodput_measurement.advice.replay import Prediction

__all__ = ["Advice", "JobHistory", "Prediction", "advise", "history_of", "what_if"]
