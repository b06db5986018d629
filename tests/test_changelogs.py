"""Changelogs have one form, fragments have names that the release accepts, and a release is made from both."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
FRAGMENT = re.compile(r"(\d+|\+[a-z0-9-]+)\.(added|changed|deprecated|removed|fixed|security)(\.\d+)?\.md")


def load_release_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load_release_script()
OPEN = f"""# Changelog

## [1.1.0] - unreleased

- A change.

{release.MARKER}

## [1.0.0] - 2026-01-02

First release.

[1.1.0]: {release.URL}/compare/thing-v1.0.0...HEAD
[1.0.0]: {release.URL}/releases/tag/thing-v1.0.0
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one package with the open version 1.1.0."""
    source = tmp_path / "packages" / "thing" / "src" / "thing"
    source.mkdir(parents=True)
    (source / "_version.py").write_text('__version__ = "1.1.0"\n')
    folder = tmp_path / "packages" / "thing"
    (folder / "changelog.d").mkdir()
    (folder / "changelog.d" / "README.md").write_text("How to write a fragment.\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "thing"\n')
    (folder / "CHANGELOG.md").write_text(OPEN)
    return tmp_path


def run(repository: Path, *arguments: str) -> int:
    status = release.main([*arguments, "--root", str(repository)])
    assert isinstance(status, int)
    return status


@pytest.mark.parametrize("package", PACKAGES)
class TestChangelog:
    def test_every_version_has_a_date_and_a_link_and_the_newest_is_first(self, package: str) -> None:
        text = (ROOT / "packages" / package / "CHANGELOG.md").read_text(encoding="utf-8")
        found = list(release.HEADING.finditer(text))
        assert [line for line in text.splitlines() if line.startswith("## ")] == [match[0] for match in found]
        versions = [tuple(map(int, match["version"].split("."))) for match in found]
        assert versions == sorted(set(versions), reverse=True)
        dates = [match["date"] for match in found]
        released = dates[1:] if dates[0] == "unreleased" else dates
        assert released == sorted(released, reverse=True)
        assert "unreleased" not in released
        links = re.findall(r"^\[(\d[^\]]+)\]: ", text, re.MULTILINE)
        assert links == [match["version"] for match in found]

    def test_its_links_compare_neighbouring_tags_of_the_package(self, package: str) -> None:
        folder = ROOT / "packages" / package
        text = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
        name = release._distribution(folder)
        found = list(release.HEADING.finditer(text))
        for newer, older in itertools.pairwise(found):
            tag = "HEAD" if newer["date"] == "unreleased" else f"{name}-v{newer['version']}"
            link = f"[{newer['version']}]: {release.URL}/compare/{name}-v{older['version']}...{tag}"
            assert link in text.splitlines()
        first = found[-1]["version"]
        assert f"[{first}]: {release.URL}/releases/tag/{name}-v{first}" in text.splitlines()

    def test_the_open_version_has_a_marker_for_fragments(self, package: str) -> None:
        text = (ROOT / "packages" / package / "CHANGELOG.md").read_text(encoding="utf-8")
        newest = release.HEADING.search(text)
        assert newest is not None
        expected = 1 if newest["date"] == "unreleased" else 0
        assert text.count(f"\n\n{release.MARKER}\n\n") == text.count(release.MARKER) == expected

    def test_fragments_have_names_and_texts_that_the_release_accepts(self, package: str) -> None:
        for path in (ROOT / "packages" / package / "changelog.d").iterdir():
            if path.name != "README.md":
                assert FRAGMENT.fullmatch(path.name), f"{path}: expected ISSUE.TYPE.md or +SHORT-NAME.TYPE.md"
                text = path.read_text(encoding="utf-8").strip()
                assert text, f"{path} is empty"
                assert not text.startswith(("-", "*", "#")), f"{path}: write sentences, without a bullet or heading"


def test_fragments_are_only_where_the_release_finds_them() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [Path(line) for line in listed.splitlines() if FRAGMENT.fullmatch(Path(line).name)]
    assert [str(name) for name in names if name.parts[0] != "packages" or name.parts[2:-1] != ("changelog.d",)] == []


def test_a_release_dates_the_open_version_and_names_its_tag(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(repository, "prepare", "thing", "--date", "2026-02-03") == 0
    assert "tag the commit: thing-v1.1.0" in capsys.readouterr().out
    text = (repository / "packages" / "thing" / "CHANGELOG.md").read_text()
    assert "## [1.1.0] - 2026-02-03\n\n- A change.\n\n## [1.0.0] - 2026-01-02" in text
    assert f"[1.1.0]: {release.URL}/compare/thing-v1.0.0...thing-v1.1.0\n" in text
    assert run(repository, "check", "thing-v1.1.0") == 0
    assert capsys.readouterr().out == "thing\n"
    assert run(repository, "prepare", "thing") == 1
    assert "released already" in capsys.readouterr().err


def test_the_next_version_is_opened_in_the_source_and_in_the_changelog(repository: Path) -> None:
    assert run(repository, "prepare", "thing", "--date", "2026-02-03") == 0
    assert run(repository, "open", "thing", "1.2.0") == 0
    text = (repository / "packages" / "thing" / "CHANGELOG.md").read_text()
    assert f"## [1.2.0] - unreleased\n\n{release.MARKER}\n\n## [1.1.0] - 2026-02-03\n" in text
    assert f"[1.2.0]: {release.URL}/compare/thing-v1.1.0...HEAD\n[1.1.0]: " in text
    version = repository / "packages" / "thing" / "src" / "thing" / "_version.py"
    assert version.read_text() == '__version__ = "1.2.0"\n'


def test_the_local_part_of_a_version_stays_and_is_not_in_the_tag(repository: Path) -> None:
    version = repository / "packages" / "thing" / "src" / "thing" / "_version.py"
    version.write_text('__version__ = "1.1.0+mld"\n')
    assert run(repository, "prepare", "thing") == 0
    assert run(repository, "check", "thing-v1.1.0") == 0
    assert run(repository, "open", "thing", "1.2.0") == 0
    assert version.read_text() == '__version__ = "1.2.0+mld"\n'


@pytest.mark.parametrize("version", ["1.1.0", "1.0.9", "1.2", "later"])
def test_the_next_version_must_be_newer(repository: Path, version: str) -> None:
    assert run(repository, "prepare", "thing") == 0
    assert run(repository, "open", "thing", version) == 1


def test_two_versions_are_never_open(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, "open", "thing", "1.2.0") == 1
    assert "still open" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("thing-v1.1.0", "does not date 1.1.0"),
        ("thing-v1.0.0", "does not name the version"),
        ("other-v1.1.0", "is not the tag of a release: expected one of thing"),
        ("v1.1.0", "is not the tag of a release"),
    ],
)
def test_a_tag_that_does_not_fit_the_tree_is_refused(
    repository: Path, tag: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(repository, "check", tag) == 1
    assert message in capsys.readouterr().err


def test_a_release_without_its_fragments_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, "prepare", "thing") == 0
    (repository / "packages" / "thing" / "changelog.d" / "7.fixed.md").write_text("A late fix.\n")
    assert run(repository, "check", "thing-v1.1.0") == 1
    assert "7.fixed.md" in capsys.readouterr().err


def test_the_notes_are_the_section_of_the_open_version(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, "notes", "thing") == 0
    assert capsys.readouterr().out == "- A change.\n"
    assert release.section(OPEN, "1.0.0") == "First release."


def test_fragments_become_entries_of_their_types(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("towncrier", reason="the environment of `nox -s lint` has towncrier")
    (repository / ".ci").mkdir()
    for name in ("towncrier.toml", "changelog.md.jinja"):
        (repository / ".ci" / name).write_text((ROOT / ".ci" / name).read_text())
    fragments = repository / "packages" / "thing" / "changelog.d"
    (fragments / "7.fixed.md").write_text("A fix.\n")
    (fragments / "+new-name.added.md").write_text("A new name.\n")
    (repository / "packages" / "thing" / "CHANGELOG.md").write_text(OPEN)
    assert run(repository, "prepare", "thing", "--date", "2026-02-03") == 0
    text = (repository / "packages" / "thing" / "CHANGELOG.md").read_text()
    issue = "[#7](https://github.com/ml-diagnostics/ml-diagnostics/issues/7)"
    entries = f"- A change.\n\n### Added\n\n- A new name.\n\n### Fixed\n\n- A fix. ({issue})\n\n## [1.0.0]"
    assert entries in text
    assert [path.name for path in fragments.iterdir()] == ["README.md"]
