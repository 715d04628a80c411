"""The streaming data module in real Lightning runs: length, order, resume, ranks, workers."""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

from datamodules.ledger import LEDGER_FILE
from datamodules.stream.samples import Reader, ShardStream
from datamodules.stream.streamed import StreamedShards
from mae.errors import ConfigError, DataError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*",
    "ignore:.*GPU available but not used.*",
    "ignore:.*treespec, LeafSpec.*",  # Lightning 2.6 on torch 2.14
    "ignore:Be aware that when using `ckpt_path`, callbacks",
)


class Recorder(LightningModule):
    """Writes down what it is given; its one weight sums what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.positions: list[int] = []
        self.keys: list[str] = []
        self.means: list[float] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        assert not batch["is_padding"].any()
        self.positions += batch["sample"].tolist()
        self.keys += batch["key"]
        self.means += batch["image"].mean(dim=(1, 2, 3)).tolist()
        return (self.weight - batch["image"].mean()) ** 2

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        raise AssertionError("a stream has no validation images")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a brace list of four shards of 5, 3, 4 and 6 images."""
    folder = tmp_path_factory.mktemp("stream")
    for shard, size in enumerate((5, 3, 4, 6)):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(size):
                pixels = np.random.default_rng(100 * shard + i).integers(0, 256, (12, 10, 3))
                file = io.BytesIO()
                Image.fromarray(pixels.astype(np.uint8)).save(file, "png")
                info = tarfile.TarInfo(f"{shard}-{i}.png")
                info.size = file.tell()
                file.seek(0)
                tar.addfile(info, file)
    return f"{folder}/{{0..3}}.tar"


ALL = {f"{shard}-{i}" for shard, size in enumerate((5, 3, 4, 6)) for i in range(size)}


def module(urls: str | list[str], **options: Any) -> StreamedShards:
    settings: dict[str, Any] = {"img_size": 8, "batch_size": 3}
    if not {"steps", "samples", "epochs"} & options.keys():
        settings["steps"] = 6
    return StreamedShards(urls=urls, **{**settings, **options})


def fit(data: StreamedShards, root: Path, **options: Any) -> Recorder:
    recorder = Recorder()
    checkpoint = options.pop("ckpt_path", None)
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": root,
    }
    Trainer(**{**settings, **options}).fit(
        recorder, datamodule=data, ckpt_path=checkpoint, weights_only=True
    )
    return recorder


def as_rank(data: StreamedShards, rank: int, world_size: int) -> StreamedShards:
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        global_rank=rank, world_size=world_size, accumulate_grad_batches=1, training=True
    )
    return data


def train_batches(data: StreamedShards) -> list[dict[str, Any]]:
    return [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]


def endless(stream: ShardStream, reader: Reader) -> Iterator[str]:
    return (sample.key for number in itertools.count() for sample in stream.epoch(number, reader))


def keys(data: StreamedShards) -> list[str]:
    return [key for batch in train_batches(data) for key in batch["key"]]


def test_fit_sees_each_image_once_per_epoch_in_another_order(urls: str, tmp_path: Path) -> None:
    data = module(urls, steps=12)
    recorder = fit(data, tmp_path, val_check_interval=4)
    assert recorder.positions == list(range(36))
    first, second = recorder.keys[:18], recorder.keys[18:]
    assert set(first) == set(second) == ALL
    assert first != second
    assert np.ptp(recorder.means) > 0
    assert data.state_dict()["samples_consumed"] == 36


@pytest.mark.parametrize(
    ("budget", "accumulate", "batches"),
    [({"steps": 3}, 2, 6), ({"samples": 18}, 1, 6), ({"samples": 19}, 4, 8)],
)
def test_fit_length_is_the_budget(
    urls: str, tmp_path: Path, budget: dict[str, Any], accumulate: int, batches: int
) -> None:
    recorder = fit(module(urls, **budget), tmp_path, accumulate_grad_batches=accumulate)
    assert len(recorder.positions) == 3 * batches
    assert recorder.trainer.global_step == batches // accumulate


def test_fit_resumed_goes_on_with_the_position_in_another_order(
    urls: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saver = ModelCheckpoint(tmp_path / "c", every_n_train_steps=1, save_top_k=-1, filename="{step}")
    whole = fit(
        module(urls, steps=8, crop="center", flips="none"),
        tmp_path,
        callbacks=[saver],
        enable_checkpointing=True,
    )
    said = capsys.readouterr().out
    assert said.count("not exactly resumable; for exact resume run `mae index`") == 1
    assert said.count("measured on the first 18 images: 3 x uint8 (red, green, blue)") == 1
    orders = []
    for _ in range(2):
        data = module(urls, steps=8, crop="center", flips="none")
        rest = fit(data, tmp_path, ckpt_path=tmp_path / "c" / "step=2.ckpt")
        assert rest.positions == list(range(6, 24))
        assert set(rest.keys) == ALL  # a whole epoch
        orders.append(rest.keys)
    assert orders[0] == orders[1]  # the same resume is the same run
    assert orders[0][:12] != whole.keys[6:18]
    assert orders[0][:18] != whole.keys[:18]
    assert "resumed at image 6 (resume number 1)" in capsys.readouterr().out


def test_load_state_dict_each_resume_has_its_own_epochs(urls: str) -> None:
    data = module(urls)
    orders = [keys(data)]
    for _ in range(2):
        state = data.state_dict() | {"samples_consumed": 0, "batches_consumed": 0}
        data = module(urls)
        data.load_state_dict(json.loads(json.dumps(state)))
        orders.append(keys(data))
    assert data.resumes == 2
    assert {len(order) for order in orders} == {18}
    assert len({tuple(order) for order in orders}) == 3


def test_load_state_dict_keeps_the_spec_of_the_run(urls: str) -> None:
    state = module(urls).state_dict()
    state["spec"]["mean"] = [1.0, 2.0, 3.0]
    data = module(urls, measured_images=2)
    data.load_state_dict(state)
    assert data.normalization.mean == (1.0, 2.0, 3.0)
    measured_before = module(urls)
    _ = measured_before.spec
    state["spec"]["dtype"] = "uint16"
    with pytest.raises(DataError, match=r"dtype: 'uint8' in .*'uint16' in the che"):
        measured_before.load_state_dict(state)


def test_load_state_dict_other_shards_or_seed_are_refused_by_name(urls: str) -> None:
    state = module(urls).state_dict()
    for data, words in (
        (module(urls, seed=1), "seed: 0 in the checkpoint, 1 now"),
        (module(urls.replace("{0..3}", "{0..2}")), "data: "),
    ):
        with pytest.raises(DataError, match=words):
            data.load_state_dict(state)
    data.data_reset = True
    data.load_state_dict(state)


def test_fingerprint_of_a_signed_url_does_not_change_with_its_signature() -> None:
    one, two = (module(f"https://host/{{0..3}}.tar?signature={n}") for n in (1, 2))
    assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (2, 0), (3, 0), (2, 2), (3, 2)])
def test_train_dataloader_ranks_and_workers_read_their_shares(
    urls: str, world_size: int, workers: int
) -> None:
    count, positions = world_size * max(workers, 1), []
    for rank in range(world_size):
        data = as_rank(
            module(urls, samples=12, batch_size=1, num_workers=workers), rank, world_size
        )
        batches = train_batches(data)
        assert len(batches) == 12 // world_size  # all ranks make the same number of steps
        positions += [int(batch["sample"]) for batch in batches]
        shares = [endless(data.stream, Reader(n, count)) for n in range(rank, count, world_size)]
        assert [batch["key"][0] for batch in batches] == [
            next(shares[step % len(shares)]) for step in range(len(batches))
        ]
    assert sorted(positions) == list(range(12))


@pytest.mark.slow
def test_train_dataloader_start_method_changes_nothing(urls: str) -> None:
    orders = [
        keys(module(urls, num_workers=2, multiprocessing_context=start, seed=seed))
        for start, seed in (("fork", 0), ("fork", 0), ("spawn", 0), ("fork", 1))
    ]
    assert orders[0] == orders[1] == orders[2]
    assert orders[0] != orders[3]


def test_train_dataloader_iterated_again_begins_anew(urls: str) -> None:
    loader = module(urls, num_workers=2).train_dataloader()
    first, second = ([batch["key"] for batch in loader] for _ in range(2))
    assert first == second


def test_fit_bad_images_are_replaced_counted_and_written_down(
    urls: str, tmp_path: Path, break_images: Callable[[str, int], str]
) -> None:
    data = module(break_images(urls, 1), samples=36)
    assert len(fit(data, tmp_path).keys) == 36
    assert data.bad.by_reason() == {"damaged": 2}
    assert "0.tar" in (tmp_path / LEDGER_FILE).read_text()


def test_fit_many_bad_images_stop_the_run_with_reasons(
    urls: str, tmp_path: Path, break_images: Callable[[str, int], str]
) -> None:
    with pytest.raises(DataError, match=r"\d+ of .*x damaged.*max_bad_fraction.*0\.tar"):
        fit(module(break_images(urls, 4), steps=50), tmp_path)


@pytest.fixture
def break_images(tmp_path: Path) -> Callable[[str, int], str]:
    """Return a function that copies shards and damages the first images of the first one."""

    def copy(urls: str, count: int) -> str:
        source = Path(urls).parent
        for path in source.glob("*.tar"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        data, place = bytearray((tmp_path / "0.tar").read_bytes()), 0
        for _ in range(count):
            place = data.index(b"IDAT", place) + 8
            data[place : place + 16] = bytes(16)
        (tmp_path / "0.tar").write_bytes(data)
        return f"{tmp_path}/{{0..3}}.tar"

    return copy


def test_fit_cut_shard_stops_the_run_and_names_it(
    urls: str, tmp_path: Path, break_images: Callable[[str, int], str]
) -> None:
    copied = break_images(urls, 0)
    path = tmp_path / "3.tar"
    path.write_bytes(path.read_bytes()[:-10240])
    for workers in (0, 1):
        with pytest.raises(DataError, match=r"3\.tar is cut or damaged"):
            fit(module(copied, steps=20, num_workers=workers, measured_images=4), tmp_path)


def test_setup_says_what_few_shards_cost(urls: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = as_rank(module(urls, num_workers=4), 0, 2)
    data.setup("fit")
    data.setup("fit")
    said = capsys.readouterr().out
    # 18 PNGs of some 450 bytes
    assert re.search(
        r"1,000 undecoded .* 512 MiB .*: about 0 MiB in each of 8 readers, \d MiB", said
    )
    assert said.count("4 shards for 8 readers (2 processes x 4 workers): each shard is read 2") == 1
    other = as_rank(module(urls, num_workers=4), 1, 2)
    other.setup("fit")
    assert capsys.readouterr().out == ""


def test_setup_unmeasured_names_the_most_that_shuffling_takes(
    urls: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(module(urls).spec.to_dict()))
    options: dict[str, Any] = {"num_workers": 2, "shuffle_mib": 20}
    module(urls, spec_file=str(tmp_path / "spec.json"), **options).setup("fit")
    assert "up to 20 MiB in each of 2 readers, 40 MiB in all" in capsys.readouterr().out


def test_init_pipe_is_refused_unless_allowed(urls: str, tmp_path: Path) -> None:
    command = f"pipe:touch {tmp_path}/ran; cat {urls.replace('{0..3}', '0')}"
    with pytest.raises(ConfigError, match=r"shell command.*--data\.allow_pipe true"):
        module(command)
    assert not (tmp_path / "ran").exists()
    data = module(command, allow_pipe=True, samples=5)
    assert set(keys(data)) == {key for key in ALL if key.startswith("0-")}
    assert (tmp_path / "ran").exists()


def test_init_spec_file_stands_for_measuring(urls: str, tmp_path: Path) -> None:
    spec = module(urls).spec.to_dict() | {"mean": [7.0, 8.0, 9.0]}
    for number, content in enumerate((spec, {"format": "domain-mae-shards", "spec": spec})):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(content))
        assert module(urls, spec_file=str(path)).spec.mean == (7.0, 8.0, 9.0)
    (tmp_path / "bad.json").write_text("[1]")
    for name in ("bad.json", "absent.json"):
        with pytest.raises(DataError, match=f"spec_file .*{name}"):
            module(urls, spec_file=str(tmp_path / name))


def test_init_missing_shards_are_listed_with_what_is_there(urls: str) -> None:
    with pytest.raises(DataError, match=r"2 of 6 shards.*/4\.tar, .*/5\.tar; .* holds 0\.tar, 1"):
        module(urls.replace("{0..3}", "{0..5}"))
    with pytest.raises(DataError, match="1 of 1 shards are no files"):
        module(str(Path(urls).parent))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 2}, "epochs is 2, but nobody knows .*samples = epochs x images, or steps = "),
        ({"steps": None}, "exactly one of steps, samples"),
        ({"steps": 3, "samples": 9}, "given 2 times"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"measured_images": 0}, "measured_images is 0"),
        ({"shuffle_buffer": 0}, "shuffle_buffer is 0"),
        ({"flips": "dihedral", "img_size": (8, 4)}, "square"),
        ({"urls": []}, "no shards"),
        ({"urls": "s3://bucket/{0..3}.tar"}, "cannot be streamed"),
        ({"urls": "{0..3.tar"}, "braces"),
        ({"decode": "quick"}, "unknown decode 'quick'"),
    ],
)
def test_init_impossible_setting_is_refused(urls: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        module(options.pop("urls", urls), **options).train_dataloader()


def test_spec_images_smaller_than_a_random_crop_are_refused_at_the_start(urls: str) -> None:
    data = module(urls, crop="random", img_size=11)
    with pytest.raises(ConfigError, match="smallest of the first 18 images have 12 x 10 px"):
        data.setup("fit")
