"""The wheel as a user gets it: built, installed and run where there is no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mae import __version__

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.wheel


def run(*command: str, cwd: Path, target: Path | None = None) -> str:
    """Run Python with only `target` added to its path; return what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    if target is not None:
        environment["PYTHONPATH"] = str(target)
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    arguments = ["--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    run("-m", "build", *arguments, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Return a directory that holds the installed wheel and nothing else."""
    target = tmp_path_factory.mktemp("installed") / "site"
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(target)]
    run("-m", "pip", "install", *options, str(wheel), cwd=target.parent)
    return target


def test_wheel_holds_every_recipe_module_and_data_file_and_no_tests(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    recipes = {
        f"mae/recipes/{p.relative_to(ROOT / 'recipes')}" for p in ROOT.glob("recipes/**/*.yaml")
    }
    modules = {
        str(path.relative_to(ROOT))
        for package in ("mae", "datamodules")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(recipes) >= 7
    assert recipes <= names
    assert modules <= names
    assert {name.split("/")[0] for name in names} == {
        "mae",
        "datamodules",
        f"domain_mae-{__version__}.dist-info",
    }


def test_wheel_carries_licence_and_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"domain_mae-{__version__}.dist-info"
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in names
    assert "mae = mae.cli:main" in entry_points


def test_wheel_outside_the_checkout_lists_its_own_recipes(installed, tmp_path):
    where = run("-c", "import mae; print(mae.__file__)", cwd=tmp_path, target=installed)
    assert Path(where.strip()) == installed / "mae" / "__init__.py"
    listed = run("-m", "mae.cli", "recipes", "list", cwd=tmp_path, target=installed)
    assert "paper/vit-b16" in listed
    assert "demo/satellite-cpu" in listed
    code = "from mae.recipe import find_recipe; print(find_recipe('paper/vit-b16'))"
    found = Path(run("-c", code, cwd=tmp_path, target=installed).strip())
    assert found == installed / "mae" / "recipes" / "paper" / "vit-b16.yaml"


def test_wheel_outside_the_checkout_shows_help_and_version(installed, tmp_path):
    assert "usage: mae COMMAND" in run("-m", "mae.cli", "--help", cwd=tmp_path, target=installed)
    said = run("-m", "mae.cli", "--version", cwd=tmp_path, target=installed)
    assert said == f"domain-mae {__version__}\n"


def test_wheel_command_of_the_installed_script_runs(installed, tmp_path):
    script = installed / "bin" / "mae"
    assert "usage: mae COMMAND" in run(str(script), "--help", cwd=tmp_path, target=installed)


def test_checkout_finds_its_recipes_beside_the_package(tmp_path):
    code = "from mae.recipe import find_recipe; print(find_recipe('paper/vit-b16'))"
    found = run("-c", code, cwd=tmp_path, target=ROOT)
    assert Path(found.strip()) == ROOT / "recipes" / "paper" / "vit-b16.yaml"
