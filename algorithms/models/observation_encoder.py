"""From a dict of observations to one row of features: each leaf read by its kind, then all of them together.

Shape letters:  B = agent rows, of one or of many time steps,  F = features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.encoder_registry import (
    choose_encoder,
    output_size_of,
    require_used,
    scales_pixels,
)
from appo.algorithms.models.layers import fully_connected
from appo.algorithms.models.normalization import ObservationNormalizer
from appo.algorithms.specs import ELAPSED_STEPS
from appo.envs.api import ObservationLeaf
from appo.utils.options import ConfigError

_ONE_HOT_LIMIT = 4096  # numbers; beyond, each category gets a short learned vector instead of a place of its own
_EMBEDDING_SIZE = 16


def encoded_leaves(leaves: tuple[ObservationLeaf, ...]) -> tuple[ObservationLeaf, ...]:
    """The leaves that a network reads: all but action masks; vectors of any rank as rank 1.

    Raises:
        ConfigError: there are none.
    """
    flat = tuple(
        leaf._replace(shape=(math.prod(leaf.shape),)) if leaf.kind in ("vector", "categorical") else leaf
        for leaf in leaves
        if leaf.kind != "mask"
    )
    if not flat:
        raise ConfigError("the environment has no observation but an action mask; add at least a constant one")
    return flat


class Preprocessor(nn.Module):
    """Scales images and normalises vectors: what comes before any weight, done once for all encoders."""

    def __init__(self, leaves: tuple[ObservationLeaf, ...], config: ModelConfig) -> None:
        super().__init__()
        self.leaves = leaves
        self.mean = config.obs_subtract_mean
        # None: the encoder takes the pixels as they are.
        self.factors = [None if scales_pixels(leaf, config) else 1.0 / config.obs_scale for leaf in leaves]
        self.image_dtype = torch.float32
        """What encoders of images compute with."""
        self.normalizers = nn.ModuleList(
            ObservationNormalizer(leaf.shape) if _is_normalized(leaf, config) else nn.Identity() for leaf in leaves
        )

    def forward(self, observations: Mapping[str, Tensor], num_leaves: int | None = None) -> list[Tensor]:
        """name -> [B, ...] in the environment's dtypes to one tensor [B, ...] per leaf: of all, or of the first."""
        leaves = self.by_leaf()[:num_leaves]
        return [normalizer(convert(observations[name])) for name, convert, normalizer in leaves]

    def by_leaf(self) -> list[tuple[str, Callable[[Tensor], Tensor], nn.Module]]:
        """The name of each leaf, what makes numbers of it, and what normalises them."""
        converts: dict[str, Callable[[Tensor], Tensor]] = {"vector": _as_vectors, "categorical": _as_categories}
        return [
            (leaf.name, converts.get(leaf.kind) or partial(self._scaled, factor=factor), normalizer)
            for leaf, normalizer, factor in zip(self.leaves, self.normalizers, self.factors, strict=True)
        ]

    def update(self, observations: Mapping[str, Tensor], mask: Tensor) -> None:
        """Take in the rows [..., *shape] where mask [...] is true."""
        for leaf, normalizer in zip(self.leaves, self.normalizers, strict=True):
            if isinstance(normalizer, ObservationNormalizer):
                normalizer.update(observations[leaf.name].flatten(mask.dim()), mask)

    def _scaled(self, image: Tensor, factor: float | None) -> Tensor:
        if not self.mean and factor is None:
            return image
        # Bytes are rearranged before they become four times as large.
        x = image.contiguous(memory_format=torch.channels_last).to(torch.float32, copy=True)
        if self.mean:
            x.sub_(self.mean)
        if factor is not None:
            x.mul_(factor)
        return x.to(self.image_dtype)


def _is_normalized(leaf: ObservationLeaf, config: ModelConfig) -> bool:
    return leaf == ELAPSED_STEPS or (config.normalize_input and leaf.kind == "vector")


def _as_vectors(x: Tensor) -> Tensor:
    return x.float().flatten(1)


def _as_categories(x: Tensor) -> Tensor:
    return x.flatten(1).long()


class ObservationEncoder(nn.Module):
    """Prepared observations to features: every leaf's encoder, concatenated, then the fully connected layers."""

    def __init__(self, leaves: tuple[ObservationLeaf, ...], config: ModelConfig) -> None:
        super().__init__()
        require_used(config, leaves)
        self.encoders = nn.ModuleList()
        size = 0
        for leaf in leaves:
            if leaf.kind == "categorical":
                categories = CategoryEncoder(leaf, config)
                size += categories.output_size
                self.encoders.append(categories)
            else:
                encoder = choose_encoder(leaf, config)(leaf, config)
                size += output_size_of(encoder)
                self.encoders.append(encoder)  # type: ignore[arg-type]  # the contract leaves nn.Module unsaid
        widths = [config.hidden_size] * config.encoder_extra_fc_layers
        self.layers = fully_connected(size, widths, config)
        self.output_size = widths[-1] if widths else size

    def forward(self, prepared: list[Tensor]) -> Tensor:
        """One tensor [B, ...] per leaf -> [B, F]."""
        features = [encoder(x) for encoder, x in zip(self.encoders, prepared, strict=True)]
        return self.layers(features[0] if len(features) == 1 else torch.cat(features, -1))


class CategoryEncoder(nn.Module):
    """Categories [B, K] -> features by way of one-hot vectors, or of embeddings when those would be long."""

    def __init__(self, leaf: ObservationLeaf, config: ModelConfig) -> None:
        super().__init__()
        self.num_categories = leaf.num_categories
        # Numbers have a mean square of 1 then, as normalised vectors have: at 1 the first layer is as good as linear.
        self.height = math.sqrt(leaf.num_categories)
        entries = leaf.shape[0]
        self.embedding: nn.Embedding | None = None
        if entries * leaf.num_categories > _ONE_HOT_LIMIT:
            self.embedding = nn.Embedding(leaf.num_categories, _EMBEDDING_SIZE)
            size = entries * _EMBEDDING_SIZE
        else:
            size = entries * leaf.num_categories
        vector = ObservationLeaf(leaf.name, (size,), "float32", "vector")
        self.encoder = choose_encoder(vector, config)(vector, config)
        self.output_size = output_size_of(self.encoder)

    def forward(self, x: Tensor) -> Tensor:
        """[B, K] int64 -> [B, output_size]."""
        return self.encoder(self.vectors(x))

    def vectors(self, x: Tensor) -> Tensor:
        """[B, K] int64 -> what `encoder` reads."""
        if self.embedding is not None:
            return self.embedding(x).flatten(1)
        one_hot = torch.zeros((*x.shape, self.num_categories), device=x.device)
        return one_hot.scatter_(-1, x.unsqueeze(-1), self.height).flatten(1)
