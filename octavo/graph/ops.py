"""The operation vocabulary: everything a model may ask of a backend, with shapes and meaning.

Shapes: T tokens of a step, L rows that need logits, D model width, H query heads, G key/value heads, C head size,
F feed-forward width, V vocabulary. Every tensor is a matrix of rows; its last dimension is `columns`.

A symbolic tensor *is* the operation that computes it. A model is traced once with symbolic tensors (`graph/trace.py`);
`tests/native/reference.py` has a torch reference of a few lines for each operation, the oracle of every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Shard = Literal["column", "row", "expert"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A named parameter. `shard` says how tensor parallelism may split it.

    Matrices are [outputs, inputs], those of experts [experts, outputs, inputs].
    """

    name: str
    shape: tuple[int, ...]
    shard: Shard | None = None


@dataclass(frozen=True, slots=True)
class Rotary:
    """Half-rotated rotary position embedding: the angle of pair i at position p is p * inverse_frequencies[i].

    Source: RoFormer, arXiv 2104.09864; pairs are (i, i + C/2) as in GPT-NeoX. `magnitude` scales cos and sin (YaRN).
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class KvLayer:
    """What one layer keeps in the KV cache. `window` is how many positions a query sees, itself included; None: all."""

    index: int
    num_kv_heads: int
    head_size: int
    window: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """The result of an operation; compared by identity."""

    columns: int


@dataclass(frozen=True, slots=True, eq=False)
class Embed(Tensor):
    """x_TD = scale * weight_VD[token ids]."""

    weight: Weight
    scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm(Tensor):
    """x / sqrt(mean(x^2) + epsilon) * weight, over each row. Source: arXiv 1910.07467."""

    x: Tensor
    weight: Weight
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm(Tensor):
    """RmsNorm over each head of C columns separately (qk-norm)."""

    x: Tensor
    weight: Weight
    epsilon: float
    num_heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Tensor):
    """x @ weight.T + bias."""

    x: Tensor
    weight: Weight
    bias: Weight | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Add(Tensor):
    """x + y, the residual connection: x is the stream, y what a block adds to it."""

    x: Tensor
    y: Tensor


GatedActivation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, eq=False)
class Gate(Tensor):
    """activation(gate_TF) * up_TF."""

    gate: Tensor
    up: Tensor
    activation: GatedActivation


@dataclass(frozen=True, slots=True, eq=False)
class Moe(Tensor):
    """A mixture of experts of width F: p = softmax(x @ router_ED.T) chooses the `num_active` largest for each row.

    The sum over these e of p[e] * ((activation(x @ gate_EFD[e].T) * (x @ up_EFD[e].T)) @ down_EDF[e].T). With
    `renormalise` those p are divided by their sum, which is the softmax over the chosen alone. Of equal p the expert of
    the lower number comes first. Sources: arXiv 1701.06538, 2401.04088.
    """

    x: Tensor
    router: Weight
    gate: Weight
    up: Weight
    down: Weight
    num_active: int
    renormalise: bool
    activation: GatedActivation = "silu"


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Tensor):
    """Rotary embedding of each head of x at the tokens' positions."""

    x: Tensor
    rotary: Rotary
    num_heads: int


@dataclass(frozen=True, slots=True, eq=False)
class Attention(Tensor):
    """Causal attention of q_T(HC) over the request's keys and values, those of this step included.

    k_T(GC) and v_T(GC) are stored in the KV cache under `kv` first. scores = scale * q.k; with `softcap`,
    scores = softcap * tanh(scores / softcap). Query head h reads key/value head h // (H / G). With `sinks`, a vector of
    H, the softmax of head h has one more score, sinks[h], of a key without a value.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    kv: KvLayer
    num_heads: int
    scale: float
    softcap: float | None = None
    sinks: Weight | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SelectRows(Tensor):
    """x_LD: the rows of x_TD that need logits."""

    x: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Logits(Tensor):
    """logits_LV = x_LD @ weight_VD.T, capped by softcap * tanh(logits / softcap) if given; sampled by the backend."""

    x: Tensor
    weight: Weight
    softcap: float | None = None


class Ops(Protocol):
    """What a model sees. The tracer implements it with symbolic tensors, an eager backend with real ones."""

    def embed(self, weight: Weight, *, scale: float = 1.0) -> Tensor: ...
    def rms_norm(self, x: Tensor, weight: Weight, *, epsilon: float) -> Tensor: ...
    def head_norm(self, x: Tensor, weight: Weight, *, epsilon: float, num_heads: int) -> Tensor: ...
    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor: ...
    def add(self, x: Tensor, y: Tensor) -> Tensor: ...
    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor: ...
    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor: ...
    def moe(
        self,
        x: Tensor,
        router: Weight,
        gate: Weight,
        up: Weight,
        down: Weight,
        *,
        num_active: int,
        renormalise: bool,
    ) -> Tensor: ...
    def rope(self, x: Tensor, rotary: Rotary, *, num_heads: int) -> Tensor: ...
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        kv: KvLayer,
        num_heads: int,
        scale: float,
        softcap: float | None = None,
        sinks: Weight | None = None,
    ) -> Tensor: ...
    def select_rows(self, x: Tensor) -> Tensor: ...
    def logits(self, x: Tensor, weight: Weight, *, softcap: float | None = None) -> Tensor: ...


class Model(Protocol):
    """A model file: weights and KV layers declared, and three functions over the vocabulary."""

    weights: Sequence[Weight]
    kv_layers: Sequence[KvLayer]
    num_layers: int
    vocab_size: int
    max_positions: int

    def embed(self, ops: Ops) -> Tensor: ...
    def layer(self, ops: Ops, index: int, x: Tensor) -> Tensor: ...
    def head(self, ops: Ops, x: Tensor) -> Tensor: ...
