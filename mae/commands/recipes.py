"""``mae recipes``: what is shipped, as it is, and as a copy to change."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mae.errors import ConfigError
from mae.recipe import find_recipe, recipe_names, recipe_summary


def recipes(
    action: Literal["list", "show", "copy"] = "list", name: str | None = None, *, to: str = "."
) -> None:
    """List the shipped recipes, show one, or copy one to change it.

    Args:
        action: What to do.
        name: Which recipe, for show and copy.
        to: Directory that the copy goes to.

    Raises:
        ConfigError: If the recipe is unknown, not named, or the copy would overwrite a file.
    """
    if action == "list":
        width = max(map(len, recipe_names()))
        for recipe in recipe_names():
            print(f"{recipe:<{width}}  {recipe_summary(find_recipe(recipe))}")
        return
    if name is None:
        raise ConfigError(f"mae recipes {action} needs a name; mae recipes list shows them")
    source = find_recipe(name)
    text = source.read_text(encoding="utf-8")
    if action == "show":
        print(text, end="")
        return
    target = Path(to) / source.name
    if target.exists():
        raise ConfigError(f"{target} exists; choose another directory with --to")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    command = f"mae pretrain {target} --data SHARDS"
    if name.startswith("finetune/"):
        command = f"mae finetune RUN --recipe {target} --data LABELLED_SHARDS"
    print(f"{target}  (run it with: {command})")
