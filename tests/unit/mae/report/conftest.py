"""Run directories made up for the report: invented numbers in the real formats."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from mae.evaluate.metrics import Interval
from mae.evaluate.result import BudgetResult, Difference, ProbeResult, Row, save_probe

CONFIG = {
    "seed_everything": 0,
    "model": {
        "img_size": 64,
        "patch_size": 16,
        "embed_dim": 128,
        "depth": 4,
        "num_heads": 4,
        "decoder_embed_dim": 64,
        "decoder_depth": 2,
        "mask_ratio": 0.75,
        "optim": {"name": "muon", "blr": 0.0015},
    },
    "data": {"batch_size": 128},
}


def row(name, source, head, pooling, value, *, random=None, simple=None, notes=()):
    def difference(against, estimate):
        width = Interval(low=estimate - 0.03, high=estimate + 0.03)
        return Difference(against=against, estimate=estimate, interval=width)

    return Row(
        name=name,
        source=source,
        head=head,
        pooling=pooling,
        balanced_accuracy=value,
        interval=Interval(low=value - 0.04, high=value + 0.035),
        accuracy=value,
        recalls={"A": value, "B": value},
        vs_random=None if random is None else difference("random weights", random),
        vs_simple=None if simple is None else difference("colour mean+std, forest", simple),
        setting="C" if head == "linear" else "",
        chosen=0.1 if head == "linear" else None,
        grid=[0.01, 0.1, 1.0] if head == "linear" else [],
        notes=list(notes),
        seconds=0.5,
    )


def probe_result() -> ProbeResult:
    def rows(lift):
        return [
            row("most frequent class", "majority", "none", "", 0.2),
            row("raw pixels 8x8, linear", "pixels", "linear", "", 0.46 + lift),
            row("colour mean+std, forest", "colour", "forest", "", 0.55 + lift),
            row("random weights, linear CLS", "random", "linear", "cls", 0.54 + lift, simple=-0.01),
            row("random weights, kNN mean", "random", "knn", "mean", 0.58 + lift, simple=0.03),
            row("MAE, linear CLS", "mae", "linear", "cls", 0.63 + lift, random=0.09, simple=0.08),
            row(
                "MAE, kNN mean",
                "mae",
                "knn",
                "mean",
                0.53 + lift,
                random=-0.05,
                simple=-0.02,
                notes=["k 15 is at the edge of its grid 1 … 15"],
            ),
        ]

    return ProbeResult(
        weights_digest="ab" * 32,
        data_digest="cd" * 32,
        classes=["A tropical", "B arid"],
        split="test",
        num_train=2000,
        num_test=900,
        num_test_groups=31,
        test_counts={"A tropical": 400, "B arid": 500},
        seed=0,
        num_resamples=2000,
        budgets=[
            BudgetResult(
                budget=budget,
                num_labels=count,
                class_counts={"A tropical": count // 2, "B arid": count // 2},
                simple="colour mean+std, forest",
                rows=rows(lift),
                notes=[],
            )
            for budget, count, lift in (("10-per-class", 50, 0.0), ("2000", 2000, 0.16))
        ],
        sentences=[
            "Against random weights, pretraining is ahead in 1 of 2 readings, behind in 1, and "
            "not distinguishable in 0.",
            "linear CLS, 50 labels: 63.0, +9.0 points over random weights [+6.0, +12.0].",
        ],
        seconds=42.0,
        extraction_seconds=8.0,
    )


def write_metrics(run: Path, *, steps: int = 900) -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, steps).tolist()
    lines = ["step,name,value"]
    for step in range(0, steps + 1, 150):
        lines.append(f"{step},val/loss,{0.55 + 0.45 * math.exp(-step / 300)!r}")
        lines.append(f"{step},val/predict_zero,0.9987")
        lines.append(f"{step},val/predict_patch_mean,0.9987")
    for step in range(1, steps):
        lines.append(f"{step},train/loss,{0.56 + 0.47 * math.exp(-step / 280) + noise[step]!r}")
        lines.append(f"{step},train/images_per_s,{600.0 + step % 7}")
    (run / "metrics.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_manifest(shards: Path) -> None:
    shards.mkdir()
    fields = {
        "spec": {
            "channels": ["red", "green", "blue"],
            "dtype": "uint8",
            "mean": [82.1, 79.5, 61.25],
            "std": [51.0, 43.5, 44.125],
            "unit": "",
        },
        "shards": [
            {"path": "train-000000.tar", "split": "train", "num_samples": 5000},
            {"path": "train-000001.tar", "split": "train", "num_samples": 1234},
            {"path": "val-000000.tar", "split": "val", "num_samples": 300},
        ],
        "left_out": {"truncated": 2},
        "source": "blue-marble",
    }
    (shards / "manifest.json").write_text(json.dumps(fields), encoding="utf-8")


def write_pictures(run: Path) -> None:
    folder = run / "reconstruct"
    folder.mkdir()
    Image.new("RGB", (64, 128), (80, 120, 90)).save(folder / "val-mask75-seed0.png")
    image = {"masked_mse": 0.446, "interpolated_mean": 0.436, "mean_fill": 0.633}
    numbers = {
        "title": "Reconstruction of 2 val images, 75 % of patches removed",
        "warning": "",
        "sentences": ["Error on the removed pixels of 2 images: model 0.446."],
        "images": [{"name": "tile-1", **image}, {"name": "tile-2", **image}],
    }
    (folder / "val-mask75-seed0.json").write_text(json.dumps(numbers), encoding="utf-8")


def write_export(run: Path) -> None:
    folder = run / "encoder" / "timm"
    folder.mkdir(parents=True)
    differences = {"tokens": 2.4e-6, "cls": 1.1e-6, "mean": 4.0e-7}
    parity = {
        "tolerance": 1e-5,
        "compared": {"real": {"num_images": 16, "max_abs_difference": differences}},
        "loaded_by": "timm",
    }
    (folder / "parity.json").write_text(json.dumps(parity), encoding="utf-8")


def write_environment(run: Path) -> None:
    start = {
        "started": "2026-01-01T10:00:00+00:00",
        "command": ["mae", "pretrain", "demo/satellite-cpu"],
        "processor": "Some CPU",
        "cores": 2,
        "torch_threads": 2,
        "devices": [],
        "packages": {"torch": "2.6.0", "timm": "1.0.26"},
        "seconds": 211.4,
        "peak_memory_mib": 1420,
    }
    (run / "environment.json").write_text(json.dumps({"starts": [start]}), encoding="utf-8")


@pytest.fixture
def minimal_run(tmp_path):
    """A run that was only just started: a configuration and nothing else."""
    run = tmp_path / "minimal"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    return run


@pytest.fixture
def complete_run(tmp_path):
    """A run with every part that the page can show."""
    run = tmp_path / "complete"
    run.mkdir()
    write_manifest(tmp_path / "shards")
    config = {**CONFIG, "data": {"batch_size": 128, "data_dir": str(tmp_path / "shards")}}
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    write_metrics(run)
    write_environment(run)
    write_pictures(run)
    write_export(run)
    save_probe(probe_result(), run / "probe.json")
    return run
