"""
The models to train: a network, its loss and optimizer, and made-up batches that cost nothing to load.

Letters in names: B batch, T time, D model width, V vocabulary, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, IMAGE_CLASSES = 10, 1000
VOCABULARY = 34_000
TOKENS = 64


class GPT(nn.Module):
    """A decoder-only transformer with learned positions and its own output matrix; tokens_BT to logits_BTV."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.predict = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        x_BTD = self.tokens(tokens_BT) + self.places(torch.arange(length, device=tokens_BT.device))
        mask_TT = nn.Transformer.generate_square_subsequent_mask(length, device=tokens_BT.device)
        logits_BTV: Tensor = self.predict(self.norm(self.blocks(x_BTD, mask=mask_TT, is_causal=True)))
        return logits_BTV


def resnet50() -> nn.Module:
    from examples.resnet50 import ResNet50

    return ResNet50(IMAGE_CLASSES)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))


def sgd(parameters: Any, kind: type[torch.optim.SGD]) -> torch.optim.Optimizer:
    return kind(parameters, lr=1e-3, momentum=0.9)


def adamw(parameters: Any, kind: type[torch.optim.AdamW]) -> torch.optim.Optimizer:
    return kind(parameters, lr=1e-4)


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 32, 32), torch.randint(CLASSES, ())


def points() -> tuple[Tensor, Tensor]:
    return torch.randn(64), torch.randint(CLASSES, ())


def sentences() -> tuple[Tensor, Tensor]:
    tokens_T = torch.randint(VOCABULARY, (TOKENS + 1,))
    return tokens_T[:-1], tokens_T[1:]


@dataclass(frozen=True)
class Model:
    """Makes a network and its optimizer, of a class that may be a wrapped one; `sample` makes one sample of a batch."""

    build: Callable[[], nn.Module]
    optimizer: Callable[[Any, Any], torch.optim.Optimizer]
    optimizer_class: type[torch.optim.Optimizer]
    sample: Callable[[], tuple[Tensor, Tensor]]
    batch_size: int


SGD, ADAMW = (sgd, torch.optim.SGD), (adamw, torch.optim.AdamW)

MODELS = {
    "tiny": Model(perceptron, *SGD, points, batch_size=1024),
    "resnet50": Model(resnet50, *SGD, images, batch_size=32),
    "gpt-100mb": Model(lambda: GPT(112, 9, 8), *ADAMW, sentences, batch_size=1),
    "gpt-400mb": Model(lambda: GPT(320, 9, 10), *ADAMW, sentences, batch_size=1),
    "gpt": Model(lambda: GPT(640, 9, 10), *ADAMW, sentences, batch_size=1),
    "gpt-4gb": Model(lambda: GPT(1280, 13, 20), *ADAMW, sentences, batch_size=1),
    "gpt-8gb": Model(lambda: GPT(1536, 20, 24), *ADAMW, sentences, batch_size=1),
    "tiny-256": Model(perceptron, *SGD, points, batch_size=256),  # tiny takes most of its time to put batches together
}
