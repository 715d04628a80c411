"""Who may import whom.

The table is the design; a new edge is a decision, not an accident, and fails here first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(p for package in ("mae", "datamodules") for p in (ROOT / package).rglob("*.py"))
MAX_LINES = 350

# Layers of `mae` from the bottom; a module imports from layers below it and from its own.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"mae", "mae.errors", "mae.files", "mae.spec"}),
    frozenset({"mae.patches", "mae.masking", "mae.posembed", "mae.pooling", "mae.init"}),
    frozenset({"mae.encoder", "mae.decoder", "mae.loss"}),
    frozenset({"mae.model"}),
    frozenset({"mae.presets", "mae.classifier", "mae.optim", "mae.recipe"}),
    frozenset({"mae.weights"}),
    frozenset({"mae.tasks", "mae.evaluate", "mae.inspect"}),
    frozenset({"mae.report"}),
    frozenset({"mae.commands"}),
    frozenset({"mae.cli"}),
)
# Inside the layer of tasks, evaluate and inspect nobody imports another.
APART = frozenset({"mae.tasks", "mae.evaluate", "mae.inspect"})
# The demo types the commands of a user, so it calls what a user calls.
UPWARD = {("mae.commands.demo", "mae.cli")}
FOR_DATA = frozenset({"mae.errors", "mae.files", "mae.spec"})
HEAVY = frozenset({"torch", "torchvision", "timm", "lightning", "jsonargparse", "sklearn", "numpy"})


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, *, only_at_import_time: bool = False) -> Iterator[str]:
    """Yield what is imported; those under TYPE_CHECKING count, for they are dependencies too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif (only_at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)) or (
            only_at_import_time
            and isinstance(node, ast.If)
            and "TYPE_CHECKING" in ast.dump(node.test)
        ):
            continue
        else:
            yield from imports(node, only_at_import_time=only_at_import_time)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part(name: str) -> str:
    """Return the module or package of `mae` that a dotted name belongs to."""
    known = frozenset().union(*LAYERS)
    head = ".".join(name.split(".")[:2])
    return head if head in known else name.split(".")[0]


def height(name: str) -> int:
    (found,) = (number for number, layer in enumerate(LAYERS) if part(name) in layer)
    return found


MAE_FILES = [path for path in FILES if name_of(path).split(".")[0] == "mae"]
DATA_FILES = [path for path in FILES if name_of(path).split(".")[0] == "datamodules"]


def test_every_module_of_mae_has_a_layer():
    known = frozenset().union(*LAYERS)
    heads = {".".join(name_of(path).split(".")[:2]) for path in MAE_FILES}
    assert heads <= known, f"give a layer to {sorted(heads - known)}"


@pytest.mark.parametrize("path", MAE_FILES, ids=name_of)
def test_mae_imports_downwards_only(path):
    here = name_of(path)
    if here == "mae":
        return  # names for users, resolved when asked for
    wrong = []
    for target in imports(parsed(path)):
        if target.split(".")[0] != "mae" or target == "mae.__version__":
            continue
        is_upward = height(target) > height(here) or (part(target) == "mae" and here != "mae")
        is_sideways = {part(here), part(target)} <= APART and part(here) != part(target)
        if (is_upward or is_sideways) and not any(
            here == source and target.startswith(goal) for source, goal in UPWARD
        ):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("path", MAE_FILES, ids=name_of)
def test_mae_knows_the_data_in_commands_only(path):
    if part(name_of(path)) != "mae.commands":
        assert [t for t in imports(parsed(path)) if t.split(".")[0] == "datamodules"] == []


@pytest.mark.parametrize("path", DATA_FILES, ids=name_of)
def test_datamodules_know_errors_files_and_spec_only(path):
    targets = {t for t in imports(parsed(path)) if t.split(".")[0] == "mae"}
    assert {".".join(target.split(".")[:2]) for target in targets} <= FOR_DATA


@pytest.mark.parametrize(
    "name", ["mae/__init__.py", "mae/cli.py", "mae/errors.py", "mae/recipe.py"]
)
def test_light_modules_import_nothing_heavy(name):
    tree = parsed(ROOT / name)
    found = {target.split(".")[0] for target in imports(tree, only_at_import_time=True)}
    assert found & HEAVY == set()
    assert "datamodules" not in found


@pytest.mark.parametrize(
    "path", [p for p in MAE_FILES if part(name_of(p)) == "mae.commands"], ids=name_of
)
def test_commands_import_nothing_heavy_before_they_are_called(path):
    """Training verbs are classes of Lightning's; all others answer --help at once."""
    if path.stem in ("pretrain", "finetune", "training"):
        return
    found = {target.split(".")[0] for target in imports(parsed(path), only_at_import_time=True)}
    assert found & (HEAVY - {"jsonargparse"}) == set()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_readable_in_one_sitting(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_modules_open_with_what_they_are_for(path):
    assert ast.get_docstring(parsed(path))
