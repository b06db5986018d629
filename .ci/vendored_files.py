"""Update the files of others that the page serves or its tests use: `nox -s vendor`; `-- --check` only compares.

`vendor.json` lists each file: its package and version, the file in it, its SHA-256 and its licence. The packages are
fetched by `npm pack`, with npm's own settings, into a temporary folder; nothing in them is run. To update one, change
its version and remove its hashes in `vendor.json`, run this, and review the difference of that file.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

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
                found = hashlib.sha256(data).hexdigest()
                if entry.setdefault("sha256", found) != found:
                    wrong.append(f"{entry['file']}: SHA-256 is {found}, expected {entry['sha256']}")
                target = vendor / entry["file"]
                if is_check:
                    if not target.is_file() or target.read_bytes() != data:
                        wrong.append(f"{entry['file']} is not the file of {package['name']} {package['version']}")
                elif not wrong:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
    return wrong


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
