"""The native library as Python objects: contexts, packed weights, KV caches, programs.

Each object owns one C object and frees it when closed or collected; it keeps alive what its C object points to.
Failures raise an `OctavoError` with the library's own message.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo import envs
from octavo.backends.native import abi
from octavo.errors import ConfigError, EngineError, OctavoError, StepError, UnsupportedModelError
from octavo.quant.gguf import Layout
from octavo.weights.gguf import GGUFType

FloatArray = npt.NDArray[np.float32]
ProfileArray = npt.NDArray[np.void]
ISAS = ("avx512", "avx2", "scalar")
SLICE_BYTES = 2 * 2**20  # of a tensor, packed at a time: large enough that all threads have work


class Peak(IntEnum):
    """A type of numbers whose multiplication can be timed."""

    F32 = 0
    BF16 = 1
    INT8 = 2


@cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises `ConfigError` when it is missing or cannot be loaded."""
    path = _library_path()
    try:
        return abi.load(path)
    except OSError as error:
        raise ConfigError(f"the native library cannot be loaded: {error}") from error
    except AttributeError as error:
        raise ConfigError(f"the native library {path} does not fit this version of Octavo: {error}") from error


def library_digest() -> bytes:
    """SHA-256 of the library's file: what it computes, and how it lays out memory, may differ from build to build."""
    with _library_path().open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _library_path() -> Path:
    return envs.native_library() or Path(__file__).with_name("liboctavo.so")


def supported_isas() -> tuple[str, ...]:
    """The instruction sets this machine can run, best first."""
    return tuple(isa for isa in ISAS if library().oct_isa_supported(isa.encode()))


class _Owner:
    """Owns a C object: frees it when closed or collected, once."""

    def __init__(self, handle: int, destroy: Callable[[int], None]) -> None:
        self._handle = handle
        self._finalizer = weakref.finalize(self, destroy, handle)

    @property
    def handle(self) -> int:
        if not self._finalizer.alive:
            raise EngineError(f"this {type(self).__name__} is closed")
        return self._handle

    def close(self) -> None:
        """Free the C object now. Close what was made from it first."""
        self._finalizer()


class Context(_Owner):
    """An instruction set (None: the best the machine has) and a team of threads that run its kernels.

    Raises `ConfigError` for an instruction set the machine lacks or a number of threads out of range.
    """

    def __init__(self, isa: str | None = None, threads: int = 1) -> None:
        handle = library().oct_context_create(isa.encode() if isa is not None else None, threads)
        super().__init__(_created(handle, ConfigError), library().oct_context_destroy)
        self.isa: str = library().oct_context_isa(handle).decode()
        self.threads = threads

    def barrier_ns(self, rounds: int = 1000) -> float:
        """How long a barrier of the team takes."""
        return _measured(library().oct_measure_barrier_ns(self.handle, rounds))

    def read_gbps(self, num_bytes: int, *, huge_pages: bool = True) -> float:
        """How fast the team reads memory, in 10^9 bytes a second."""
        return _measured(library().oct_measure_read_gbps(self.handle, num_bytes, int(huge_pages)))

    def peak_gops(self, peak: Peak) -> float:
        """How fast the team multiplies and adds numbers of a type in registers, in 10^9 operations a second."""
        return _measured(library().oct_measure_peak_gops(self.handle, peak))


class PackedWeight(_Owner):
    """A matrix [N, K] packed for a context from the raw bytes of a GGUF tensor of type `encoding`.

    `row_order[n]`, if given, is the stored row that belongs at row n. `data` is read now and not kept: from front to
    back, and `packed` hears of each part of it that has been read.
    Raises `UnsupportedModelError` when type, layout and shape do not go together.
    """

    def __init__(
        self,
        context: Context,
        layout: Layout,
        encoding: int,
        shape: tuple[int, int],
        data: npt.NDArray[np.uint8],
        row_order: npt.NDArray[np.int32] | None = None,
        packed: Callable[[npt.NDArray[np.uint8]], None] = lambda part: None,
    ) -> None:
        handle = library().oct_weight_create(context.handle, layout, encoding, *shape)
        super().__init__(_created(handle, UnsupportedModelError), library().oct_weight_destroy)
        self.context = context
        self.layout = layout
        self.shape = shape
        self.bytes: int = library().oct_weight_bytes(handle)
        blocks = _checked_blocks(encoding, shape, data)
        order = self._checked_order(row_order)
        row_bytes = blocks.nbytes // shape[0]
        for first, end in _slices(shape[0], row_bytes):
            status = library().oct_weight_pack(
                context.handle, self.handle, _address(blocks), _address(order), first, end
            )
            _check(status, UnsupportedModelError)
            packed(blocks[first * row_bytes : end * row_bytes])

    def _checked_order(self, row_order: npt.NDArray[np.int32] | None) -> npt.NDArray[np.int32] | None:
        if row_order is None:
            return None
        if row_order.shape != (self.shape[0],):
            raise UnsupportedModelError(f"row_order has shape {row_order.shape}, not ({self.shape[0]},)")
        return np.ascontiguousarray(row_order, np.int32)

    def unpack(self) -> FloatArray:
        """The values the kernels see, [N, K]."""
        values = np.empty(self.shape, np.float32)
        _check(library().oct_weight_unpack(self.context.handle, self.handle, _address(values)), EngineError)
        return values


class KvCache(_Owner):
    """Keys and values of every layer, in blocks of 16 tokens; memory becomes resident when written, or by `populate`.

    `layer_groups[n]` is the group of layer n, which says how many blocks it has and of what shape.
    Raises `ConfigError` for groups that cannot be.
    """

    def __init__(self, groups: Sequence[abi.KvGroup], layer_groups: Sequence[int]) -> None:
        group_array = (abi.KvGroup * len(groups))(*groups)
        layer_array = (ctypes.c_int32 * len(layer_groups))(*layer_groups)
        handle = library().oct_kv_cache_create(group_array, len(groups), layer_array, len(layer_groups))
        super().__init__(_created(handle, ConfigError), library().oct_kv_cache_destroy)
        counts = [sum(group == index for group in layer_groups) for index in range(len(groups))]
        self._block_bytes = [count * kv_page_bytes(group) for count, group in zip(counts, groups, strict=True)]

    def populate(self, num_bytes: int) -> int:
        """Makes at least `num_bytes` more resident, in the order of the blocks; gives how many, 0 when all are."""
        return int(library().oct_kv_cache_populate(self.handle, num_bytes))

    def read_block(self, group: int, block_id: int) -> bytes:
        """The bytes of a block in all layers of its group. Raises `StepError` if it does not exist."""
        pages = ctypes.create_string_buffer(self._block_bytes[group])
        if library().oct_kv_read_block(self.handle, group, block_id, pages):
            raise StepError(last_error())
        return pages.raw

    def write_block(self, group: int, block_id: int, pages: bytes) -> None:
        """Sets a block to what `read_block` gave. Raises `StepError` if it does not exist, or has another size."""
        if len(pages) != self._block_bytes[group]:
            raise StepError(f"{len(pages)} bytes for a block of {self._block_bytes[group]}")
        if library().oct_kv_write_block(self.handle, group, block_id, pages):
            raise StepError(last_error())


def kv_page_bytes(group: abi.KvGroup) -> int:
    """What one block of 16 tokens takes in one layer of the group."""
    return int(library().oct_kv_page_bytes(ctypes.byref(group)))


class Program(_Owner):
    """Instructions over buffers of at most `max_tokens` and `max_logit_rows` rows, for requests of `max_blocks` blocks.

    `keep` is whatever the instructions point to (weights, vectors); it lives as long as the program.
    Raises `EngineError` naming the instruction at fault.
    """

    def __init__(
        self,
        context: Context,
        kv: KvCache | None,
        buffers: ctypes.Array[abi.Buffer],
        instructions: ctypes.Array[abi.Instruction],
        *,
        max_tokens: int,
        max_logit_rows: int,
        max_blocks: int = 0,
        keep: object = None,
    ) -> None:
        handle = library().oct_program_create(
            context.handle,
            kv.handle if kv is not None else None,
            buffers,
            len(buffers),
            instructions,
            len(instructions),
            max_tokens,
            max_logit_rows,
            max_blocks,
        )
        super().__init__(_created(handle, EngineError), library().oct_program_destroy)
        self.context = context
        self.max_tokens = max_tokens
        self.max_logit_rows = max_logit_rows
        self.arena_bytes: int = library().oct_program_arena_bytes(handle)
        self._keep = (kv, keep)
        self._run = library().oct_run
        self._num_instructions = len(instructions)
        self._times: ProfileArray | None = None
        self._rows = [max_logit_rows if buffer.row_space else max_tokens for buffer in buffers]
        self._columns = [buffer.columns for buffer in buffers]

    def run(self, step: abi.Step) -> None:
        """One step. Raises `StepError` naming the entry of the step that is out of range."""
        if self._run(self.handle, ctypes.byref(step)):
            raise StepError(last_error())

    def start_profile(self) -> ProfileArray:
        """Nanoseconds, [threads, instructions] of (`work_ns`, `wait_ns`), that every run adds to from now on."""
        times: ProfileArray = np.zeros((self.context.threads, self._num_instructions), np.dtype(abi.InstructionTime))
        library().oct_program_profile(self.handle, _address(times))
        self._times = times
        return times

    def stop_profile(self) -> None:
        """No run adds to the times any longer."""
        library().oct_program_profile(self.handle, None)
        self._times = None

    def buffer(self, number: int) -> FloatArray:
        """The memory of an fp32 buffer, [max rows, columns]: a view, for tests. Valid until the program is closed."""
        data = library().oct_program_buffer(self.handle, number)
        if not data:
            raise EngineError(last_error())
        return np.ctypeslib.as_array(data, (self._rows[number], self._columns[number]))


def dequantize(encoding: int, data: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
    """The values of a GGUF tensor, flat. Raises `UnsupportedModelError` for an unknown type."""
    values = np.empty(num_elements, np.float32)
    blocks = _checked_blocks(encoding, (num_elements,), data)
    status = library().oct_gguf_dequantize(encoding, _address(blocks), num_elements, _address(values))
    _check(status, UnsupportedModelError)
    return values


def last_error() -> str:
    """What the latest failed call of this thread had to say."""
    message: bytes = library().oct_last_error()
    return message.decode(errors="replace")


def _slices(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """First and end row of slices of about `SLICE_BYTES`."""
    step = max(1, SLICE_BYTES // (abi.SLICE_ROWS * row_bytes)) * abi.SLICE_ROWS
    return ((first, min(first + step, num_rows)) for first in range(0, num_rows, step))


def _checked_blocks(encoding: int, shape: tuple[int, ...], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`data` as contiguous bytes, refused unless it is exactly what a tensor of this type and shape takes."""
    try:
        kind = GGUFType(encoding)
    except ValueError:
        raise UnsupportedModelError(f"unknown GGUF tensor type {encoding}") from None
    blocks = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    num_elements = prod(shape)
    num_bytes = num_elements // kind.block_size * kind.block_bytes
    if num_elements % kind.block_size or blocks.nbytes != num_bytes:
        raise UnsupportedModelError(
            f"a {kind.name} tensor of shape {list(shape)} takes {num_bytes} bytes, but there are {blocks.nbytes}"
        )
    return blocks


def _created(handle: int | None, error: type[OctavoError]) -> int:
    if handle is None:
        raise error(last_error())
    return handle


def _check(status: int, error: type[OctavoError]) -> None:
    if status:
        raise error(last_error())


def _measured(value: float) -> float:
    if value < 0:
        raise EngineError(last_error())
    return value


def _address(array: npt.NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data
