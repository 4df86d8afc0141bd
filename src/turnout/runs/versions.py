"""What ran: versions, platform, and the state of the repository."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from turnout.version import __version__

#: What must be the same in all cells of an experiment: another version may compute other numbers.
SAME_VERSION = ("turnout", "numpy", "torch", "code", "files")

_PACKAGE = Path(__file__).parents[1]


def versions(*packages: str) -> dict[str, Any]:
    """Return what ran: versions, platform, and the state of turnout's own repository if any.

    Args:
        packages: Names of further packages whose version counts.

    """
    sha, dirty = _git_state(_PACKAGE)
    return {
        "turnout": __version__,
        "numpy": np.__version__,
        **{name: metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": sha,
        "dirty": dirty,
    }


def tools(*, trains: bool) -> dict[str, Any]:
    """Return the versions that kept results depend on; the machine is nobody's business.

    Args:
        trains: Whether models are trained.
    """
    installed = versions(*(["torch"] if trains else []))
    return {
        name: installed[name]
        for name in ("turnout", "numpy", "torch", "python")
        if name in installed
    }


def _git_state(package: Path) -> tuple[str | None, bool | None]:
    """Return commit and dirtiness if the package itself is tracked by git, else (None, None)."""
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    sha = _git(package, "rev-parse", "HEAD") if tracked else None
    if sha is None:
        return None, None
    changed = _git(package, "status", "--porcelain")
    return sha, None if changed is None else bool(changed)


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
