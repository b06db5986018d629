"""Compare the public names of every package with its last release; exit with 1 for a breakage that is not allowed.

.ci/public-api.toml names the releases, the public modules, and the breakages that are allowed, each with a reason.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


class SettingsError(Exception):
    """The settings, or the release that they name, cannot be used."""


@dataclass(frozen=True, order=True)
class Breakage:
    """A change that can break a program that uses a public name.

    Attributes:
        name: The name by which users know it, and the parameter, if one changed: `goodput.GoodputRecorder.f(step)`.
        change: Its kind, in griffe's words, for example "Parameter was removed".
    """

    name: str
    change: str

    def __str__(self) -> str:
        return f"{self.name}: {self.change}"


def compare_releases(root: Path, settings: Mapping[str, Any]) -> Iterator[Breakage]:
    """Yield each breakage of a public name since the last release of its package.

    Raises:
        SettingsError: The repository lacks a release, or neither it nor the tree has a public module.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trees = {release: _extract(root, release, Path(scratch)) for release in set(settings["released"].values())}
        for package, patterns in settings["public"].items():
            if package not in settings["released"]:
                raise SettingsError(f"no release is named for {package}")
            old = _load(trees[settings["released"][package]], package)
            new = _load(root, package)
            yield from sorted(set(_breakages(old, new, patterns)))


def check(found: Sequence[Breakage], allowed: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what must be corrected: breakages that are not allowed, entries without a reason or without a breakage."""
    problems = []
    reasons = {Breakage(entry["name"], entry["change"]): entry.get("reason", "") for entry in allowed}
    problems += [f"not allowed: {breakage}" for breakage in found if breakage not in reasons]
    problems += [f"allowed without a reason: {breakage}" for breakage, reason in reasons.items() if not reason.strip()]
    problems += [f"allowed, but not found; remove the entry: {each}" for each in reasons if each not in found]
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    """Print all breakages; return 1 if something must be corrected, 2 if the settings cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    root = parser.parse_args(argv).root
    source = root / ".ci" / "public-api.toml"
    try:
        settings = tomllib.loads(source.read_text(encoding="utf-8"))
        found = list(compare_releases(root, settings))
    except (SettingsError, tomllib.TOMLDecodeError) as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 2
    for breakage in found:
        print(breakage)
    problems = check(found, settings.get("allowed", []))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(found)} breakages since the last release, {len(problems)} problems")
    return 1 if problems else 0


def _extract(root: Path, release: str, scratch: Path) -> Path:
    """Return a folder with the packages as they were released."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", release, "packages"], cwd=root, capture_output=True, check=False
    )
    if archive.returncode:
        raise SettingsError(
            f"this clone does not have the release {release}; fetch it: git fetch --unshallow --tags\n"
            + archive.stderr.decode(errors="replace").strip()
        )
    folder = scratch / release.replace("/", "_")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as members:
        members.extractall(folder, filter="data")
    return folder


def _load(tree: Path, package: str) -> griffe.Object:
    """Return a package as griffe reads it from source, with common beside it: names and bases come from there."""
    (source,) = (path.parent for path in (tree / "packages" / package).glob("src/*/__init__.py"))
    loader = griffe.GriffeLoader(
        search_paths=[str(path) for path in sorted(tree.glob("packages/*/src"))], allow_inspection=False
    )
    if (tree / "packages" / "common").is_dir():
        loader.load("ml_diagnostics_common")
    loaded = loader.load(source.name)
    loader.resolve_aliases(external=False)
    assert isinstance(loaded, griffe.Object)
    return loaded


def _breakages(old: griffe.Object, new: griffe.Object, patterns: Sequence[str]) -> Iterator[Breakage]:
    for path in _public_modules(old, patterns):
        module = _module_at(old, path)
        current = _module_at(new, path)
        assert module is not None
        if current is None:
            yield Breakage(path, griffe.BreakageKind.OBJECT_REMOVED.value)
            continue
        for name in [name for name, member in module.members.items() if not member.is_alias and member.is_module]:
            del module.members[name]  # listed on its own if it is public
        names = _names_by_definition(module)
        for breakage in griffe.find_breaking_changes(module, current):
            if breakage.obj.name != "__version__":
                parameter = getattr(breakage.old_value or breakage.new_value, "name", "")
                is_parameter = isinstance(breakage.old_value or breakage.new_value, griffe.Parameter)
                name = _public_name(breakage.obj.canonical_path, names)
                yield Breakage(f"{name}({parameter})" if is_parameter else name, breakage.kind.value)


def _public_modules(package: griffe.Object, patterns: Sequence[str]) -> list[str]:
    """Return the paths of the modules that the patterns name, deepest first."""
    found: list[str] = []
    for pattern in patterns:
        path = pattern.removesuffix(".*")
        module = _module_at(package, path)
        if module is None:
            continue  # newer than the release
        found.append(path)
        if pattern.endswith(".*"):
            found += _submodules(module)
    if not found:
        raise SettingsError(f"the release of {package.path} has none of its public modules: {', '.join(patterns)}")
    return sorted(set(found), key=lambda path: (-path.count("."), path))


def _submodules(module: griffe.Object) -> list[str]:
    found = []
    for member in module.members.values():
        if not member.is_alias and member.is_module and not member.name.startswith("_"):
            found += [member.path, *_submodules(member)]
    return found


def _module_at(package: griffe.Object, path: str) -> griffe.Object | None:
    module: Any = package
    for name in path.split(".")[1:]:
        if name not in module.members:
            return None
        module = module.members[name]
    return module.final_target if module.is_alias else module


def _names_by_definition(module: griffe.Object) -> dict[str, str]:
    """Map where each name of a module is defined to the public name."""
    found = {}
    for name, member in module.members.items():
        try:
            found[member.canonical_path if not member.is_alias else member.final_target.canonical_path] = (
                f"{module.path}.{name}"
            )
        except (griffe.AliasResolutionError, griffe.CyclicAliasError):
            continue  # of another distribution
    return found


def _public_name(path: str, names: Mapping[str, str]) -> str:
    head, tail = path, ""
    while head:
        if head in names:
            return names[head] + tail
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    return path


if __name__ == "__main__":
    sys.exit(main())
