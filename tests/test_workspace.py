"""Rules of the repository as a whole: the names in it, its pins, the contents of each package."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
# Packages of others have these names, so the version shows which of the two is installed.
PUBLIC_NAMES = {
    "cloud-diagnostics-xprof",
    "cloud-tpu-diagnostics",
    "google-cloud-mldiagnostics",
    "ml-goodput-measurement",
}
IN_ENVIRONMENTS_OF_THEIR_OWN = {"beam"}  # extras
PINS = sorted(path.name for path in ROOT.glob("requirements/*.in"))

# Spelled in pieces, so that this file does not contain the text that it searches for.
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "pypi." + "python.org",
    "registry." + "npmjs",
    "deb." + "debian.org",
    "download." + "pytorch.org",
    "conda." + "anaconda.org",
    "proxy." + "golang.org",
    "static.crates" + ".io",
]
FILE_ADDRESS = re.compile("file:" + r"///\w+/")
MACHINE_PATH = re.compile(r"(?<![\w.$}{<>)*~-])/(?:root|home|work|Users|opt)" + r"/\w")
# The home of a fictitious user in an example; and a program of a container's image.
A_SAMPLE = re.compile(r"/home/(?:user|local)\b|/opt/bin/proxy-forwarding-agent\b")


@cache
def tracked_text() -> dict[str, str]:
    """Every tracked text file, by its path in the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            continue  # removed in the working tree, or a picture
    return texts


def manifest(package: str) -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())
    return read


def assigned_in_noxfile(name: str) -> Any:
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"noxfile.py does not assign {name}")


def readme_commands() -> list[str]:
    readme = (ROOT / "README.md").read_text()
    return [line for line in readme.splitlines() if line.startswith("python3 -m venv")]


def test_no_tracked_file_names_a_package_registry() -> None:
    found = [(name, host) for name, text in tracked_text().items() for host in REGISTRIES if host in text]
    assert found == []


def test_no_tracked_file_holds_a_path_of_one_machine() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_text().items()
        for number, line in enumerate(text.splitlines(), 1)
        if FILE_ADDRESS.search(line) or MACHINE_PATH.search(A_SAMPLE.sub("", line))
    ]
    assert found == []


def test_no_lock_file_that_records_addresses_is_tracked() -> None:
    names = [Path(name).name for name in tracked_text()]
    assert [name for name in names if name == "uv.lock" or re.fullmatch(r"pylock.*\.toml", name)] == []


@pytest.mark.parametrize("source", PINS)
def test_every_pin_has_a_version_and_a_hash_and_no_address(source: str) -> None:
    text = (ROOT / "requirements" / source).with_suffix(".txt").read_text().replace("\\\n", " ")
    requirements = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert requirements
    for requirement in requirements:
        assert re.match(r"[A-Za-z0-9._-]+(\[[\w,-]+\])?==[^\s;]+ ", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
        assert "://" not in requirement, requirement


def test_every_set_of_pins_can_be_remade() -> None:
    derived = {"oldest"}  # from tests.in, at the lowest versions
    remade = set(assigned_in_noxfile("PIN_SETS"))
    assert remade - derived == {name.removesuffix(".in") for name in PINS}
    assert remade == {path.stem for path in ROOT.glob("requirements/*.txt")}


def test_the_commands_of_the_readme_start_from_git_and_python_alone() -> None:
    sessions = []
    for command in readme_commands():
        words = shlex.split(command)
        assert words[:4] == ["python3", "-m", "venv", ".venv"]
        assert words[-3:-1] == [".venv/bin/nox", "-s"]
        sessions.append(words[-1])
    assert sessions == ["demo", "tests"]


def test_ci_runs_the_command_of_the_readme() -> None:
    assert readme_commands()[1] in (ROOT / ".ci" / "run").read_text().splitlines()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_sessions_know_every_package() -> None:
    assert sorted(assigned_in_noxfile("PACKAGES")) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
class TestPackage:
    def test_has_a_licence_and_a_repository(self, package: str) -> None:
        project = manifest(package)["project"]
        assert project["license"] == "Apache-2.0"
        assert project["requires-python"] == ">=3.10"
        assert {"Documentation", "Source", "Changelog"} <= set(project["urls"])
        assert "Typing :: Typed" in project["classifiers"]

    def test_brings_its_licence_readme_and_types(self, package: str) -> None:
        folder = ROOT / "packages" / package
        assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
        assert len((folder / "README.md").read_text().splitlines()) > 10
        assert list(folder.glob("src/*/py.typed"))

    def test_has_its_version_in_one_file_and_on_top_of_its_changelog(self, package: str) -> None:
        name = manifest(package)["project"]["name"]
        (source,) = (ROOT / "packages" / package / "src").glob("*/__init__.py")
        module = __import__(source.parent.name)
        changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text()
        newest = re.search(r"^## \[(\S+)\]", changelog, re.MULTILINE)
        assert newest is not None
        assert module.__version__ == metadata.version(name)
        assert module.__version__ == newest.group(1) + ("+mld" if name in PUBLIC_NAMES else "")
        assert module.__version__ in SpecifierSet(f"=={newest.group(1)}")

    def test_pins_for_the_tests_cover_what_it_needs(self, package: str) -> None:
        project = manifest(package)["project"]
        needed = list(project.get("dependencies", []))
        for extra, requirements in project.get("optional-dependencies", {}).items():
            needed += requirements if extra not in IN_ENVIRONMENTS_OF_THEIR_OWN else []
        pins = (ROOT / "requirements" / "tests.txt").read_text()
        pinned = set(re.findall(r"^([\w.-]+)==", pins, re.MULTILINE))
        ours = {manifest(other)["project"]["name"] for other in PACKAGES}
        names = {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in needed}
        assert names - ours <= pinned
