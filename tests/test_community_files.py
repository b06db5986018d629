"""The pages and forms for people outside the project are true: hosts, packages and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FORMS = sorted(path.name for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")
PAGES = ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"]
HOST = re.compile(r"(?<![\w.])[a-z0-9-]+\.(?:googleapis\.com|google\.internal)")
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]+)")


def distributions() -> set[str]:
    found = set()
    for manifest in ROOT.glob("packages/*/pyproject.toml"):
        match = re.search(r'^name = "(.+)"', manifest.read_text(), re.MULTILINE)
        assert match is not None
        found.add(match[1])
    return found


def test_every_host_of_google_that_the_libraries_name_is_on_the_security_page() -> None:
    named = set()
    for source in ROOT.glob("packages/*/src/**/*.py"):
        if "ml_diagnostics_testing" not in source.parts:
            named |= set(HOST.findall(source.read_text(encoding="utf-8")))
    assert "logging.googleapis.com" in named
    scopes = {"www.googleapis.com"}
    assert named - scopes <= set(HOST.findall((ROOT / "SECURITY.md").read_text()))


def test_every_setting_of_the_security_page_is_documented() -> None:
    named = set(re.findall(r"\b(?:ML_DIAGNOSTICS|DIAGON)_[A-Z_]+", (ROOT / "SECURITY.md").read_text()))
    documented = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert named
    assert [name for name in named if name not in documented] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_to_files(page: str) -> None:
    links = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", FORMS)
def test_an_issue_form_has_what_the_host_requires(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    for field in form["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert ("value" if field["type"] == "markdown" else "label") in field["attributes"]


def test_a_bug_can_be_reported_for_every_package() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    (options,) = (field["attributes"]["options"] for field in form["body"] if field.get("id") == "package")
    assert {option.split()[0] for option in options} == distributions() | {"documentation"}


def test_the_example_of_code_owners_names_existing_paths() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS.example").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    assert paths[0] == "*"
    assert [path for path in paths[1:] if not (ROOT / path.lstrip("/")).exists()] == []
    packages = {f"/{folder.relative_to(ROOT)}/" for folder in ROOT.glob("packages/*") if folder.is_dir()}
    assert packages <= set(paths)
