"""The report of a fleet as `goodput fleet report --html` writes it, kept while the rows of the mirror are the same.

The command sums rows with pyarrow and DuckDB, which need more memory than the page itself, and its answer is wanted
once for each new version of the rows. So it is a process that ends with its answer. Nothing of it is imported here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ml_diagnostics_common.command.errors import NOT_FOUND, USAGE
from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.files import check_scheme, in_bucket
from ml_diagnostics_common.storage import Storage, storage_for
from ml_diagnostics_common.texts import format_bytes

from ml_diagnostics_console._web.answers import GREATEST_ANSWER_BYTES
from ml_diagnostics_console._web.sentences import safe_line

__all__ = ["FleetError", "FleetReports", "mirror_path"]

_PACKAGE: Final = "ml_diagnostics_fleet"
_CHOICES: Final = {"by": "--by", "as_of": "--as-of", "cost": "--cost"}
"""The option of each parameter of the URL."""
_LONGEST_CHOICE: Final = 200
_MOST_KEPT: Final = 4
_DEADLINE_SECONDS: Final = 120.0
"""A million rows of the ledger take two seconds; a bucket, and a mirror on a network folder, may take longer."""
_STORAGE_SECONDS: Final = 10.0
_NICENESS: Final = 10
_END_SECONDS: Final = 2.0
"""Files of a report that was ended are removed in less."""
_END: Final = "</html>\n"
_DIMENSIONS: Final = ("jobs", "prices")

_Stamp = tuple[str, tuple[int, ...]]
"""The newest manifest of the rows, and the generations of the tables beside them."""


class FleetError(Exception):
    """There is no report.

    Args:
        sentence: The reason, and the remedy; commands are between backquotes.
        status: The HTTP status.
    """

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.sentence, self.status = sentence, status


def mirror_path(text: str) -> str:
    """Return a mirror as a process in another folder finds it.

    Args:
        text: `gs://bucket/prefix`, or a folder; empty for none.

    Raises:
        ConfigurationError: It is neither.
    """
    text = text.strip()
    check_scheme(text)
    return text.rstrip("/") if not text or in_bucket(text) else str(Path(text).expanduser().absolute())


class FleetReports:
    """The reports of the fleet in one mirror.

    Args:
        mirror: The mirror, of `mirror_path`; empty if none is known.
        argv: The command line up to the options of a report; None for `goodput fleet report` of this Python.
        deadline_seconds: The process is ended if it takes longer.
    """

    def __init__(
        self, mirror: str, *, argv: Sequence[str] | None = None, deadline_seconds: float = _DEADLINE_SECONDS
    ) -> None:
        self._mirror, self._deadline_seconds = mirror, deadline_seconds
        self._argv = argv or (sys.executable, "-m", "ml_goodput_measurement", "fleet", "report")
        self._kept: dict[tuple[_Stamp, tuple[str, ...]], str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._making = threading.Lock()

    @property
    def has_mirror(self) -> bool:
        """True if a mirror is known."""
        return bool(self._mirror)

    def report(self, parameters: Mapping[str, str]) -> str:
        """Return the report as it is now: the HTML that the command writes; one thread at a time.

        Args:
            parameters: The parameters of the URL: `by`, `as_of` and `cost` are those of the command.

        Raises:
            FleetError: There is none.
        """
        if not self._mirror:
            raise FleetError(
                "No mirror is known. Start the page with `mldiagnostics ui --mirror gs://bucket/prefix`, or a folder, "
                "or set ML_DIAGNOSTICS_MIRROR.",
                404,
            )
        if find_spec(_PACKAGE) is None:
            raise FleetError(
                "The report of a fleet needs ml-diagnostics-fleet: `pip install ml-diagnostics-fleet`", 503
            )
        options = tuple(_options(parameters))
        stamp = self._stamp()
        key = stamp, options
        found = self._kept.pop(key, None) or self._made(options, has_rows=bool(stamp[0]))
        self._kept[key] = found
        while len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def close(self) -> None:
        """End the process that makes a report now, and have its files removed; callable from any thread."""
        self._is_closed = True
        process = self._process
        if process is not None:
            with suppress(OSError):
                process.kill()
        if self._making.acquire(timeout=_END_SECONDS):
            self._making.release()

    def _stamp(self) -> _Stamp:
        """Return what changes with the rows: names and generations, nothing is read."""
        try:
            storage = storage_for(self._mirror, deadline_seconds=_STORAGE_SECONDS)
            manifests = storage.list_prefix(f"{self._mirror}/v1/manifests/rows/")
            files = [f"{self._mirror}/v1/dimensions/{name}.parquet" for name in _DIMENSIONS]
            return manifests[-1] if manifests else "", tuple(_generation(storage, file) for file in files)
        except DiagnosticsError as error:
            raise FleetError(f"The mirror cannot be read: {safe_line(error)}", 503) from None

    def _made(self, options: tuple[str, ...], *, has_rows: bool) -> str:
        try:
            with self._making, tempfile.TemporaryDirectory(prefix="ml-diagnostics-fleet-page-") as folder:
                path = Path(folder) / "fleet.html"
                argv = [*self._argv, f"--mirror={self._mirror}", f"--html={path}", *options, "--quiet", "--no-color"]
                code, message = self._run(argv, folder)
                text = path.read_text(encoding="utf-8") if path.exists() else ""
        except OSError as error:
            raise FleetError(f"The report could not be made: {safe_line(error.strerror or error)}.", 503) from None
        if text.endswith(_END):  # Also if some jobs could not be read, which fails: the report has their number.
            return _bounded(text)
        if code == NOT_FOUND and not has_rows:
            mirror = shlex.quote(self._mirror)
            message = (
                f"There are no rows of a fleet in {self._mirror} yet. `goodput fleet compact --mirror {mirror}` and "
                f"`goodput fleet run --mirror {mirror}` make them, of what jobs have mirrored: run both each night."
            )
        is_choice = code == USAGE and message.startswith(tuple(_CHOICES))
        raise FleetError(message, 400 if is_choice else 404 if code == NOT_FOUND else 503)

    def _run(self, argv: Sequence[str], folder: str) -> tuple[int, str]:
        """Run the command with its temporary files in a folder, and return its exit code, and its last error."""
        # From the root folder: the current one may have modules of the same names.
        process = self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=os.sep,
            env={**os.environ, "TMPDIR": folder},
        )
        with process:
            if self._is_closed:
                process.kill()
            if hasattr(os, "setpriority"):
                with suppress(OSError):  # It has ended. A job on this machine has precedence.
                    os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            try:
                _, errors = process.communicate(timeout=self._deadline_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                took = f"it takes longer than {self._deadline_seconds:,.0f} s"
                raise FleetError(f"The report could not be made: {took}.", 503) from None
            finally:
                self._process = None
        return process.returncode, _said(errors.decode("utf-8", "replace"), process.returncode)


def _options(parameters: Mapping[str, str]) -> list[str]:
    found = []
    for name, option in _CHOICES.items():
        text = parameters.get(name, "").strip()
        if len(text) > _LONGEST_CHOICE:
            raise FleetError(f"{name} has {len(text):,} characters, and at most {_LONGEST_CHOICE} are read.", 400)
        if "\0" in text:
            raise FleetError(f"{name}: {safe_line(ascii(text))} has a character that no option can have.", 400)
        if text:
            found.append(f"{option}={text}")
    return found


def _generation(storage: Storage, path: str) -> int:
    try:
        return storage.read_with_generation(path, first_bytes=1)[1]
    except ObjectNotFoundError:
        return 0


def _bounded(text: str) -> str:
    size = len(text.encode())
    if size > GREATEST_ANSWER_BYTES:
        most = format_bytes(GREATEST_ANSWER_BYTES)
        raise FleetError(f"The report has {format_bytes(size)}, and at most {most} are sent: group by less.", 413)
    return text


def _said(output: str, code: int) -> str:
    """Return the last error of the command as a sentence of the page: options have their names in the URL."""
    lines = [line for line in output.splitlines() if line.strip()]
    # Libraries may print more behind it when the process ends.
    last = next((line for line in reversed(lines) if line.startswith("goodput")), lines[-1] if lines else "")
    if not last:
        return f"The report ended with exit code {code}."
    text = re.sub(r"^goodput(?: [\w-]+)*: (?:error: )?", "", safe_line(last))
    text = re.sub(r"^argument --([\w-]+): ", lambda found: f"{found[1].replace('-', '_')}: ", text)
    return text if text.endswith((".", "`")) else f"{text}."
