"""Files are fetched from machines whole, or their loss is reported."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.storage import LocalStorage
from ml_diagnostics_testing._xspace import xspace
from xprofiler.capture.collecting import Collector
from xprofiler.capture.session import Destination, Session
from xprofiler.capture.targets import Target
from xprofiler.gcloud.processes import Programs

_DROPS = 'echo "E1128 websocket.go:296] Unknown stream id 1, discarding message" >&2'


@dataclass(frozen=True)
class _Drops:
    """Access by a program that drops all data in its first runs, and says so, as kubectl does."""

    runs: Path
    count: int

    def forward(self, local_port: int, port: int) -> list[str]:
        raise NotImplementedError

    def execute(self, program: Sequence[str]) -> list[str]:
        drops = f'echo >> {self.runs}; if [ "$(wc -l < {self.runs})" -le {self.count} ]; then {_DROPS}; exit 0; fi'
        return ["sh", "-c", f"{drops}; exec {shlex.join(program)}"]


@pytest.mark.parametrize(("count", "problem"), [(0, ""), (1, ""), (2, "discarding message")])
def test_a_file_that_kubectl_dropped_is_fetched_once_more(tmp_path: Path, count: int, problem: str) -> None:
    staged, session = Session(str(tmp_path / "pod"), "session"), Session(str(tmp_path / "here"), "session")
    target = Target("pod-1", "pod-1", 9012, access=_Drops(tmp_path / "runs", count))
    data = xspace("host", 1, 100)
    LocalStorage().write(staged.path_of("pod-1"), data)
    with Programs(Console()) as programs:
        (outcome,) = Collector(session, LocalStorage(), programs).collect([(target, Destination(staged.root, False))])
    assert problem in outcome.problem
    assert bool(outcome.problem) == bool(problem)
    if not problem:
        assert Path(session.path_of("pod-1")).read_bytes() == data
