"""Stored histories: the records of a real run as one small archive, which every tool can be asked about again.

An archive `NAME.tar.xz` has `diagnostics/` (the journal and the run), the end of what each process printed in
`output-<index>.txt`, objects of Kubernetes in `cluster.json` if those are replayed, and `history.json`: the plan, the
label, exit statuses, and the time of the bench when it ended.
They are written by the bench, never by hand. Folders of the machine are replaced by neutral ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.entry import format_timestamp, parse_timestamp

from ml_diagnostics_console.faultbench._jobs import DIAGNOSTICS
from ml_diagnostics_console.faultbench._labels import Label
from ml_diagnostics_console.faultbench._replayed_clusters import CLUSTER
from ml_diagnostics_console.faultbench._running import RunResult

__all__ = ["History", "diagnostics_dir", "histories_in", "hosts_of", "read", "shift_clocks", "store"]

_SUFFIX: Final = ".tar.xz"
_ABOUT: Final = "history.json"
_OUTPUT_BYTES: Final = 8 * 1024
_MOST_BYTES: Final = 64 * 2**20
_LEFT_OUT: Final = ("state", "locks", ".lock")
"""Parts of ML_DIAGNOSTICS_DIR: the state of readers, and locks that no process holds any more."""
_EARLIEST_NS, _LATEST_NS = 1_500_000_000 * 10**9, 2_500_000_000 * 10**9
_SECOND_NS: Final = 1_000_000_000
_SECONDS: Final = ("_time", "_began", "_started", "_ended")
"""The ends of the names of fields with a time in seconds."""
_START: Final = re.compile(r"(?<=-)\d{19}(?=-)")
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


@dataclass(frozen=True)
class History:
    """A stored run, unpacked.

    Attributes:
        name: The name of its plan.
        kind: The name of its kind.
        seed: Its seed.
        run: The name of the run, or of the job if it has no run.
        label: The right answer.
        void: Why the run does not count; empty if it does.
        folder: The folder with `diagnostics`.
        ended_ns: When the bench had ended it, in ns since 1970.
        exit_statuses: The exit status of each process; None of those that the bench ended.
        outputs: The end of what each process printed.
        about: All else that was stored.
    """

    name: str
    kind: str
    seed: str
    run: str
    label: Label
    void: str
    folder: Path
    ended_ns: int
    exit_statuses: tuple[int | None, ...]
    outputs: tuple[str, ...]
    about: Mapping[str, Any]

    @property
    def diagnostics(self) -> Path:
        """The value of ML_DIAGNOSTICS_DIR to read it."""
        return self.folder / DIAGNOSTICS

    @property
    def cluster(self) -> list[dict[str, Any]]:
        """The objects of Kubernetes; empty if there is no cluster."""
        path = self.folder / CLUSTER
        return list(json.loads(path.read_text())) if path.exists() else []


def store(result: RunResult, folder: Path, target: Path) -> Path:
    """Write the archive of a run that has ended, and return its path.

    Args:
        result: The run.
        folder: The job's folder.
        target: The folder for archives.
    """
    target.mkdir(parents=True, exist_ok=True)
    neutral = _neutral_folders(folder)
    path = target / f"{result.plan.name}{_SUFFIX}"
    temporary = path.with_suffix(".part")
    with tarfile.open(temporary, "w:xz") as archive:
        _add(archive, _ABOUT, neutral(json.dumps(result.to_json(), indent=1)).encode())
        for index, output in enumerate(result.outputs):
            _add(archive, f"output-{index}.txt", neutral(output).encode()[-_OUTPUT_BYTES:])
        if (cluster := folder / CLUSTER).exists():
            _add(archive, CLUSTER, cluster.read_bytes())
        root = folder / DIAGNOSTICS
        for file in sorted(root.rglob("*")):
            relative = file.relative_to(root)
            if file.is_file() and not set(relative.parts) & set(_LEFT_OUT) and file.suffix in (".jsonl", ".json"):
                text = file.read_text(encoding="utf-8", errors="surrogateescape")
                data = neutral(text).encode("utf-8", "surrogateescape")
                _add(archive, f"{DIAGNOSTICS}/{relative.as_posix()}", data)
    temporary.replace(path)
    return path


def histories_in(folder: Path) -> list[Path]:
    """Return the archives of a folder, by name."""
    return sorted(folder.rglob(f"*{_SUFFIX}"))


@contextlib.contextmanager
def read(path: Path, folder: Path) -> Iterator[History]:
    """Unpack an archive into an empty folder, for as long as the block runs.

    The folder's `history.json` has only what a tool may know: neither the label nor the plan.

    Raises:
        ValueError: It is not a history.
    """
    with tarfile.open(path, "r:xz") as archive:
        members = archive.getmembers()
        if sum(member.size for member in members) > _MOST_BYTES:
            raise ValueError(f"{path} has more than {_MOST_BYTES} bytes")
        for member in members:
            _unpack(archive, member, folder)
    history = _history_in(folder)
    known = {"run": history.run, "ended_ns": history.ended_ns, "exit_statuses": history.exit_statuses}
    (folder / _ABOUT).write_text(json.dumps(known))
    yield history


def _history_in(folder: Path) -> History:
    try:
        about = json.loads((folder / _ABOUT).read_text())
        outputs = sorted(folder.glob("output-*.txt"))
        return History(
            name=f"{about['plan']['kind']}-{about['plan']['seed']}",
            kind=about["plan"]["kind"],
            seed=str(about["plan"]["seed"]),
            run=about["name"],
            label=Label.from_json(about["label"]),
            void=about["void"],
            folder=folder,
            ended_ns=about["ended_ns"],
            exit_statuses=tuple(about["exit_statuses"]),
            outputs=tuple(output.read_text(errors="replace") for output in outputs),
            about=about,
        )
    except (OSError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is not a history: {error}") from error


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    archive.addfile(member, io.BytesIO(data))


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    target = (folder / member.name).resolve()
    data = archive.extractfile(member) if member.isreg() else None
    if data is None or folder.resolve() not in target.parents:
        raise ValueError(f"{member.name!r} does not belong to a history")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data.read())


class _neutral_folders:  # noqa: N801 (it is called like a function)
    """Replaces folders of this machine in texts."""

    def __init__(self, job: Path) -> None:
        here = Path(__file__).parents[1]
        known = {str(job.resolve()): "/job", str(job): "/job", sys.prefix: "/venv", str(here): "/venv/console"}
        for name in ("cloud_tpu_diagnostics", "google_cloud_mldiagnostics", "ml_diagnostics_common"):
            if (file := getattr(sys.modules.get(name), "__file__", None)) is not None:
                known[str(Path(file).parents[1])] = "/venv/src"
        known |= {sys.base_prefix: "/python", str(Path.home()): "/home/user", str(here.parents[3]): "/source"}
        self._known = {folder: neutral for folder, neutral in known.items() if len(folder) > 1}

    def __call__(self, text: str) -> str:
        for folder in sorted(self._known, key=len, reverse=True):
            text = text.replace(folder, self._known[folder])
        return text


# --- Other clocks -----------------------------------------------------------------------------------------


def shift_clocks(diagnostics: Path, offsets_seconds: Mapping[str, float]) -> None:
    """Change the records of an unpacked history as if the clocks of its hosts had been off.

    Args:
        diagnostics: Its ML_DIAGNOSTICS_DIR.
        offsets_seconds: The offset of each host. A history of processes that share a host name has one clock.
    """
    offsets = {host: round(seconds * _SECOND_NS) for host, seconds in offsets_seconds.items()}
    for path in list(diagnostics.rglob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        header = json.loads(lines[0])
        offset_ns = offsets.get(header.get("labels", {}).get("host", ""), 0)
        if offset_ns:
            header["writer"] = _shifted_name(header["writer"], offset_ns)
            shifted = [json.dumps(header).encode(), *(_shifted_line(line, offset_ns) for line in lines[1:])]
            path.unlink()
            path.with_name(_shifted_name(path.name, offset_ns)).write_bytes(b"\n".join(shifted))
    for path in diagnostics.rglob("run.json"):
        path.write_text(json.dumps(_shifted_run(json.loads(path.read_text()), offsets)))


def _shifted_run(run: dict[str, Any], offsets: Mapping[str, int]) -> dict[str, Any]:
    """Return the document of a run on other clocks: times of no single process are by the clock of the first."""
    hosts = [
        process.get("hostname", "")
        for attempt in run.get("attempts", ())
        for process in attempt.get("processes", ())
        if process.get("process_index") == 0
    ]
    offset_ns = offsets.get(hosts[0], 0) if hosts else 0
    attempts = [
        {
            **_shifted({**attempt, "processes": []}, offset_ns),
            "processes": [
                _shifted(process, offsets.get(process.get("hostname", ""), 0))
                for process in attempt.get("processes", ())
            ],
        }
        for attempt in run.get("attempts", ())
    ]
    return {**_shifted({**run, "attempts": []}, offset_ns), "attempts": attempts}


def hosts_of(diagnostics: Path) -> list[str]:
    """Return the hosts of a history."""
    hosts = set()
    for path in diagnostics.rglob("*.jsonl"):
        with path.open("rb") as file:
            hosts.add(json.loads(file.readline()).get("labels", {}).get("host", ""))
    return sorted(hosts)


def _shifted_name(name: str, offset_ns: int) -> str:
    """Return the name of a writer, or of its file, which has the time of its start."""
    return _START.sub(lambda found: str(int(found[0]) + offset_ns), name, count=1)


def _shifted_line(line: bytes, offset_ns: int) -> bytes:
    try:
        entry = json.loads(line)
    except ValueError:  # The last line of a killed writer.
        return line
    return json.dumps({key: _shifted(value, offset_ns, key) for key, value in entry.items()}).encode()


def _shifted(value: Any, offset_ns: int, key: str = "") -> Any:
    """Return a value with all its times on another clock."""
    if isinstance(value, dict):
        return {name: _shifted(item, offset_ns, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_shifted(item, offset_ns, key) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and _EARLIEST_NS < value < _LATEST_NS and (key.endswith("_ns") or key == "t"):
        return value + offset_ns
    if isinstance(value, (int, float)) and _EARLIEST_NS < value * _SECOND_NS < _LATEST_NS and key.endswith(_SECONDS):
        return value + offset_ns / _SECOND_NS
    if isinstance(value, str) and _RFC_3339.fullmatch(value) and (moment := parse_timestamp(value)) is not None:
        return format_timestamp(moment + offset_ns)
    return value


@contextlib.contextmanager
def diagnostics_dir(folder: Path) -> Iterator[None]:
    """Have this process read another ML_DIAGNOSTICS_DIR, and no cloud, for as long as the block runs."""
    wanted = {"ML_DIAGNOSTICS_DIR": str(folder), "ML_DIAGNOSTICS_BACKEND": "local"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
