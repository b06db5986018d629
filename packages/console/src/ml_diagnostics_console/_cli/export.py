"""`mldiagnostics export`: one run as one HTML file, to send to others."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE, CommandError, UsageError

from ml_diagnostics_console._cli.ui import require_web, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from ml_diagnostics_common.command.console import Console

__all__ = ["ExportCommand"]


class ExportCommand:
    """Writes a case file."""

    name = "export"
    summary = "write a run as one HTML file that opens anywhere: its page, its curves, stacks, logs and verdict"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("run", metavar="RUN", help="the run's id, the start of it, or 'last'")
        parser.add_argument("file", metavar="FILE", help="the file to write, such as case.html; '-' for stdout")
        parser.add_argument("--force", action="store_true", help="replace the file if it exists")
        parser.add_argument(
            "--read-from", metavar="PROJECT", help="read this Google Cloud project (default: this machine)"
        )
        parser.add_argument("--region", metavar="REGION", help="the region of its runs (default: us-central1)")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Write the file, and print what is inside and what was left out."""
        from pathlib import Path

        require_web("mldiagnostics export")
        if options.region and not options.read_from:
            raise UsageError("--region needs --read-from")
        from google_cloud_mldiagnostics.control_plane import resource_id

        path = Path(options.file)
        if options.file != "-" and path.exists() and not options.force:
            raise CommandError(f"{path} exists; --force replaces it")
        if options.file != "-" and path.exists() and not path.is_file():
            raise CommandError(f"{path} is not a file, and is not replaced; '-' writes to stdout")
        source = source_of(options.read_from, options.region, console)
        run_id = resource_id(source.find(options.run))
        from ml_diagnostics_console._facts.reading import Question
        from ml_diagnostics_console._web.assets import Assets
        from ml_diagnostics_console._web.case_file import judge_for_file, make_case
        from ml_diagnostics_console._web.modules import ModuleError
        from ml_diagnostics_console._web.store import Store

        store = Store(source)
        store.refresh()
        question = Question(run_id, None, options.read_from, options.region)
        try:
            case = make_case(store, run_id, Assets(), judge_for_file(question, console.warn))
        except ModuleError as error:
            raise CommandError(f"the case file could not be made: {error}") from error
        if options.file == "-":
            console.data(case.text, end="")
        else:
            _write(path, case.text)
            console.data(f"{path}: {len(case.text.encode()):,} bytes, opens in any browser without a server")
        for title, sentences in (("inside", case.inside), ("left out", case.left_out)):
            for sentence in sentences:
                console.notify(f"  {title}: {sentence}")
        return DONE


def _write(path: Path, text: str) -> None:
    """Write a file as a whole, or not at all.

    Raises:
        CommandError: It cannot be written.
    """
    import os

    draft = path.with_name(f".mldiagnostics.{os.getpid()}")
    try:
        with draft.open("x", encoding="utf-8") as file:  # Never through a link that another user has made.
            file.write(text)
        draft.replace(path)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            draft.unlink(missing_ok=True)
        raise CommandError(f"{path} could not be written: {error.strerror}") from error
