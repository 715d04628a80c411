from __future__ import annotations

import lightning
import pytest
import torch

from datamodules import UnlabeledShards
from mae.commands.training import quiet_lightning
from mae.errors import ConfigError
from mae.masking import keyed_noise
from mae.optim import OptimConfig
from mae.tasks.pretrain import PretrainTask

TINY = {
    "img_size": 16,
    "patch_size": 8,
    "embed_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
    "mask_ratio": 0.5,
}


def make_task(**changes) -> PretrainTask:
    torch.manual_seed(0)
    return PretrainTask(**TINY | changes)


def make_trainer(tmp_path, **options) -> lightning.Trainer:
    quiet_lightning()
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )


@pytest.fixture
def batch():
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return {"image": images, "sample": torch.tensor([5, 9, 2**33])}


def test_training_step_with_two_masks_is_the_mean_of_the_two_single_losses(batch):
    task = make_task(masks_per_image=2, seed=4).double()
    batch["image"] = batch["image"].double()
    singles = [
        task.model(batch["image"], noise=keyed_noise(4, batch["sample"], 4, view=view))
        for view in range(2)
    ]
    both = task(batch, seed=4, masks_per_image=2)
    expected = (singles[0].loss + singles[1].loss) / 2
    torch.testing.assert_close(both.loss, expected, atol=1e-12, rtol=0)
    assert torch.equal(both.masking.mask, torch.cat([single.masking.mask for single in singles]))


def test_forward_of_a_sample_does_not_depend_on_its_batch_mates(batch):
    task = make_task().eval()
    whole = task(batch, seed=1).masking.mask
    alone = task({name: value[1:2] for name, value in batch.items()}, seed=1).masking.mask
    assert torch.equal(whole[1:2], alone)


def test_forward_with_another_seed_draws_other_masks():
    task = make_task()
    many = {"image": torch.zeros(64, 3, 16, 16), "sample": torch.arange(64)}
    assert not torch.equal(task(many, seed=1).masking.mask, task(many, seed=2).masking.mask)


@pytest.mark.parametrize("masks", [0, -1])
def test_pretrain_task_without_a_mask_per_image_is_refused(masks):
    with pytest.raises(ConfigError, match=rf"model\.masks_per_image is {masks}; allowed: 1 or"):
        make_task(masks_per_image=masks)


def test_effective_batch_counts_masks_and_accumulation(tmp_path, shards, capsys):
    data = UnlabeledShards(data_dir=str(shards), img_size=16, batch_size=4, steps=2)
    task = make_task(batch_size=4, masks_per_image=2, optim=OptimConfig(blr=0.25))
    trainer = make_trainer(tmp_path, accumulate_grad_batches=3)
    trainer.fit(task, datamodule=data)
    assert task.effective_batch == 24
    assert trainer.optimizers[0].param_groups[0]["initial_lr"] == 0.25 * 24 / 256
    assert task.samples_seen == 2 * 4 * 3  # images are counted once
    said = capsys.readouterr().out
    assert "2 steps of 24 masked images (4 images x 2 masks x 3 accumulated x 1 processes)" in said
    assert "adamw, base lr -> actual lr: 0.25 -> 0.0234375" in said


def test_setup_with_other_channels_than_the_shards_names_both_sides(tmp_path, gray_shards):
    data = UnlabeledShards(data_dir=str(gray_shards), img_size=16, batch_size=4, steps=1)
    with pytest.raises(ConfigError) as caught:
        make_trainer(tmp_path).fit(make_task(in_chans=3), datamodule=data)
    assert "the shards hold 1 channels" in str(caught.value)
    assert "model.in_chans is 3; pass --model.in_chans 1" in str(caught.value)


def test_validation_counts_every_image_once_and_equally(tmp_path, shards):
    """With a smaller last batch, the mean is that over images, not over batches."""
    data = UnlabeledShards(data_dir=str(shards), img_size=16, steps=1)
    views = data.dataset("val")
    data.val_batch_size = len(views) - 1
    task = make_task()
    found = make_trainer(tmp_path).validate(task, datamodule=data, verbose=False)[0]
    images = data.normalize(views.batch(range(len(views)))["image"])
    noise = keyed_noise(0x5EED, torch.arange(len(views)), 4)
    with torch.no_grad():
        loss = task.model(images, noise=noise).loss
        tokens = task.model.encode(images)
    assert found["val/loss"] == pytest.approx(float(loss), rel=1e-5)
    spread = tokens[:, 1:].mean(1).std(0, correction=0).mean()
    assert found["val/feature_std"] == pytest.approx(float(spread), rel=1e-5)
    assert found["val/predict_zero"] == pytest.approx(1 - 1 / 192, rel=1e-4)  # 8 x 8 x 3 values


def test_validation_does_not_depend_on_the_runs_seed(tmp_path, shards):
    data = UnlabeledShards(data_dir=str(shards), img_size=16, steps=1)
    losses = [
        make_trainer(tmp_path).validate(make_task(seed=seed), datamodule=data, verbose=False)[0]
        for seed in (0, 1)
    ]
    assert losses[0] == losses[1]


def test_on_load_checkpoint_of_another_architecture_names_the_difference():
    saved = {}
    task = make_task()
    task.trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    task.on_save_checkpoint(saved)
    with pytest.raises(ConfigError, match=r"model\.depth: 1 in the checkpoint, 2 here"):
        make_task(depth=2).on_load_checkpoint(saved)


def test_on_load_checkpoint_of_others_points_to_init_weights():
    with pytest.raises(ConfigError, match="not written by mae pretrain; use --init-weights"):
        make_task().on_load_checkpoint({"state_dict": {}})


def test_on_save_checkpoint_writes_plain_values_only(tmp_path):
    task = make_task(img_size=(16, 24))
    task.trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    content = {"state_dict": task.state_dict()}
    task.on_save_checkpoint(content)
    torch.save(content, tmp_path / "x.ckpt")
    header = torch.load(tmp_path / "x.ckpt", weights_only=True)["domain_mae"]
    assert header["architecture"]["img_size"] == [16, 24]
    assert header["samples_seen"] == 0
