"""Embedding rows, read from packed weights."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.native.instructions import Buffer, Embed
from octavo.backends.native.library import Context
from octavo.quant.gguf import Layout
from octavo.weights.gguf import GGUFType
from tests.native.harness import F32, Chunk, Step, random_tensor, run
from tests.native.test_linear import ONE_OF_EACH_LAYOUT
from tests.native.test_weights import by_name


@pytest.mark.parametrize("scale", [1.0, 25.298])
@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_embed_reads_scaled_rows(
    context: Context, encoding: GGUFType, layout: Layout, scale: float, rng: np.random.Generator
) -> None:
    weight = random_tensor(rng, encoding, (101, 256)).pack(context, layout)
    for num_tokens in (0, 1, 2, 17):
        token_ids = rng.integers(0, 101, num_tokens).tolist()
        step = Step([Chunk(num_tokens)] if num_tokens else [], token_ids=token_ids)
        found = run(context, [Buffer(F32, 256)], [Embed(0, "w", scale)], step, weights={"w": weight}).buffers[0]
        np.testing.assert_array_equal(found, weight.unpack()[token_ids] * np.float32(scale))
