"""Reading the frames of threads stops no program, whatever its garbage collection does meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from ml_diagnostics_common.thread_frames import current_frames

_JOB = """
import gc, os, sys, threading, time
from ml_diagnostics_common.thread_frames import current_frames

def wait():
    threading.Event().wait()

def start_threads():
    while True:
        thread = threading.Thread(target=int, daemon=True)
        thread.start()
        thread.join()

for _ in range(10):
    threading.Thread(target=wait, daemon=True).start()
for _ in range(2):
    threading.Thread(target=start_threads, daemon=True).start()
gc.callbacks.append(lambda phase, info: time.sleep(0.0001))  # As JAX's: other threads run meanwhile.
gc.set_threshold(1)
for _ in range(200):
    current_frames()
print(gc.isenabled(), flush=True)
os._exit(0)  # While threads are started, Python cannot end without errors.
"""


def test_frames_are_read_while_threads_start_and_each_object_starts_a_collection() -> None:
    job = subprocess.run([sys.executable, "-c", _JOB], capture_output=True, text=True, timeout=60)
    assert (job.stdout, job.stderr, job.returncode) == ("True\n", "", 0)


def test_each_thread_has_its_frame_and_collection_is_as_it_was() -> None:
    assert current_frames()[threading.get_ident()] is sys._getframe()
    assert gc.isenabled()
    gc.disable()
    try:
        current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
