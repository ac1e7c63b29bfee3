"""From a GGUF file to a `Checkpoint`: the model it describes and its tensors under the model's own names.

Names are applied strictly in both directions: a tensor the model lacks and a tensor the model does not know are errors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelError, ModelFileError, UnsupportedModelError
from octavo.graph.ops import Model, Weight
from octavo.models.config import ModelConfig
from octavo.models.registry import ARCHITECTURES, Family
from octavo.weights.checkpoint import Checkpoint, StoredTensor
from octavo.weights.gguf import GGUFFile, GGUFTensor, GGUFType
from octavo.weights.gguf_config import ROPE_DIVISORS, read_config

TENSOR_TYPES = frozenset(
    {
        GGUFType.F32,
        GGUFType.F16,
        GGUFType.BF16,
        GGUFType.Q4_0,
        GGUFType.Q4_1,
        GGUFType.Q5_0,
        GGUFType.Q5_1,
        GGUFType.Q8_0,
        GGUFType.Q4_K,
        GGUFType.Q5_K,
        GGUFType.Q6_K,
        GGUFType.IQ4_NL,
        GGUFType.IQ4_XS,
        GGUFType.MXFP4,
    }
)


def open_checkpoint(path: Path) -> Checkpoint:
    """The model in the GGUF file at `path`, mapped, nothing decoded.

    Raises `ModelNotFoundError` (no such file), `ModelFileError` (damaged, or a key or tensor missing or left over) and
    `UnsupportedModelError` (architecture, tensor type or variant).
    """
    file = GGUFFile(path)
    try:
        return _checkpoint(file)
    except ModelError:
        file.close()
        raise


def _checkpoint(file: GGUFFile) -> Checkpoint:
    architecture = _architecture(file)
    family = ARCHITECTURES[architecture]
    config = read_config(file, architecture)
    model = _build(file, family, config)
    tensors = _named_tensors(file, family, model, config)

    def release() -> None:
        tensors.clear()
        file.close()

    return Checkpoint(
        path=file.path,
        architecture=architecture,
        size_label=_size_label(file, model),
        model=model,
        tensors=tensors,
        tokenizer={key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")},
        release=release,
        forget=file.forget,
        sampling={key: value for key, value in file.metadata.items() if key.startswith("general.sampling.")},
    )


def _architecture(file: GGUFFile) -> str:
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        problem = "is missing" if architecture is None else f"is {architecture!r}, not a name"
        raise ModelFileError(f"{file.path}: metadata key 'general.architecture' {problem}")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path}: architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    num_files = file.metadata.get("split.count", 1)
    if num_files not in (0, 1):
        raise UnsupportedModelError(f"{file.path}: one of {num_files} pieces (split.count); merge them into one file")
    return architecture


def _build(file: GGUFFile, family: Family, config: ModelConfig) -> Model:
    if config.moe is not None and not family.has_experts:
        raise UnsupportedModelError(f"{file.path}: experts (expert_count) are not supported in this architecture")
    try:
        return family.build(config)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{file.path}: {error}") from None


def _named_tensors(file: GGUFFile, family: Family, model: Model, config: ModelConfig) -> dict[str, StoredTensor]:
    layers = range(config.num_layers)
    file_names = {name.format(i=i): stored.format(i=i) for name, stored in family.gguf_names.items() for i in layers}
    interleaved = {name.format(i=i) for name in family.gguf_interleaved for i in layers}
    tensors: dict[str, StoredTensor] = {}
    for weight in model.weights:
        stored = file.tensors.get(file_names[weight.name])
        if stored is None:
            raise ModelFileError(f"{file.path}: tensor {file_names[weight.name]!r} is missing")
        _check(file, stored, weight)
        row_order = half_rotated_rows(weight.shape[0], config.head_size) if weight.name in interleaved else None
        tensors[weight.name] = StoredTensor(weight.name, weight.shape, int(stored.type), stored.data, row_order)
    _refuse_left_over(file, {file_names[name] for name in tensors})
    return tensors


def _check(file: GGUFFile, stored: GGUFTensor, weight: Weight) -> None:
    if stored.type not in TENSOR_TYPES:
        supported = ", ".join(kind.name for kind in sorted(TENSOR_TYPES))
        raise UnsupportedModelError(
            f"{file.path}: tensor {stored.name!r} has type {stored.type.name}; supported are {supported}"
        )
    if stored.shape != weight.shape:
        raise ModelFileError(
            f"{file.path}: tensor {stored.name!r} has shape {list(stored.shape)}, the model needs {list(weight.shape)}"
        )


def _refuse_left_over(file: GGUFFile, used: set[str]) -> None:
    left_over = sorted(file.tensors.keys() - used - {ROPE_DIVISORS})
    if left_over:
        more = f" and {len(left_over) - 1} more" if len(left_over) > 1 else ""
        raise ModelFileError(f"{file.path}: tensor {left_over[0]!r}{more} is not part of the model")


def half_rotated_rows(num_rows: int, head_size: int) -> npt.NDArray[np.int32]:
    """The stored row of each row when a file keeps rotary pairs side by side and the model half a head apart.

    Of each head, row i < C/2 is stored at 2i and row i + C/2 at 2i + 1.
    """
    stored = np.arange(num_rows, dtype=np.int32).reshape(-1, head_size // 2, 2)
    return np.ascontiguousarray(stored.swapaxes(1, 2)).reshape(-1)


def _size_label(file: GGUFFile, model: Model) -> str:
    """The file's own label ("135M"), or one made from the number of parameters."""
    label = file.metadata.get("general.size_label")
    if isinstance(label, str) and label:
        return label
    num_parameters = sum(int(np.prod(weight.shape, dtype=np.int64)) for weight in model.weights)
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if num_parameters >= size:
            return f"{num_parameters / size:.3g}{unit}"
    return f"{num_parameters / 1000:.3g}K"
