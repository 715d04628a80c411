from __future__ import annotations

import pytest
import torch
import yaml

from mae.commands import finetune, pretrain
from mae.commands.run_directory import RunStart
from mae.recipe import find_recipe, recipe_names
from mae.tasks.pretrain import PretrainTask
from mae.weights import save_encoder

PRETRAINING = [name for name in recipe_names() if not name.startswith("finetune/")]
FINETUNING = [name for name in recipe_names() if name.startswith("finetune/")]


def test_recipes_lists_each_with_its_summary(mae):
    said = mae("recipes")
    assert said.status == 0
    assert said.out == mae("recipes", "list").out != ""
    assert [line.split()[0] for line in said.out.splitlines()] == recipe_names()
    assert "800 epochs of ImageNet-1k" in said.out


def test_recipes_show_prints_the_file(mae):
    said = mae("recipes", "show", "paper/vit-b16")
    assert said.out == find_recipe("paper/vit-b16").read_text(encoding="utf-8")


def test_recipes_copy_writes_the_file_and_says_how_to_run_it(mae, tmp_path):
    said = mae("recipes", "copy", "paper/vit-b16", "--to", tmp_path)
    assert said.status == 0
    text = (tmp_path / "vit-b16.yaml").read_text(encoding="utf-8")
    assert text == find_recipe("paper/vit-b16").read_text(encoding="utf-8")
    assert f"mae pretrain {tmp_path / 'vit-b16.yaml'} --data SHARDS" in said.out


def test_recipes_copy_of_a_finetuning_recipe_names_its_own_verb(mae, tmp_path):
    said = mae("recipes", "copy", "finetune/small", "--to", tmp_path)
    assert "mae finetune RUN --recipe" in said.out


def test_recipes_copy_into_a_directory_that_is_not_there_makes_it(mae, tmp_path):
    assert mae("recipes", "copy", "paper/vit-b16", "--to", tmp_path / "new").status == 0
    assert (tmp_path / "new" / "vit-b16.yaml").is_file()


def test_recipes_copy_over_a_file_is_refused(mae, tmp_path):
    (tmp_path / "vit-b16.yaml").write_text("mine", encoding="utf-8")
    said = mae("recipes", "copy", "paper/vit-b16")
    assert said.status == 1
    assert "vit-b16.yaml exists; choose another directory with --to" in said.err
    assert (tmp_path / "vit-b16.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("action", ["show", "copy"])
def test_recipes_without_a_name_says_where_names_are(mae, action):
    said = mae("recipes", action)
    assert said.status == 1
    assert said.err == f"mae: mae recipes {action} needs a name; mae recipes list shows them\n"


def test_recipes_with_a_typo_says_two_lines_with_the_nearest(mae):
    said = mae("recipes", "show", "paper/vitb16")
    assert said.status == 1
    first, second = said.err.splitlines()
    assert first == "mae: unknown recipe 'paper/vitb16' (did you mean 'paper/vit-b16'?)"
    assert second.startswith("known: ")


@pytest.mark.parametrize("name", PRETRAINING)
def test_every_pretraining_recipe_parses_and_instantiates(name, shards, tmp_path):
    """On the meta device: shapes and rules without 657 million numbers."""
    args = ["--config", str(find_recipe(name)), "--data.data_dir", str(shards)]
    args += ["--data.crop", "random_resized"]  # these images are smaller than the recipes'
    with torch.device("meta"):
        cli = pretrain.configure(args, RunStart(tmp_path, None), own=set())
    content = yaml.safe_load(find_recipe(name).read_text(encoding="utf-8"))
    assert cli.model.architecture["embed_dim"] == content["model"]["embed_dim"]
    assert cli.model.optim.blr == content["model"]["optim"]["blr"]
    assert cli.model.batch_size == content["data"]["batch_size"]
    side = content["model"]["img_size"]
    assert cli.datamodule.img_size == (side, side)
    assert next(cli.model.parameters()).is_meta


@pytest.mark.parametrize("name", FINETUNING)
def test_every_finetuning_recipe_parses_and_instantiates(name, labeled_shards, tmp_path):
    task = PretrainTask(img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2)
    weights = save_encoder(
        tmp_path / "e.safetensors", task.model.encoder, task.image_spec, info={"step": 0}
    )
    args = ["--config", str(find_recipe(name)), "--data.data_dir", str(labeled_shards)]
    args += ["--model.weights", str(weights), "--data.img_size", "16"]
    cli = finetune.configure(args, RunStart(tmp_path, None), own=set())
    assert cli.model.num_classes == 2
    assert cli.model.start == "weights"


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_a_header_that_says_how_to_run_it(name):
    text = find_recipe(name).read_text(encoding="utf-8")
    header = text[: text.index("\nseed_everything")]
    assert all(line.startswith("#") for line in header.strip().splitlines())
    for word in ("hardware", "expected", "run"):
        assert f"\n# {word} " in header, word


@pytest.mark.parametrize(
    ("name", "effective_batch", "epochs"),
    [("paper/vit-b16", 4096, 800), ("paper/vit-l16", 4096, 800), ("paper/vit-h14", 4096, 800)],
)
def test_paper_recipe_holds_the_numbers_of_table_8(name, effective_batch, epochs):
    content = yaml.safe_load(find_recipe(name).read_text(encoding="utf-8"))
    optim, data = content["model"]["optim"], content["data"]
    assert optim["name"] == "adamw"
    assert optim["blr"] == 1.5e-4
    assert optim["weight_decay"] == 0.05
    assert optim["betas"] == [0.9, 0.95]
    assert optim["warmup_ratio"] * data["epochs"] == 40
    assert data["epochs"] == epochs
    assert data["batch_size"] * 64 * content["trainer"]["accumulate_grad_batches"] == 4096
    assert (data["crop"], data["scale"], data["flips"]) == (
        "random_resized", [0.2, 1.0], "horizontal"
    )  # fmt: skip
    assert content["model"]["mask_ratio"] == 0.75
    assert content["model"]["norm_pix_loss"] is True
