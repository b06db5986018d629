"""The reference as a process that answers questions: started once, for its imports cost seconds."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any


class ReferenceRaisedError(Exception):
    """The reference raised; the text starts with the name of the exception."""


class Reference:
    """A process with the public library; the functions of `runner.py` are the possible questions."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("runner.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TZ": "UTC"},
        )

    def ask(self, question: str, **arguments: Any) -> Any:
        """Return the answer in the types of JSON: tuples are lists, and mappings by number are lists of pairs.

        Raises:
            ReferenceRaisedError: The reference raised.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"ask": question, "with": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the reference's process ended with {self._process.wait()} when it was asked for {question}"
        answer = json.loads(line)
        if "error" in answer:
            raise ReferenceRaisedError(answer["error"])
        return answer["answer"]

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()
