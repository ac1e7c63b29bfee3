"""A GGUF file with every matrix in bf16, made from a quantised one: bf16_file.py MODEL.gguf OUT.gguf

Real models come to the tests quantised; this gives the file of 16 bits that `--quantization int8` is for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np


def write_bf16(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    assert architecture is not None
    writer = gguf.GGUFWriter(target, architecture.contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        bf16 = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(tensor.name, bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_bf16(Path(sys.argv[1]), Path(sys.argv[2]))
