"""Weights in and out: one file per format, one table of names, one strict report."""

from __future__ import annotations

from mae.weights.checkpoint import checkpoint_header, newest_checkpoint, read_checkpoint
from mae.weights.load import LoadedEncoder, LoadedModel, init_from, load_encoder, load_run
from mae.weights.native import save_encoder
from mae.weights.parity import measure_parity, require_parity
from mae.weights.report import LoadReport
from mae.weights.timm_folder import save_timm_folder

__all__ = [
    "LoadReport",
    "LoadedEncoder",
    "LoadedModel",
    "checkpoint_header",
    "init_from",
    "load_encoder",
    "load_run",
    "measure_parity",
    "newest_checkpoint",
    "read_checkpoint",
    "require_parity",
    "save_encoder",
    "save_timm_folder",
]
