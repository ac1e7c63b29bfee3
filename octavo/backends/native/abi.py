"""The C interface of the native library, mirrored field by field from `csrc/include/octavo.h`.

Nothing here but structures and prototypes; `library.py` wraps them. A test compares every size and offset with what the
C++ compiler says.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, Union, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

c_pointer = c_void_p  # to arrays; which element they have stands beside the field


class Buffer(Structure):
    _fields_ = [("kind", c_int32), ("row_space", c_int32), ("columns", c_int32)]


class KvGroup(Structure):
    _fields_ = [
        ("num_blocks", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("window", c_int32),
        ("dtype", c_int32),
    ]


class Embed(Structure):
    _fields_ = [("dst", c_int32), ("scale", c_float), ("weight", c_pointer)]


class RotaryTable(Structure):
    _fields_ = [
        ("dst", c_int32),
        ("num_frequencies", c_int32),
        ("inverse_frequencies", c_pointer),  # float
        ("magnitude", c_float),
    ]


class RmsNorm(Structure):
    _fields_ = [
        ("src", c_int32),
        ("dst", c_int32),
        ("dst2", c_int32),
        ("accumulate", c_int32),
        ("epsilon", c_float),
        ("weight", c_pointer),  # float
    ]


class Quantize(Structure):
    _fields_ = [("src", c_int32), ("dst", c_int32)]


class Linear(Structure):
    _fields_ = [
        ("src", c_int32),
        ("dst", c_int32),
        ("dst_column", c_int32),
        ("accumulate", c_int32),
        ("weight", c_pointer),
        ("bias", c_pointer),  # float
    ]


class GatedLinear(Structure):
    _fields_ = [
        ("src", c_int32),
        ("src_up", c_int32),
        ("dst", c_int32),
        ("activation", c_int32),
        ("gate", c_pointer),
        ("up", c_pointer),
    ]


class RopeKv(Structure):
    _fields_ = [
        ("qkv", c_int32),
        ("rotary", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("kv_layer", c_int32),
        ("epsilon", c_float),
        ("q_norm", c_pointer),  # float
        ("k_norm", c_pointer),  # float
        ("key_divisors", c_pointer),  # float
    ]


class Attention(Structure):
    _fields_ = [
        ("qkv", c_int32),
        ("dst", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("kv_layer", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks", c_pointer),  # float
    ]


class SelectRows(Structure):
    _fields_ = [("src", c_int32), ("dst", c_int32)]


class Sample(Structure):
    _fields_ = [("src", c_int32), ("weight", c_pointer), ("softcap", c_float)]


class Moe(Structure):
    _fields_ = [
        ("src", c_int32),
        ("dst", c_int32),
        ("accumulate", c_int32),
        ("num_experts", c_int32),
        ("num_active", c_int32),
        ("renormalise", c_int32),
        ("activation", c_int32),
        ("router", c_pointer),  # float
        ("gates", c_pointer),  # pointers to weights
        ("ups", c_pointer),
        ("downs", c_pointer),
    ]


class Operation(Union):
    _fields_ = [
        ("embed", Embed),
        ("rotary_table", RotaryTable),
        ("rms_norm", RmsNorm),
        ("quantize", Quantize),
        ("linear", Linear),
        ("gated_linear", GatedLinear),
        ("rope_kv", RopeKv),
        ("attention", Attention),
        ("select_rows", SelectRows),
        ("sample", Sample),
        ("moe", Moe),
    ]


SLICE_ROWS = 64  # OCT_SLICE_ROWS
OP_CODES = {field[0]: code for code, field in enumerate(Operation._fields_)}  # the order of oct_op


class Instruction(Structure):
    _anonymous_ = ("operation",)
    _fields_ = [("op", c_int32), ("barrier", c_int32), ("operation", Operation)]


class InstructionTime(Structure):
    _fields_ = [("work_ns", c_int64), ("wait_ns", c_int64)]


class Sampling(Structure):
    _fields_ = [
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
        ("scored_token", c_int32),
        ("num_logprobs", c_int32),
        ("first_logprob", c_int32),
        ("first_bias", c_int32),
        ("num_biases", c_int32),
        ("seed", c_uint64),
        ("position", c_int64),
        ("token_ids", c_uint64),  # a pointer to int32, as a number: NumPy has no pointers
        ("num_prompt_tokens", c_int64),
        ("mask", c_uint64),  # a pointer to uint32, as a number
    ]


class Step(Structure):
    _fields_ = [
        ("num_tokens", c_int32),
        ("num_requests", c_int32),
        ("num_logit_rows", c_int32),
        ("max_blocks", c_int32),
        ("num_table_rows", c_int32),
        ("token_ids", c_pointer),  # int32
        ("positions", c_pointer),  # int32
        ("query_starts", c_pointer),  # int32
        ("block_tables", c_pointer),  # int32
        ("table_rows", c_pointer),  # int32
        ("logit_rows", c_pointer),  # int32
        ("sampling", c_pointer),  # Sampling
        ("num_biases", c_int32),
        ("num_top_logprobs", c_int32),
        ("bias_token_ids", c_pointer),  # int32
        ("bias_values", c_pointer),  # float
        ("num_copies", c_int32),
        ("copy_groups", c_pointer),  # int32
        ("copy_sources", c_pointer),  # int32
        ("copy_destinations", c_pointer),  # int32
        ("sampled_token_ids", c_pointer),  # int32
        ("logprobs", c_pointer),  # float
        ("ranks", c_pointer),  # int32
        ("top_token_ids", c_pointer),  # int32
        ("top_logprobs", c_pointer),  # float
        ("logits", c_pointer),  # float
    ]


_PROTOTYPES: dict[str, tuple[type | None, list[type]]] = {
    "oct_last_error": (c_char_p, []),
    "oct_isa_supported": (c_int, [c_char_p]),
    "oct_context_create": (c_void_p, [c_char_p, c_int]),
    "oct_context_destroy": (None, [c_void_p]),
    "oct_context_isa": (c_char_p, [c_void_p]),
    "oct_weight_create": (c_void_p, [c_void_p, c_int, c_int, c_int64, c_int64]),
    "oct_weight_pack": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64]),
    "oct_weight_unpack": (c_int, [c_void_p, c_void_p, c_void_p]),
    "oct_weight_bytes": (c_int64, [c_void_p]),
    "oct_weight_destroy": (None, [c_void_p]),
    "oct_gguf_dequantize": (c_int, [c_int, c_void_p, c_int64, c_void_p]),
    "oct_kv_cache_create": (c_void_p, [POINTER(KvGroup), c_int, POINTER(c_int32), c_int]),
    "oct_kv_page_bytes": (c_int64, [POINTER(KvGroup)]),
    "oct_kv_cache_destroy": (None, [c_void_p]),
    "oct_kv_cache_populate": (c_int64, [c_void_p, c_int64]),
    "oct_kv_read_block": (c_int, [c_void_p, c_int, c_int, c_void_p]),
    "oct_kv_write_block": (c_int, [c_void_p, c_int, c_int, c_char_p]),
    "oct_program_create": (
        c_void_p,
        [c_void_p, c_void_p, POINTER(Buffer), c_int, POINTER(Instruction), c_int, c_int, c_int, c_int],
    ),
    "oct_program_arena_bytes": (c_int64, [c_void_p]),
    "oct_program_buffer": (POINTER(c_float), [c_void_p, c_int]),
    "oct_program_profile": (None, [c_void_p, c_void_p]),
    "oct_program_destroy": (None, [c_void_p]),
    "oct_run": (c_int, [c_void_p, POINTER(Step)]),
    "oct_measure_barrier_ns": (c_double, [c_void_p, c_int]),
    "oct_measure_read_gbps": (c_double, [c_void_p, c_int64, c_int]),
    "oct_measure_peak_gops": (c_double, [c_void_p, c_int]),
}


def load(path: Path) -> ctypes.CDLL:
    """The library at `path` with every prototype set. Calls into it release the GIL."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
