"""A trial on images: trains a network with early stopping on a held-out part; the final run tests and saves it."""

from __future__ import annotations

import copy
import json
import math
import os
import time
import warnings
from typing import Any, Mapping

import numpy as np
import torch
from sklearn.model_selection import StratifiedShuffleSplit
from torch import nn
from torch.nn.functional import cross_entropy
from trainmaster_serving.image_model import IMAGES_FILE

from trainmaster_automl.image_folders import ImageData, read_images
from trainmaster_automl.options import DataProblem, TrialOptions
from trainmaster_automl.report import (
    MODEL_FOLDER,
    baseline_of,
    check_class_sizes,
    log_message,
    log_metrics,
    score,
    score_test,
    write_report,
)


def make_network(parameters: Mapping[str, Any], classes: int, size: int, weights: str) -> nn.Module:
    """A network from (images, 3, side, side) of 0 to 1 to logits (images, classes). Raises ``DataProblem``: unknown
    family.
    """
    family = str(parameters.get("family", ""))
    dropout = float(parameters.get("dropout", 0.0))
    if family == "cnn":
        return _cnn(int(parameters.get("width", 16)), int(parameters.get("blocks", 3)), dropout, classes, size)
    if family == "transfer":
        return Transfer(weights, dropout, classes, size)
    raise DataProblem("There is no family %r of networks; there are cnn and transfer." % family)


def _cnn(width: int, blocks: int, dropout: float, classes: int, size: int) -> nn.Module:
    """Blocks of convolution, normalization and pooling, each twice as wide as the previous one; then average
    pooling.
    """
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
    """A frozen TorchScript backbone, (images, 3, side, side) to (images, features), and a linear layer."""

    def __init__(self, weights: str, dropout: float, classes: int, size: int) -> None:
        super().__init__()
        try:
            self.backbone = torch.jit.load(weights, map_location="cpu").eval()  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError, OSError) as error:
            raise DataProblem(
                "The weights %s are not a readable TorchScript file: %s" % (weights, str(error)[:200])
            ) from error
        for parameter in self.backbone.parameters():
            parameter.requires_grad_(requires_grad=False)
        try:
            with torch.inference_mode():
                features = self.backbone(torch.zeros(2, 3, size, size)).flatten(1).shape[1]
        except (RuntimeError, AttributeError, IndexError) as error:
            raise DataProblem(
                "The backbone does not accept images of %d pixels a side: %s" % (size, str(error)[:200])
            ) from error
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(features, classes))

    def train(self, mode: bool = True) -> Transfer:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images).flatten(1))  # type: ignore[no-any-return]


class ServedNetwork(nn.Module):
    """The saved module: from pixels (0 to 255, channels last) to the classes' probabilities."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images.permute(0, 3, 1, 2).float() / 255.0).softmax(1)  # type: ignore[no-any-return]


_EPOCHS = 40
_PATIENCE = 6
_VALIDATED = 0.2
_BATCH = 64
_SMALLER_IS_BETTER = ("log_loss",)


def run(options: TrialOptions) -> None:
    """Raises ``DataProblem``."""
    images = read_images(options.data, options.image_size, options.max_rows, options.seed, options.file, options.target)
    for note in images.notes:
        log_message(note)
    trials, test = _split(np.arange(len(images.labels)), images.labels, options.test_fraction, options.seed)
    check_class_sizes(images.labels[trials], images.classes, options.test_fraction, "images")
    fit, validation = _split(trials, images.labels, _VALIDATED, options.seed + 1)
    log_message(
        "%d images for training and %d for validation; %d more are reserved for the final test."
        % (len(fit), len(validation), len(test))
    )
    network = (
        _baseline(images, fit, validation, options)
        if options.family == "baseline"
        else _train(images, fit, validation, options)
    )
    if options.is_final:
        _final_run(options, images, network, fit, validation, test)


def _split(indices: Any, labels: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    own = labels[indices]
    count = max(round(fraction * len(own)), len(np.unique(own)))
    first, second = next(StratifiedShuffleSplit(1, test_size=count, random_state=seed).split(own, own))
    return indices[np.sort(first)], indices[np.sort(second)]


class _Prior(torch.nn.Module):
    """Predicts the frequencies of the classes for every image."""

    def __init__(self, probabilities: Any) -> None:
        super().__init__()
        self.register_buffer("logits", torch.log(torch.as_tensor(probabilities, dtype=torch.float32).clamp_min(1e-9)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(images.shape[0], -1)  # type: ignore[operator]


def _baseline(images: ImageData, fit: Any, validation: Any, options: TrialOptions) -> torch.nn.Module:
    started = time.monotonic()
    network = _Prior(np.bincount(images.labels[fit], minlength=len(images.classes)) / len(fit))
    value = _score(network, images, validation, options)
    log_metrics({options.metric: value, "seconds": time.monotonic() - started}, 1)
    return network


def _train(images: ImageData, fit: Any, validation: Any, options: TrialOptions) -> torch.nn.Module:
    """Train; returns the network after its best epoch."""
    torch.manual_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parameters = options.parameters
    network = make_network(parameters, len(images.classes), images.size, options.weights).to(device)
    learnt = [parameter for parameter in network.parameters() if parameter.requires_grad]
    rate, decay = float(parameters.get("lr", 1e-3)), float(parameters.get("weight_decay", 1e-4))
    optimizer = torch.optim.AdamW(learnt, lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS)
    sign = -1.0 if options.metric in _SMALLER_IS_BETTER else 1.0
    best, best_state, best_epoch, started = -math.inf, copy.deepcopy(network.state_dict()), 0, time.monotonic()
    best_metrics: dict[str, float] = {}
    longest, epoch = 0.0, 0
    for epoch in range(1, _EPOCHS + 1):
        epoch_started = time.monotonic()
        network.train()
        total = 0.0
        order = generator.permutation(fit)
        for first in range(0, len(order), _BATCH):
            batch = order[first : first + _BATCH]
            if len(batch) == 1 and len(order) > 1:
                continue  # batch normalization needs two
            if first and options.is_out_of_time():
                break  # an epoch may be longer than the time limit
            inputs = _floats(images.pixels[batch], device)
            if parameters.get("augment"):
                inputs = _shifted(inputs, generator)
            loss = cross_entropy(network(inputs), torch.as_tensor(images.labels[batch], device=device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        schedule.step()
        value = _score(network, images, validation, options)
        metrics = {options.metric: value, "train_loss": total / len(order), "seconds": time.monotonic() - started}
        log_metrics(metrics, epoch)
        if sign * value > best:
            best, best_state, best_epoch, best_metrics = (
                sign * value,
                copy.deepcopy(network.state_dict()),
                epoch,
                metrics,
            )
        elif epoch - best_epoch >= _PATIENCE:
            log_message("No improvement for %d epochs; the network of epoch %d is used." % (_PATIENCE, best_epoch))
            break
        longest = max(longest, time.monotonic() - epoch_started)
        if epoch < _EPOCHS and options.is_out_of_time(longest):
            log_message(
                "The time limit ends training after %d of %d epochs; the network of epoch %d is used."
                % (epoch, _EPOCHS, best_epoch)
            )
            break
    if options.is_final and best_epoch < epoch:
        # A model version has the last metrics of its run: report those of the best epoch, not of the last one.
        log_metrics({**best_metrics, "kept_epoch": float(best_epoch), "seconds": time.monotonic() - started}, epoch + 1)
    network.load_state_dict(best_state)
    return network


def _floats(pixels: Any, device: Any) -> torch.Tensor:
    return torch.as_tensor(pixels, device=device).permute(0, 3, 1, 2).float() / 255.0


def _shifted(inputs: torch.Tensor, generator: Any) -> torch.Tensor:
    """Shift the whole batch by up to an eighth of its side. Images are not mirrored: that may change their class."""
    most = max(1, inputs.shape[-1] // 8)
    down, right = (int(parameter) for parameter in generator.integers(-most, most + 1, 2))
    return torch.roll(inputs, (down, right), (2, 3))


def _probabilities(network: torch.nn.Module, images: ImageData, indices: Any) -> Any:
    network.eval()
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    batches = []
    with torch.inference_mode():
        for first in range(0, len(indices), 4 * _BATCH):
            pixels = images.pixels[indices[first : first + 4 * _BATCH]]
            batches.append(network(_floats(pixels, device)).softmax(1).cpu().double().numpy())
    joined = np.concatenate(batches)
    return joined / joined.sum(1, keepdims=True)


def _score(network: torch.nn.Module, images: ImageData, indices: Any, options: TrialOptions) -> float:
    probabilities = _probabilities(network, images, indices)
    classes = np.arange(len(images.classes))
    return score(options.metric, images.labels[indices], probabilities.argmax(1), probabilities, classes)


def _final_run(
    options: TrialOptions, images: ImageData, network: torch.nn.Module, fit: Any, validation: Any, test: Any
) -> None:
    counts = {"fit": len(fit), "validation": len(validation), "test": len(test)}
    validated = {options.metric: _score(network, images, validation, options)}
    probabilities = _probabilities(network, images, test)
    classes = np.arange(len(images.classes))
    baseline = baseline_of(options.task, images.labels[fit], len(test), classes)
    tested = score_test(options, images.labels[test], probabilities.argmax(1), probabilities, classes, baseline)
    folder = os.path.join(options.output, MODEL_FOLDER)
    os.makedirs(folder, exist_ok=True)
    served = ServedNetwork(network.cpu()).eval()
    example = torch.zeros(2, images.size, images.size, 3, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecation of TorchScript: the server loads it without trust_code
        traced = torch.jit.trace(served, example)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, os.path.join(folder, "model.pt"))
    with open(os.path.join(folder, IMAGES_FILE), "w", encoding="utf-8") as stream:
        json.dump({"classes": images.classes, "size": images.size}, stream)
    write_report(
        options,
        {
            "images": counts,
            "classes": images.classes,
            "size": images.size,
            "validation": validated,
            "test": tested,
            "notes": images.notes,
        },
    )
