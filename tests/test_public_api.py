"""The guard of public names reports what can break a user's program, and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("griffe", reason="the environment of `nox -s tests` has griffe")

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
from thing._work import Worker, run
__all__ = ["LIMIT", "Worker", "run"]
LIMIT = 3
"""
WORK = """
class Worker:
    def start(self, seconds: float = 1.0) -> None: ...
    def _wake(self) -> None: ...

def run(name: str, *, quiet: bool = False) -> int: ...
"""
SETTINGS = """
[released]
thing = "thing-v1.0.0"
[public]
thing = ["thing", "thing.extra"]
"""


@pytest.fixture(scope="module")
def guard() -> ModuleType:
    spec = importlib.util.spec_from_file_location("public_api", ROOT / ".ci" / "public_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one package, which has been released."""
    package = tmp_path / "packages" / "thing" / "src" / "thing"
    package.mkdir(parents=True)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "public-api.toml").write_text(SETTINGS)
    (package / "__init__.py").write_text(SOURCE)
    (package / "_work.py").write_text(WORK)
    (package / "internal.py").write_text("def helper(x): ...\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "release"], ["tag", "thing-v1.0.0"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def change(repository: Path, name: str, old: str, new: str) -> None:
    path = repository / "packages" / "thing" / "src" / "thing" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def allow(repository: Path, name: str, kind: str, reason: str) -> None:
    entry = f'\n[[allowed]]\nname = "{name}"\nchange = "{kind}"\nreason = "{reason}"\n'
    (repository / ".ci" / "public-api.toml").write_text(SETTINGS + entry)


def run(guard: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    status = guard.main(["--root", str(repository)])
    return status, capsys.readouterr().out.splitlines()[:-1]


@pytest.mark.parametrize(
    ("name", "old", "new", "breakage"),
    [
        ("__init__.py", "LIMIT = 3\n", "", "thing.LIMIT: Public object was removed"),
        ("_work.py", ", *, quiet: bool = False", "", "thing.run(quiet): Parameter was removed"),
        ("_work.py", "name: str", "name: str, size: int", "thing.run(size): Parameter was added as required"),
        (
            "_work.py",
            "seconds: float = 1.0",
            "seconds: float",
            "thing.Worker.start(seconds): Parameter is now required",
        ),
        ("_work.py", "def start(", "def launch(", "thing.Worker.start: Public object was removed"),
    ],
)
def test_a_breakage_of_a_public_name_is_an_error(
    guard: ModuleType,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    old: str,
    new: str,
    breakage: str,
) -> None:
    change(repository, name, old, new)
    assert run(guard, repository, capsys) == (1, [breakage])


def test_what_users_do_not_import_may_change(
    guard: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(repository, "internal.py", "helper(x)", "other(x, y)")
    change(repository, "_work.py", "_wake", "_nudge")
    change(repository, "_work.py", "quiet: bool = False", "quiet: bool = False, size: int = 1")
    assert run(guard, repository, capsys) == (0, [])


def test_a_public_name_may_be_defined_elsewhere(
    guard: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = repository / "packages" / "thing" / "src" / "thing"
    (package / "_work.py").rename(package / "_running.py")
    change(repository, "__init__.py", "thing._work", "thing._running")
    assert run(guard, repository, capsys) == (0, [])
    change(repository, "_running.py", "def start(", "def launch(")
    assert run(guard, repository, capsys) == (1, ["thing.Worker.start: Public object was removed"])


def test_a_breakage_is_allowed_with_a_reason(
    guard: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(repository, "__init__.py", "LIMIT = 3\n", "")
    allow(repository, "thing.LIMIT", "Public object was removed", "2.0.0: nothing reads it")
    assert run(guard, repository, capsys)[0] == 0
    allow(repository, "thing.LIMIT", "Public object was removed", " ")
    assert run(guard, repository, capsys)[0] == 1


def test_an_entry_that_allows_nothing_is_an_error(
    guard: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(repository, "thing.LIMIT", "Public object was removed", "it went away")
    assert run(guard, repository, capsys) == (1, [])


def test_a_release_that_the_clone_lacks_is_named(
    guard: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "tag", "-d", "thing-v1.0.0"], cwd=repository, check=True, capture_output=True)
    assert guard.main(["--root", str(repository)]) == 2
    assert "thing-v1.0.0; fetch it: git fetch --unshallow --tags" in capsys.readouterr().err
