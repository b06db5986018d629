"""The instrumented job of an example, in the process in which its goodput is inferred: both see the same seconds."""

from __future__ import annotations

import atexit

import ml_diagnostics
from ml_diagnostics._inference import startup
from ml_diagnostics._inference.session import Session

# A job that is recorded ends the inference of its process; here it goes on, and is compared with the truth.
startup.stop = lambda job_name: None
Session.records_itself = lambda self, recorder: None

job = ml_diagnostics.instrument("truth", run=False, stacks=False, hangs=False, monitor=False)
job.__enter__()
atexit.register(job.__exit__, None, None, None)
