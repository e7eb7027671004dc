"""Networks for images: a small CNN, and a linear layer on a backbone whose weights are given."""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch import nn

from trainmaster_automl.errors import DataProblem


def make_network(parameters: Mapping[str, Any], classes: int, size: int, weights: str) -> nn.Module:
    """(images, 3, side, side) of 0 to 1 to (images, classes) of logits. Raises ``DataProblem``: no such family."""
    family = str(parameters.get("family", ""))
    dropout = float(parameters.get("dropout", 0.0))
    if family == "cnn":
        return _cnn(int(parameters.get("width", 16)), int(parameters.get("blocks", 3)), dropout, classes, size)
    if family == "transfer":
        return Transfer(weights, dropout, classes, size)
    raise DataProblem("There is no family %r of networks; there are cnn and transfer." % family)


def _cnn(width: int, blocks: int, dropout: float, classes: int, size: int) -> nn.Module:
    """Blocks of convolution, normalization and pooling, each twice as wide as the one before; then the mean of all places."""
    layers: list[nn.Module] = []
    channels, side = 3, size
    for block in range(blocks):
        out = width * 2**block
        layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        if side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        channels = out
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(channels * 4, classes)
    )


class Transfer(nn.Module):
    """A backbone in TorchScript, (images, 3, side, side) to (images, features), whose weights stay; and a linear layer."""

    def __init__(self, weights: str, dropout: float, classes: int, size: int) -> None:
        super().__init__()
        try:
            self.backbone = torch.jit.load(weights, map_location="cpu").eval()  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError, OSError) as error:
            raise DataProblem(
                "The weights %s are no TorchScript that can be read: %s" % (weights, str(error)[:200])
            ) from error
        for parameter in self.backbone.parameters():
            parameter.requires_grad_(requires_grad=False)
        try:
            with torch.inference_mode():
                features = self.backbone(torch.zeros(2, 3, size, size)).flatten(1).shape[1]
        except (RuntimeError, AttributeError, IndexError) as error:
            raise DataProblem(
                "The backbone does not take images of %d pixels a side: %s" % (size, str(error)[:200])
            ) from error
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(features, classes))

    def train(self, mode: bool = True) -> Transfer:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images).flatten(1))  # type: ignore[no-any-return]


class Served(nn.Module):
    """What is saved: pixels from 0 to 255, the color last, to the chances of the classes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images.permute(0, 3, 1, 2).float() / 255.0).softmax(1)  # type: ignore[no-any-return]
