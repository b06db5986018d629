"""Run in an empty environment with the wheel and what it depends on: the doctor of a job that failed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_diagnostics_console
from ml_diagnostics_console.doctor import examine

assert "site-packages" in ml_diagnostics_console.__file__

with tempfile.TemporaryDirectory() as folder:
    os.environ.update(ML_DIAGNOSTICS_DIR=folder, ML_DIAGNOSTICS_BACKEND="local")
    imported = "from google_cloud_mldiagnostics import machinelearning_run"
    job = f"{imported}; machinelearning_run('wheel'); raise ValueError('x')"
    failed = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=False)
    assert failed.returncode == 1, failed
    report = examine("last")
    assert report.exit_code in (11, 12), report
    assert "ValueError: x" in str(report), report

    command = str(Path(sys.executable).with_name("mldiagnostics"))
    shown = subprocess.run([command, "doctor", "last"], capture_output=True, text=True, check=False)
    assert shown.returncode == report.exit_code, shown
    assert "ValueError: x" in shown.stdout, shown
    opened = subprocess.run([command, "ui", "--no-browser"], capture_output=True, text=True, check=False)
    assert opened.returncode == 1, opened  # The extra is not installed here.
    assert "pip install 'ml-diagnostics-console[web]'" in opened.stderr, opened
files = Path(ml_diagnostics_console.__file__).parent / "_web" / "static"
for name in ("index.html", "js/main.js", "css/base.css", "vendor/vendor.json", "vendor/inter/LICENSE.txt"):
    assert (files / name).is_file(), name
print("ml_diagnostics_console: names what failed")
