"""Prepare and check releases: a package's version, changelog and tag.

notes PACKAGE     print the notes of the open version
prepare PACKAGE   move the fragments to the changelog, and date its open version
open PACKAGE V    start version V: in _version.py and on top of the changelog
check TAG         print the package that a tag releases; fail if the tree does not have that version, released
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
URL = "https://github.com/ml-diagnostics/ml-diagnostics"
MARKER = "<!-- fragments become entries here -->"
VERSION = re.compile(r"\d+\.\d+\.\d+")
LOCAL = "+mld"  # After the version of a package with a public name; not in its tag and its changelog.
TAG = re.compile(rf"(?P<name>.+)-v(?P<version>{VERSION.pattern})")
HEADING = re.compile(rf"^## \[(?P<version>{VERSION.pattern})\] - (?P<date>unreleased|\d{{4}}-\d\d-\d\d)$", re.MULTILINE)


class ReleaseError(Exception):
    """A release cannot be made; the message names the remedy."""


def dated(text: str, tag: str, date: str) -> str:
    """Return a changelog with its open version released on a date, under a tag.

    Raises:
        ReleaseError: The newest version is not open.
    """
    newest = HEADING.search(text)
    if newest is None or newest["date"] != "unreleased":
        raise ReleaseError("the newest version of the changelog is released already; open the next one first")
    text = text.replace(newest[0], f"## [{newest['version']}] - {date}", 1).replace(f"\n{MARKER}\n", "", 1)
    return re.sub(
        rf"^(\[{re.escape(newest['version'])}\]: .+\.\.\.)HEAD$",
        lambda link: link[1] + tag,
        text,
        count=1,
        flags=re.MULTILINE,
    )


def opened(text: str, name: str, version: str) -> str:
    """Return a changelog with a section for the next version on top.

    Raises:
        ReleaseError: The newest version is still open, or not older.
    """
    newest = HEADING.search(text)
    if newest is None or newest["date"] == "unreleased":
        raise ReleaseError("the newest version of the changelog is still open; release it first")
    last = newest["version"]
    if _numbers(version) <= _numbers(last):
        raise ReleaseError(f"{version} is not newer than {last}")
    text = text.replace(newest[0], f"## [{version}] - unreleased\n\n{MARKER}\n\n{newest[0]}", 1)
    return text.replace(f"\n[{last}]: ", f"\n[{version}]: {URL}/compare/{name}-v{last}...HEAD\n[{last}]: ", 1)


def section(text: str, version: str) -> str:
    """Return what a changelog has on a version, without its heading.

    Raises:
        ReleaseError: The changelog does not have that version.
    """
    found = re.search(rf"^## \[{re.escape(version)}\] .*\n(?P<body>(?s:.*?))(?=^## |^\[\d|\Z)", text, re.MULTILINE)
    if found is None:
        raise ReleaseError(f"the changelog has no section for {version}")
    return found["body"].replace(MARKER, "").strip()


def check(root: Path, tag: str) -> str:
    """Return the package that a tag releases.

    Raises:
        ReleaseError: The tag is malformed or of another version, or the tree is not ready for it.
    """
    match = TAG.fullmatch(tag)
    names = {_distribution(path): path for path in sorted((root / "packages").iterdir()) if path.is_dir()}
    if match is None or match["name"] not in names:
        raise ReleaseError(f"{tag} is not the tag of a release: expected one of {', '.join(names)}, then -v1.2.3")
    folder = names[match["name"]]
    version = _version_file(folder).read_text(encoding="utf-8")
    if not re.search(rf'"{re.escape(match["version"])}({re.escape(LOCAL)})?"', version):
        raise ReleaseError(f"{tag} does not name the version of packages/{folder.name}: {version.strip()}")
    newest = HEADING.search((folder / "CHANGELOG.md").read_text(encoding="utf-8"))
    if newest is None or (newest["version"], newest["date"] == "unreleased") != (match["version"], False):
        raise ReleaseError(f"packages/{folder.name}/CHANGELOG.md does not date {match['version']} on top; prepare it")
    if left := [path.name for path in (folder / "changelog.d").glob("*") if path.name != "README.md"]:
        raise ReleaseError(f"packages/{folder.name}/changelog.d still has {', '.join(left)}; prepare the release")
    return folder.name


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; return 1 with a message if it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["notes", "prepare", "open", "check"])
    parser.add_argument("what", metavar="PACKAGE|TAG")
    parser.add_argument("version", nargs="?")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    given = parser.parse_args(argv)
    try:
        if given.command == "check":
            print(check(given.root, given.what))
            return 0
        folder = given.root / "packages" / given.what
        if not (folder / "CHANGELOG.md").exists():
            raise ReleaseError(f"{given.what} is not a folder of packages/")
        if given.command == "open":
            _open(folder, given.version or "")
        else:
            _close(folder, given.date, draft=given.command == "notes")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _open(folder: Path, version: str) -> None:
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"expected a version such as 1.2.3, got {version!r}")
    changelog, source = folder / "CHANGELOG.md", _version_file(folder)
    changelog.write_text(
        opened(changelog.read_text(encoding="utf-8"), _distribution(folder), version), encoding="utf-8"
    )
    source.write_text(VERSION.sub(version, source.read_text(encoding="utf-8"), count=1), encoding="utf-8")


def _close(folder: Path, date: str, *, draft: bool) -> None:
    changelog = folder / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    newest = HEADING.search(text)
    if newest is None:
        raise ReleaseError(f"{changelog} has no version")
    tag = f"{_distribution(folder)}-v{newest['version']}"
    after = dated(text, tag, date)
    if any(path.name != "README.md" for path in (folder / "changelog.d").iterdir()):
        if MARKER not in text:
            raise ReleaseError(f"{changelog} has no line {MARKER!r}; put it at the end of the open version")
        build = ["build", "--config", str(folder.parent.parent / ".ci" / "towncrier.toml"), "--dir", str(folder)]
        build += ["--version", newest["version"], "--date", date, "--draft" if draft else "--yes"]
        done = subprocess.run(
            [sys.executable, "-m", "towncrier", *build], capture_output=True, text=True, encoding="utf-8", check=False
        )
        if done.returncode:
            raise ReleaseError(f"towncrier failed:\n{done.stdout}{done.stderr}")
        after = dated(changelog.read_text(encoding="utf-8"), tag, date)
        fragments = done.stdout if draft else ""
    else:
        fragments = ""
    if draft:
        print(f"{section(text, newest['version'])}\n\n{fragments}".strip())
        return
    changelog.write_text(after, encoding="utf-8")
    print(f"Commit this, and tag the commit: {tag}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _distribution(folder: Path) -> str:
    found = re.search(r'^name = "(.+)"', (folder / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def _version_file(folder: Path) -> Path:
    (found,) = folder.glob("src/*/_version.py")
    return found


if __name__ == "__main__":
    sys.exit(main())
