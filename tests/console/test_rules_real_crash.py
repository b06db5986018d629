"""Real processes that crash with all libraries recording: the rules find the cause in what they leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ml_diagnostics_console.doctor import examine
from ml_diagnostics_console.verdict import Blame, Confidence

from tests.console.real_jobs import run_job


@pytest.mark.parametrize(
    ("action", "rule", "text", "blame"),
    [
        ("import ctypes; ctypes.string_at(0)", "C5", "segmentation fault (SIGSEGV)", None),
        ("open('/dev/full', 'w').write('x' * 10**6)", "C8", "ran out of disk space at step 30", Blame.USER),
        ("bytearray(2**62)", "C2", "ran out of host memory at step 30", Blame.USER),
        ("os._exit(3)", "C1", "failed at step 30", Blame.USER),
    ],
    ids=["SIGSEGV", "disk full", "memory", "exit code"],
)
def test_the_cause_of_a_crash_is_found_in_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, rule: str, text: str, blame: Blame | None
) -> None:
    run_job(tmp_path, action)
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", os.fspath(tmp_path))
    found = examine(kubernetes="off", report=lambda _: None).headline
    assert found.rule == rule
    assert text in found.sentence
    assert found.step == 30
    assert found.confidence is Confidence.PROVEN
    assert blame in (None, found.blame)
    assert found.cost is not None
    assert found.evidence
