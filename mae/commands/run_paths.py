"""From a path that the user gives to the run behind it and the shards it was trained on."""

from __future__ import annotations

from pathlib import Path

from mae.commands.run_directory import CONFIG_FILE
from mae.errors import DataError

_INSIDE_A_RUN = ("checkpoints", "encoder")


def run_directory_of(path: Path) -> Path | None:
    """Return the run that a run directory, checkpoint or encoder file belongs to, or None.

    Args:
        path: Exists.
    """
    folder = path if path.is_dir() else path.absolute().parent
    while not (folder / CONFIG_FILE).is_file() and _lies_in_a_run(folder):
        folder = folder.absolute().parent
    return folder if (folder / CONFIG_FILE).is_file() or path == folder else None


def _lies_in_a_run(folder: Path) -> bool:
    is_timm_export = (folder / "config.json").is_file()
    return folder.name in _INSIDE_A_RUN or is_timm_export


def data_of_run(run: Path) -> str:
    """Return the shard directory, or its URL, that a run's configuration names.

    Raises:
        DataError: If the configuration is missing or names none.
    """
    import yaml

    config = run / CONFIG_FILE
    try:
        return str(yaml.safe_load(config.read_text(encoding="utf-8"))["data"]["data_dir"])
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise DataError(
            f"{config} does not say which shards the run was trained on ({error}); name them "
            f"with --data"
        ) from error
