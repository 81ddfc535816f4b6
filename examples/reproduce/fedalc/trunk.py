"""The two trunks of the Bibtex table."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

DROPOUT = 0.5


class WordVectors(nn.Module):
    """Sum of the words' vectors over the square root of their number; S2 does not say how it pools."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = words
        self.weight = nn.Parameter(torch.randn(words + 1, width))

    def forward(self, words: Tensor) -> Tensor:
        """Word numbers (B, longest), filled up with ``words`` -> (B, width)."""
        total = functional.embedding_bag(words, self.weight, mode="sum", padding_idx=self.words)
        count = (words != self.words).sum(dim=1, keepdim=True).clamp_min(1)
        return total / count.sqrt().to(total.dtype)


class MeanVectors(WordVectors):
    """Mean of the words' vectors: what the papers' literal settings are run with."""

    def forward(self, words: Tensor) -> Tensor:
        """See :class:`WordVectors`."""
        count = (words != self.words).sum(dim=1, keepdim=True).clamp_min(1)
        return super().forward(words) / count.sqrt()


class Residual(nn.Module):
    """Word vectors, and two layers that correct them: z = e + f(e)."""

    def __init__(self, words: int, dimension: int = 512, hidden: int = 1024, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.embedding = WordVectors(words, dimension)
        self.correction = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(dimension, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, dimension),
        )

    def forward(self, words: Tensor) -> Tensor:
        """(B, longest) -> (B, dimension)."""
        vectors = self.embedding(words)
        corrected: Tensor = vectors + self.correction(vectors)
        return corrected


def papers(words: int, dimension: int = 512, dropout: float = DROPOUT) -> nn.Module:
    """S2 section V-B: word vectors of 512, then linear layers of 1024, 1024 and 512, ReLU after the first two."""
    return nn.Sequential(
        WordVectors(words, 512),
        nn.Dropout(dropout),
        nn.Linear(512, 1024),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(1024, dimension),
    )


def literal(words: int) -> nn.Module:
    """The same without dropout and with mean pooling."""
    trunk = papers(words, dropout=0.0)
    return nn.Sequential(MeanVectors(words, 512), *list(trunk.children())[1:])
