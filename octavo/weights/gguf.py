"""A memory-mapped reader of GGUF files, versions 2 and 3.

It owns the container: header, metadata, tensor table, alignment. What the metadata means and how a block decodes is
for others. Source: docs/gguf.md of the ggml project. Every file that is not as that page says raises `ModelFileError`
naming file and key or tensor; nothing is ever allocated that the file is too short to hold.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, overload

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError

MetadataValue = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65535
MAPPED_AROUND_BYTES = 65536  # what Linux maps with a page that is touched, on either side at most


class GGUFType(IntEnum):
    """How the elements of a tensor are stored; names and numbers as in ggml."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41

    @property
    def block_size(self) -> int:
        """Elements in a block."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        return _BLOCKS[self][1]


_BLOCKS: dict[GGUFType, tuple[int, int]] = {  # elements, bytes
    GGUFType.F32: (1, 4),
    GGUFType.F16: (1, 2),
    GGUFType.Q4_0: (32, 18),
    GGUFType.Q4_1: (32, 20),
    GGUFType.Q5_0: (32, 22),
    GGUFType.Q5_1: (32, 24),
    GGUFType.Q8_0: (32, 34),
    GGUFType.Q8_1: (32, 36),
    GGUFType.Q2_K: (256, 84),
    GGUFType.Q3_K: (256, 110),
    GGUFType.Q4_K: (256, 144),
    GGUFType.Q5_K: (256, 176),
    GGUFType.Q6_K: (256, 210),
    GGUFType.Q8_K: (256, 292),
    GGUFType.IQ2_XXS: (256, 66),
    GGUFType.IQ2_XS: (256, 74),
    GGUFType.IQ3_XXS: (256, 98),
    GGUFType.IQ1_S: (256, 50),
    GGUFType.IQ4_NL: (32, 18),
    GGUFType.IQ3_S: (256, 110),
    GGUFType.IQ2_S: (256, 82),
    GGUFType.IQ4_XS: (256, 136),
    GGUFType.I8: (1, 1),
    GGUFType.I16: (1, 2),
    GGUFType.I32: (1, 4),
    GGUFType.I64: (1, 8),
    GGUFType.F64: (1, 8),
    GGUFType.IQ1_M: (256, 56),
    GGUFType.BF16: (1, 2),
    GGUFType.TQ1_0: (256, 54),
    GGUFType.TQ2_0: (256, 66),
    GGUFType.MXFP4: (32, 17),
    GGUFType.NVFP4: (64, 36),
    GGUFType.Q1_0: (128, 18),
}


class ValueType(IntEnum):
    """The type tag in front of a metadata value."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_NUMBERS: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("u1"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}

_ARRAY_CODES = {kind: dtype.char for kind, dtype in _NUMBERS.items()}  # `array` and numpy name C's types alike

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Strings(Sequence[str]):
    """An array of strings in the bytes it has in a file, decoded each time it is asked for.

    A vocabulary has hundreds of thousands; as Python strings they would take ten times their bytes.
    """

    __slots__ = ("_ends", "_stored")

    def __init__(self, stored: bytes, ends: array[int]) -> None:
        self._stored = stored  # before each string its length, in 8 bytes
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        positions = range(len(self._ends))[index]
        return self._at(positions) if isinstance(positions, int) else [self._at(position) for position in positions]

    def _at(self, position: int) -> str:
        start = (self._ends[position - 1] if position else 0) + _U64.size
        return self._stored[start : self._ends[position]].decode()


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor of the file. `shape` has the contiguous dimension last; `data` is its bytes, mapped and read-only."""

    name: str
    shape: tuple[int, ...]
    type: GGUFType
    data: npt.NDArray[np.uint8]


class GGUFFile:
    """An open GGUF file: `metadata` by key (copied out, arrays compactly), `tensors` by name (mapped).

    `close()` lets go of the file; it is unmapped once nobody holds a tensor's data any more.
    Raises `ModelNotFoundError`, `ModelFileError`, or `UnsupportedModelError` (big-endian, a tensor type unknown here).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mapped = _map_file(path)
        self._map: mmap.mmap | None = mapped
        reader = _Reader(path, mapped)
        try:
            self.version, num_tensors, num_values = _read_header(reader)
            self.metadata: Mapping[str, MetadataValue] = _read_metadata(reader, num_values)
            table = _read_tensor_table(reader, num_tensors)
            self.alignment = _alignment(reader, self.metadata)
            self.tensors: Mapping[str, GGUFTensor] = _map_tensors(reader, table, self.alignment)
            mapped.madvise(mmap.MADV_DONTNEED, 0, reader.position)
        except ModelError:
            self._unmap()
            raise

    def forget(self, data: npt.NDArray[np.uint8]) -> None:
        """Let the memory that maps part of a tensor's data go; reading it again reads the file."""
        if self._map is None or data.nbytes == 0:
            return
        offset = data.ctypes.data - np.frombuffer(self._map, np.uint8).ctypes.data
        first = max(0, offset - MAPPED_AROUND_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(offset + data.nbytes + MAPPED_AROUND_BYTES, len(self._map))
        self._map.madvise(mmap.MADV_DONTNEED, first, end - first)

    def close(self) -> None:
        """Drop the tensors and unmap the file, at the latest when the last view of its data goes."""
        self.tensors = {}
        self._unmap()

    def _unmap(self) -> None:
        if self._map is not None:
            with contextlib.suppress(BufferError):  # a view of the data is still held, and with it the map
                self._map.close()
        self._map = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _TableEntry:
    """A row of the tensor table. `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type: GGUFType
    offset: int


class _Reader:
    """A position in the mapped file. Every read checks that the file holds what it is about to take."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self.mapped = mapped
        self.size = len(mapped)
        self.position = 0

    def fail(self, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {problem}")

    def take(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` and give the position they start at."""
        start = self.position
        if num_bytes > self.size - start:
            self.fail(f"the file ends inside {what} (at byte {start}: {num_bytes} needed, {self.size - start} left)")
        self.position = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        start = self.take(4, what)
        (value,) = _U32.unpack_from(self.mapped, start)
        return int(value)

    def u64(self, what: str) -> int:
        start = self.take(8, what)
        (value,) = _U64.unpack_from(self.mapped, start)
        return int(value)

    def string(self, what: str, max_bytes: int | None = None) -> str:
        num_bytes = self.u64(what)
        if max_bytes is not None and num_bytes > max_bytes:
            self.fail(f"{what} is {num_bytes} bytes long, at most {max_bytes} are allowed")
        start = self.take(num_bytes, what)
        try:
            return self.mapped[start : start + num_bytes].decode()
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not valid UTF-8: {error.reason} at byte {start + error.start}")

    def strings(self, count: int, what: str) -> Strings:
        """`count` strings; the loop is tight because vocabularies have hundreds of thousands."""
        if count * _U64.size > self.size - self.position:
            self.take(count * _U64.size, what)
        mapped, first, unpack, size = self.mapped, self.position, _U64.unpack_from, self.size
        position = first
        ends = array("q")
        append = ends.append
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(mapped, position)[0]
                if position > size:
                    self.fail(f"the file ends inside {what} (string {len(ends)} of {count})")
                mapped[start:position].decode()
                append(position - first)
        except UnicodeDecodeError as error:
            self.fail(f"{what}: string {len(ends)} is not valid UTF-8: {error.reason}")
        except struct.error:
            self.fail(f"the file ends inside {what} (string {len(ends)} of {count})")
        self.position = position
        return Strings(mapped[first:position], ends)

    def numbers(self, kind: ValueType, count: int, what: str) -> list[bool] | array[int] | array[float]:
        dtype = _NUMBERS[kind]
        start = self.take(count * dtype.itemsize, what)
        stored = self.mapped[start : self.position]
        if kind is not ValueType.BOOL:
            values: array[int] | array[float] = array(_ARRAY_CODES[kind], stored)
            return values
        if any(value > 1 for value in stored):
            self.fail(f"{what} has a boolean that is neither 0 nor 1")
        return [bool(value) for value in stored]


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise ModelFileError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


def _read_header(reader: _Reader) -> tuple[int, int, int]:
    """Version, number of tensors, number of metadata values."""
    start = reader.take(len(MAGIC), "the header")
    magic = reader.mapped[start : start + len(MAGIC)]
    if magic != MAGIC:
        reader.fail(f"not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    version = reader.u32("the header")
    if version & 0xFFFF == 0 and version != 0:
        raise UnsupportedModelError(f"{reader.path}: a big-endian GGUF file; convert it to little-endian")
    if version not in VERSIONS:
        reader.fail(f"GGUF version {version} is not supported; versions 2 and 3 are")
    return version, reader.u64("the header"), reader.u64("the header")


def _read_metadata(reader: _Reader, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        key = reader.string(f"the key of metadata value {index} of {count}", MAX_NAME_BYTES)
        if key in metadata:
            reader.fail(f"metadata key {key!r} occurs twice")
        metadata[key] = _read_value(reader, f"metadata value {key!r}")
    return metadata


def _read_value(reader: _Reader, what: str) -> MetadataValue:
    kind = _read_value_type(reader, what)
    if kind is ValueType.STRING:
        return reader.string(what)
    if kind is ValueType.ARRAY:
        return _read_array(reader, what)
    return reader.numbers(kind, 1, what)[0]


def _read_array(reader: _Reader, what: str) -> MetadataValue:
    kind = _read_value_type(reader, what)
    count = reader.u64(what)
    if kind is ValueType.ARRAY:
        raise UnsupportedModelError(f"{reader.path}: {what} is an array of arrays, which is not supported")
    if kind is ValueType.STRING:
        return reader.strings(count, what)
    return reader.numbers(kind, count, what)


def _read_value_type(reader: _Reader, what: str) -> ValueType:
    number = reader.u32(what)
    try:
        return ValueType(number)
    except ValueError:
        reader.fail(f"{what} has the unknown value type {number}")


def _read_tensor_table(reader: _Reader, count: int) -> dict[str, _TableEntry]:
    table: dict[str, _TableEntry] = {}
    for index in range(count):
        entry = _read_tensor_entry(reader, f"entry {index} of {count} of the tensor table")
        if entry.name in table:
            reader.fail(f"tensor {entry.name!r} occurs twice")
        table[entry.name] = entry
    return table


def _read_tensor_entry(reader: _Reader, what: str) -> _TableEntry:
    name = reader.string(f"the name in {what}", MAX_NAME_BYTES)
    what = f"the table entry of tensor {name!r}"
    num_dimensions = reader.u32(what)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        reader.fail(f"tensor {name!r} has {num_dimensions} dimensions, 1 to {MAX_DIMENSIONS} are allowed")
    shape = tuple(reader.u64(what) for _ in range(num_dimensions))[::-1]
    if 0 in shape:
        reader.fail(f"tensor {name!r} is empty: its shape is {shape}")
    number = reader.u32(what)
    try:
        kind = GGUFType(number)
    except ValueError:
        raise UnsupportedModelError(f"{reader.path}: tensor {name!r} has the unknown type {number}") from None
    if shape[-1] % kind.block_size:
        reader.fail(f"tensor {name!r}: rows of {shape[-1]} do not divide into {kind.name} blocks of {kind.block_size}")
    return _TableEntry(name, shape, kind, reader.u64(what))


def _alignment(reader: _Reader, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int):
        reader.fail(f"metadata value 'general.alignment' is no integer but {type(alignment).__name__}")
    if alignment <= 0 or alignment & (alignment - 1):
        reader.fail(f"metadata value 'general.alignment' is {alignment}, not a power of two")
    return alignment


def _map_tensors(reader: _Reader, table: Mapping[str, _TableEntry], alignment: int) -> dict[str, GGUFTensor]:
    data_start = -(-reader.position // alignment) * alignment
    mapped = np.frombuffer(reader.mapped, np.uint8)
    return {name: _map_tensor(reader, mapped, entry, data_start, alignment) for name, entry in table.items()}


def _map_tensor(
    reader: _Reader, mapped: npt.NDArray[np.uint8], entry: _TableEntry, data_start: int, alignment: int
) -> GGUFTensor:
    if entry.offset % alignment:
        reader.fail(f"tensor {entry.name!r}: its offset {entry.offset} is not a multiple of the alignment {alignment}")
    num_bytes = prod(entry.shape) // entry.type.block_size * entry.type.block_bytes
    start = data_start + entry.offset
    if start + num_bytes > reader.size:
        reader.fail(
            f"tensor {entry.name!r} ({entry.type.name} {list(entry.shape)}) takes {num_bytes} bytes from byte {start}, "
            f"but the file ends at byte {reader.size}"
        )
    return GGUFTensor(entry.name, entry.shape, entry.type, mapped[start : start + num_bytes])
