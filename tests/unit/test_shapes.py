"""The shapes written in signatures, checked while the method runs.

In a process of its own: the check is installed before the first import, and other tests pass wrong
shapes on purpose to read our own messages.
"""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from jaxtyping import install_import_hook, TypeCheckError

METHOD = ["patches", "masking", "posembed", "encoder", "decoder", "loss", "model", "pooling",
          "classifier", "tasks.diagnostics", "inspect.reconstruct"]
install_import_hook([f"mae.{name}" for name in METHOD], "beartype.beartype")

import torch
from mae.classifier import Classifier
from mae.inspect.reconstruct import reconstruct
from mae.masking import keyed_noise
from mae.model import MaskedAutoencoder
from mae.pooling import pool
from mae.tasks.diagnostics import trivial_losses

SMALL = dict(embed_dim=16, depth=1, num_heads=2, decoder_embed_dim=8, decoder_depth=1,
             decoder_num_heads=2)
for img_size, patch_size, chans in [((16, 24), (8, 8), 1), ((12, 12), (3, 6), 4)]:
    for norm_pix_loss in (True, False):
        model = MaskedAutoencoder(img_size=img_size, patch_size=patch_size, in_chans=chans,
                                  norm_pix_loss=norm_pix_loss, **SMALL)
        images = torch.randn(3, chans, *img_size)
        noise = keyed_noise(0, torch.arange(3), model.encoder.num_patches)
        output = model(images, noise=noise)
        output.loss.backward()
        trivial_losses(model, images, output.masking)
        reconstruct(model, images, noise)
        for pooling in ("cls", "mean"):
            pool(model.encode(images), pooling)
        Classifier(model.encoder, num_classes=3, global_pool="mean")(images)

try:
    pool(torch.zeros(3, 4), "mean")
except TypeCheckError:
    print("checked")
"""


def test_method_keeps_the_shapes_of_its_signatures():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "checked"
