"""Update the files of others that the page serves or its tests use: `nox -s vendor`; `-- --check` only compares.

`vendor.json` lists each file: its package and version, the file in it, its SHA-256 and its licence. The packages are
fetched by `npm pack`, with npm's own settings, into a temporary folder; nothing in them is run. To update one, change
its version and remove its hashes in `vendor.json`, run this, and review the difference of that file.

A font that has a `subset` is served without what no page uses: `features` are the OpenType features that stay, `axes`
the range that stays of an axis. All of its characters stay. `source_sha256` is that of the font in the package.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont
from fontTools.varLib import instancer

ROOT = Path(__file__).parent.parent
VENDOR = (
    ROOT / "packages/console/src/ml_diagnostics_console/_web/static/vendor",
    ROOT / "tests/console/web/vendor",
)


def packed(package: str, version: str, folder: Path) -> Path:
    """Return the archive of a package.

    Args:
        package: Its name.
        version: Its version.
        folder: Where it is written.
    """
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package}@{version}"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return folder / done.stdout.split()[-1]


def reduced(font: bytes, subset: dict[str, Any]) -> bytes:
    """Return a font in the format WOFF2 without the features and the ranges of axes that are not used.

    Args:
        font: The font.
        subset: The `features` that stay, and the `axes`: the least and the largest value that stay, by name.
    """
    # Not the time of this run: the same font and the same versions of the tools give the same bytes.
    parsed = TTFont(io.BytesIO(font), recalcTimestamp=False)
    subsetter = Subsetter(Options(layout_features=subset["features"]))
    subsetter.populate(unicodes=parsed.getBestCmap())
    subsetter.subset(parsed)
    if axes := subset.get("axes"):
        parsed = instancer.instantiateVariableFont(parsed, {name: tuple(ends) for name, ends in axes.items()})
    parsed.flavor = "woff2"
    made = io.BytesIO()
    parsed.save(made)
    return made.getvalue()


def update(manifest: dict[str, Any], vendor: Path, folder: Path, *, is_check: bool) -> list[str]:
    """Write the files of all packages, and fill in missing hashes.

    Args:
        manifest: The content of `vendor.json`.
        vendor: The folder that holds it and the files.
        folder: A temporary folder.
        is_check: True to write nothing.

    Returns:
        Sentences on what differs.
    """
    wrong = []
    for package in manifest["packages"]:
        with tarfile.open(packed(package["source"].removeprefix("npm:"), package["version"], folder)) as archive:
            for entry in package["files"]:
                member = archive.extractfile(f"package/{entry['source']}")
                assert member is not None, entry
                data = member.read()
                if subset := entry.get("subset"):
                    wrong += differences(entry, "source_sha256", data)
                    data = reduced(data, subset)
                wrong += differences(entry, "sha256", data)
                target = vendor / entry["file"]
                if is_check:
                    if not target.is_file() or target.read_bytes() != data:
                        wrong.append(f"{entry['file']} is not the file of {package['name']} {package['version']}")
                elif not wrong:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
    return wrong


def differences(entry: dict[str, Any], key: str, data: bytes) -> list[str]:
    """Compare data with a hash of a file, which is filled in if it is missing; return sentences on what differs."""
    found = hashlib.sha256(data).hexdigest()
    if entry.setdefault(key, found) == found:
        return []
    return [f"{entry['file']}: {key} is {found}, expected {entry[key]}"]


def main(arguments: list[str]) -> int:
    """Update or check the files, and return the exit code."""
    is_check = "--check" in arguments
    wrong = []
    for vendor in VENDOR:
        path = vendor / "vendor.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            found = update(manifest, vendor, Path(folder), is_check=is_check)
        if not is_check and not found:
            path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        wrong += found
    print("\n".join(wrong) or "all files are those of vendor.json", file=sys.stderr if wrong else sys.stdout)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
