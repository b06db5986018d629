"""Run in an empty environment with the wheel alone: write entries, and read them back."""

import importlib.util
import tempfile
from pathlib import Path

import ml_diagnostics_common
from ml_diagnostics_common import page
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_common.redaction import redact_text

assert "site-packages" in ml_diagnostics_common.__file__
assert importlib.util.find_spec("google") is None, "common alone needs no Google client"

with tempfile.TemporaryDirectory() as folder:
    journal = Journal("log", root=Path(folder), labels={"job": "wheel"})
    for number in range(3):
        journal.append({"number": number})
    journal.close()
    reader = JournalReader("log", root=Path(folder))
    payloads = [entry.payload for batch in reader.read_new() for entry in batch]
assert payloads == [{"number": 0}, {"number": 1}, {"number": 2}], payloads
assert "hunter2" not in redact_text("password=hunter2")
for name in ("dom.js", "elements.css", "format.js", "tokens.css"):
    assert (page.FOLDER / name).stat().st_size, name
print("common: writes and reads")
