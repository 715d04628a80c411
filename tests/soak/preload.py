"""Imported once by the warm parent: everything slow, so that its children start in no time."""

from __future__ import annotations

import ctypes
import sys
import warnings

import lightning
import torch

import datamodules
import mae.cli
import mae.commands.finetune
import mae.commands.pretrain
import mae.commands.training
import mae.tasks.finetune
import mae.tasks.pretrain

__all__ = ["datamodules", "lightning", "mae", "torch"]

_PR_SET_CHILD_SUBREAPER = 36

if sys.platform == "linux":
    # The orphans of killed children become ours and are reaped, whatever process 1 does.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")
