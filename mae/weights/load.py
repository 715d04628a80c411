"""One door for reading weights: from a run, a checkpoint, an encoder file or a timm folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mae.encoder import Encoder
from mae.errors import ConfigError, WeightsError
from mae.model import MaskedAutoencoder
from mae.spec import ImageSpec
from mae.weights import checkpoint, native, timm_folder
from mae.weights.header import ENCODER_FIELDS, Header, describe_encoder
from mae.weights.keymap import Parts, split_parts
from mae.weights.report import LoadReport, load_part, require_same

ENCODER_FILE = Path("encoder") / "encoder.safetensors"


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A masked autoencoder in eval mode, what its pixels mean, and where it comes from."""

    model: MaskedAutoencoder
    spec: ImageSpec
    info: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LoadedEncoder:
    """An encoder in eval mode, what its pixels mean, and where it comes from."""

    encoder: Encoder
    spec: ImageSpec
    info: dict[str, Any]


def load_run(path: str | Path) -> LoadedModel:
    """Load a whole masked autoencoder on the CPU, in eval mode.

    Args:
        path: Run directory (its newest good checkpoint is taken) or a checkpoint.

    Raises:
        WeightsError: If nothing good is there, or there is an encoder only.
    """
    file = find_weights(Path(path), need_decoder=True)
    parts, header = _read(file)
    if not parts.decoder:
        raise WeightsError(
            f"{file} holds an encoder without a decoder, which cannot reconstruct; give the run "
            f"directory or one of its checkpoints"
        )
    model: MaskedAutoencoder = _build(MaskedAutoencoder, header.architecture, source=str(file))
    report = LoadReport(
        source=str(file),
        loaded=(
            load_part(model.encoder, parts.encoder, part="encoder", source=str(file)),
            load_part(model.decoder, parts.decoder, part="decoder", source=str(file)),
        ),
        ignored=tuple(parts.ignored.items()),
    )
    return LoadedModel(model=model.eval(), spec=header.spec, info=_info(header, file, report))


def load_encoder(path: str | Path) -> LoadedEncoder:
    """Load an encoder on the CPU, in eval mode.

    Args:
        path: Run directory (newest good checkpoint, else ``encoder/encoder.safetensors``), a
            checkpoint, an encoder file, or a timm folder that ``mae export`` wrote.

    Raises:
        WeightsError: If nothing good is there, or tensors do not fit the stated architecture.
    """
    file = find_weights(Path(path), need_decoder=False)
    parts, header = _read(file)
    architecture = header.encoder_architecture(source=str(file))
    encoder: Encoder = _build(Encoder, architecture, source=str(file))
    report = LoadReport(
        source=str(file),
        loaded=(load_part(encoder, parts.encoder, part="encoder", source=str(file)),),
        ignored=(("decoder", len(parts.decoder)), *parts.ignored.items()),
    )
    return LoadedEncoder(encoder=encoder.eval(), spec=header.spec, info=_info(header, file, report))


def init_from(
    path: str | Path, model: MaskedAutoencoder | Encoder, *, spec: ImageSpec | None = None
) -> LoadReport:
    """Start `model` from received weights.

    The decoder is taken if both sides have one and it is the same; otherwise it stays as it is
    initialised, and the report says so.

    Args:
        path: What `load_encoder` reads.
        model: Gets the values; keeps its mode, dtype and device.
        spec: Meaning of the images it will be trained on, compared with the file's.

    Raises:
        WeightsError: If sizes or widths differ; the message names them.  The model is unchanged.
        DataError: If `spec` gives stored values another meaning than the file's.
    """
    file = find_weights(Path(path), need_decoder=False)
    source = str(file)
    parts, header = _read(file)
    encoder = model if isinstance(model, Encoder) else model.encoder
    require_same(
        header.encoder_architecture(source=source),
        describe_encoder(encoder),
        source=source,
        names=ENCODER_FIELDS,
    )
    if spec is not None:
        header.spec.require_match(spec, here=f"weights {source}", there="these images")

    loaded = [load_part(encoder, parts.encoder, part="encoder", source=source)]
    ignored = list(parts.ignored.items())
    notes = []
    if isinstance(model, MaskedAutoencoder):
        reason = _why_not(parts.decoder, header, model)
        if reason:
            notes.append(f"the decoder is new: {reason}")
            ignored.append(("decoder", len(parts.decoder)))
        else:
            loaded.append(load_part(model.decoder, parts.decoder, part="decoder", source=source))
    else:
        ignored.append(("decoder", len(parts.decoder)))
    return LoadReport(
        source=source, loaded=tuple(loaded), ignored=tuple(ignored), notes=tuple(notes)
    )


def find_weights(path: Path, *, need_decoder: bool) -> Path:
    """Return the file or timm folder that `path` stands for.

    Args:
        path: Run directory, timm folder or file.
        need_decoder: Whether an encoder on its own is not enough.

    Raises:
        WeightsError: If there is nothing to load.
    """
    if not path.exists():
        raise WeightsError(f"{path} does not exist; give a run directory or a file of weights")
    if path.is_file() or timm_folder.is_timm_folder(path):
        return path
    encoder_file = path / ENCODER_FILE
    if not need_decoder and encoder_file.is_file() and not _has_checkpoints(path):
        return encoder_file
    if (path / "checkpoints").is_dir():
        return checkpoint.newest_checkpoint(path)
    raise WeightsError(
        f"{path} is neither a run directory (with checkpoints/) nor a timm folder (with "
        f"{timm_folder.CONFIG_NAME} and {timm_folder.WEIGHTS_NAME})"
    )


def _has_checkpoints(run: Path) -> bool:
    return any((run / "checkpoints").glob("*.ckpt"))


def _read(file: Path) -> tuple[Parts, Header]:
    if file.is_dir():
        state, header = timm_folder.state_and_header(file)
    elif file.suffix == ".safetensors":
        state, header = native.state_and_header(file)
    else:
        state, header = checkpoint.state_and_header(file)
    return split_parts(state, source=str(file)), header


def _build(kind: Any, architecture: Mapping[str, Any], *, source: str) -> Any:
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in architecture.items()}
    try:
        return kind(**settings)
    except (TypeError, ConfigError) as error:
        raise WeightsError(f"{source}: its architecture cannot be built: {error}") from error


def _why_not(decoder: Mapping[str, Tensor], header: Header, model: MaskedAutoencoder) -> str:
    """Return why a file's decoder cannot be taken, or an empty string."""
    if not decoder:
        return "the file has none"
    theirs = {name: tuple(tensor.shape) for name, tensor in decoder.items()}
    ours = {name: tuple(tensor.shape) for name, tensor in model.decoder.state_dict().items()}
    # Shapes don't show how a width is cut into heads.
    heads = {m.num_heads for m in model.decoder.modules() if hasattr(m, "num_heads")}
    same = theirs == ours and heads <= {header.architecture.get("decoder_num_heads")}
    return "" if same else "the file's has another architecture"


def _info(header: Header, file: Path, report: LoadReport) -> dict[str, Any]:
    return {
        **header.info,
        "architecture": header.architecture,
        "source": str(file),
        "report": str(report),
    }
