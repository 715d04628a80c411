from __future__ import annotations

import pytest

import mae.recipe
from mae.errors import ConfigError
from mae.recipe import find_recipe, recipe_names, recipe_summary, recipes_dir

SHIPPED = [
    "demo/satellite-cpu",
    "finetune/small",
    "one-gpu/vit-b16",
    "one-gpu/vit-s16",
    "paper/vit-b16",
    "paper/vit-h14",
    "paper/vit-l16",
]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the directory of a pretended installed package without recipes."""
    folder = tmp_path / "site-packages" / "mae"
    folder.mkdir(parents=True)
    (folder / "recipe.py").touch()
    monkeypatch.setattr(mae.recipe, "__file__", str(folder / "recipe.py"))
    return folder


def test_recipes_dir_in_a_checkout_is_beside_the_package(package):
    (package.parent / "recipes").mkdir()
    assert recipes_dir() == package.parent / "recipes"


def test_recipes_dir_of_an_installed_package_wins_over_a_folder_beside_it(package):
    (package / "recipes").mkdir()
    (package.parent / "recipes").mkdir()
    assert recipes_dir() == package / "recipes"


def test_recipes_dir_with_nothing_there_says_to_reinstall(package):
    with pytest.raises(ConfigError, match=r"no recipes beside .*; reinstall"):
        recipes_dir()


def test_recipe_names_lists_what_is_shipped():
    assert set(SHIPPED) <= set(recipe_names())
    assert recipe_names() == sorted(recipe_names())


def test_find_recipe_by_name_returns_the_shipped_file():
    path = find_recipe("paper/vit-b16")
    assert path.parts[-3:] == ("recipes", "paper", "vit-b16.yaml")
    assert path.is_file()


def test_find_recipe_with_a_path_returns_the_users_own_file(tmp_path):
    own = tmp_path / "mine.yml"
    own.touch()
    assert find_recipe(str(own)) == own


def test_find_recipe_with_a_missing_file_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"mine\.yaml does not exist; mae recipes list"):
        find_recipe(str(tmp_path / "mine.yaml"))


def test_find_recipe_with_a_typo_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown recipe 'paper/vit-b6'.*'paper/vit-b16'"):
        find_recipe("paper/vit-b6")


@pytest.mark.parametrize("name", SHIPPED)
def test_recipe_summary_of_a_shipped_recipe_is_a_short_sentence(name):
    summary = recipe_summary(find_recipe(name))
    assert summary
    assert "#" not in summary
    assert len(summary) < 90
