"""Where recipes are: inside the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from mae.errors import ConfigError, unknown_name


def recipes_dir() -> Path:
    """Return the directory of the shipped recipes.

    Raises:
        ConfigError: If neither an installed copy nor a checkout's is there.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "recipes", package.parent / "recipes"):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"no recipes beside {package}; reinstall domain-mae")


def recipe_names() -> list[str]:
    """Return all names, e.g. ``paper/vit-b16``, in alphabetical order."""
    root = recipes_dir()
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.yaml"))


def find_recipe(name: str) -> Path:
    """Return the file of a shipped recipe, or `name` itself if it is a YAML file of the user's.

    Raises:
        ConfigError: If there is no such file and no such recipe; the message has the nearest name.
    """
    own = Path(name)
    if own.suffix in (".yaml", ".yml"):
        if own.is_file():
            return own
        raise ConfigError(
            f"recipe file {name} does not exist; mae recipes list shows the shipped ones"
        )
    if name not in recipe_names():
        raise unknown_name("recipe", name, recipe_names())
    return recipes_dir() / f"{name}.yaml"


def recipe_summary(path: Path) -> str:
    """Return the first comment line of a recipe."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return first.lstrip("# ").strip()
