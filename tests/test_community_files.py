"""The pages and forms for people outside the project are true: hosts, packages and links."""

from __future__ import annotations

import ast
import os
import re
import subprocess
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
    assert "storage.googleapis.com" in named
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


def test_every_session_that_the_pages_name_exists() -> None:
    noxfile = ast.parse((ROOT / "noxfile.py").read_text())
    functions = {node.name for node in noxfile.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    renamed = set(re.findall(r'^@nox\.session\(name="([\w-]+)"', (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    pages = ["CONTRIBUTING.md", "README.md", "docs/contributing/release.md", ".github/workflows/release.yml", ".ci/run"]
    for page in pages:
        lines = re.findall(r"nox -s ((?:[a-z_-]+ ?)+)", (ROOT / page).read_text())
        named = {name for line in lines for name in line.partition("--")[0].split()}
        assert named, page
        assert named <= functions | renamed, page


def test_the_release_workflow_publishes_without_a_password_and_after_its_checks() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    commands = "\n".join(step.get("run", "") for step in build["steps"])
    assert ".ci/release.py check" in commands
    assert "nox -s lint api wheels" in commands


@pytest.mark.parametrize(
    ("tagged", "kept"),
    [
        ("ml-diagnostics-common", "ml_diagnostics_common-1.4.0"),
        ("ml-goodput-measurement", "ml_goodput_measurement-1.4.0+mld"),
    ],
)
def test_the_release_workflow_keeps_the_files_of_the_tagged_package_alone(
    tagged: str, kept: str, tmp_path: Path
) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (keep,) = (step["run"] for step in workflow["jobs"]["build"]["steps"] if "cp " in step.get("run", ""))
    (tmp_path / "dist").mkdir()
    for name in ("ml_diagnostics_common-1.4.0", "ml_diagnostics_testing-1.4.0", "ml_goodput_measurement-1.4.0+mld"):
        (tmp_path / "dist" / f"{name}-py3-none-any.whl").touch()
        (tmp_path / "dist" / f"{name}.tar.gz").touch()
    environ = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": f"{tagged}-v1.4.0"}
    subprocess.run(["bash", "-euo", "pipefail", "-c", keep], cwd=tmp_path, env=environ, check=True)
    assert {path.name for path in (tmp_path / "upload").iterdir()} == {f"{kept}-py3-none-any.whl", f"{kept}.tar.gz"}


def test_decisions_are_numbered_dated_short_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("*.md") if path.name != "index.md")
    assert [name[:4] for name in pages] == [f"{number:04d}" for number in range(1, len(pages) + 1)]
    listed = (folder / "index.md").read_text()
    navigation = (ROOT / "mkdocs.yml").read_text()
    for name in pages:
        text = (folder / name).read_text()
        assert re.match(rf"# {name[:4]}\. .+\n\n\d{{4}}-\d\d-\d\d, (accepted|replaced by \[.+)\.\n", text), name
        assert re.findall(r"^## (.+)", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], name
        assert len(text.splitlines()) <= 60, name
        assert f"({name})" in listed
        assert f"decisions/{name}" in navigation


def test_the_example_of_code_owners_names_existing_paths() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS.example").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    assert paths[0] == "*"
    assert [path for path in paths[1:] if not (ROOT / path.lstrip("/")).exists()] == []
    packages = {f"/{folder.relative_to(ROOT)}/" for folder in ROOT.glob("packages/*") if folder.is_dir()}
    assert packages <= set(paths)
