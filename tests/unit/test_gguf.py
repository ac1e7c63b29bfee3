"""The GGUF reader: the same as the `gguf` package's on good files, a typed error on everything else."""

from __future__ import annotations

import math
import random
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from octavo.weights.gguf import GGUFFile, GGUFType, ValueType

QUANTISED = [GGUFType.Q4_0, GGUFType.Q4_1, GGUFType.Q5_0, GGUFType.Q5_1, GGUFType.Q8_0, GGUFType.Q4_K, GGUFType.Q6_K]


def test_types_are_those_of_the_gguf_package() -> None:
    """Except Q8_1, never stored in files, for which that package has a size that ggml has given up."""
    sizes = {kind.name: (int(kind), *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    ours = {kind.name: (int(kind), kind.block_size, kind.block_bytes) for kind in GGUFType}
    del sizes["Q8_1"], ours["Q8_1"]
    assert ours == sizes
    assert {kind.name: int(kind) for kind in ValueType} == {kind.name: int(kind) for kind in gguf.GGUFValueType}


def test_a_real_model_reads_as_with_the_gguf_package(smollm2_path: Path) -> None:
    with GGUFFile(smollm2_path) as file:
        assert_same(file, gguf.GGUFReader(smollm2_path))


@pytest.mark.parametrize(("model", "limit_s"), [("smollm2_path", 0.3), ("gemma3_path", 1.0)])
def test_a_vocabulary_is_read_quickly(model: str, limit_s: float, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        GGUFFile(path).close()
        seconds.append(time.process_time() - start)
    assert min(seconds) < limit_s


def test_a_forgotten_tensor_takes_no_memory_and_can_be_read_again(smollm2_path: Path) -> None:
    """While weights are packed, the file must not pile up beside them."""

    def mapped_bytes() -> int:
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile")]
        return int(line.split()[1]) * 1024

    with GGUFFile(smollm2_path) as file:
        largest = max(file.tensors.values(), key=lambda tensor: tensor.data.nbytes)
        before = largest.data.copy()
        held = mapped_bytes()
        file.forget(largest.data)
        assert mapped_bytes() < held - 0.9 * largest.data.nbytes
        np.testing.assert_array_equal(largest.data, before)


def test_closing_unmaps_the_file(smollm2_path: Path) -> None:
    def mapped() -> bool:
        return smollm2_path.name in Path("/proc/self/maps").read_text()

    file = GGUFFile(smollm2_path)
    view = file.tensors["output_norm.weight"].data
    assert mapped()
    file.close()
    assert np.isfinite(view.view(np.float32)).all(), "a view that is still held stays readable"
    del view
    assert not mapped()


# Random good files


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, tuple[tuple[int, ...], GGUFType]]:
    names = draw(st.lists(st.text(min_size=1, max_size=40), max_size=5, unique=True))
    kinds = st.sampled_from([GGUFType.F32, GGUFType.F16, GGUFType.BF16, GGUFType.I8, *QUANTISED])
    found = {}
    for name in names:
        kind = draw(kinds)
        outer = draw(st.lists(st.integers(1, 4), max_size=3))
        found[name] = ((*outer, kind.block_size * draw(st.integers(1, 3))), kind)
    return found


number_arrays = st.one_of(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.lists(st.text(max_size=20), min_size=1, max_size=9),
)
scalars: dict[str, st.SearchStrategy[object]] = {
    "add_uint8": st.integers(0, 2**8 - 1),
    "add_int8": st.integers(-(2**7), 2**7 - 1),
    "add_uint16": st.integers(0, 2**16 - 1),
    "add_int16": st.integers(-(2**15), 2**15 - 1),
    "add_uint32": st.integers(0, 2**32 - 1),
    "add_int32": st.integers(-(2**31), 2**31 - 1),
    "add_uint64": st.integers(0, 2**64 - 1),
    "add_int64": st.integers(-(2**63), 2**63 - 1),
    "add_float32": st.floats(width=32, allow_nan=False),
    "add_float64": st.floats(allow_nan=False),
    "add_bool": st.booleans(),
    "add_string": st.text(min_size=1),
    "add_array": number_arrays,
}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    values=st.dictionaries(
        st.text(min_size=1, max_size=30),
        st.sampled_from(sorted(scalars)).flatmap(lambda m: st.tuples(st.just(m), scalars[m])),
    ),
    stored=tensors(),
    alignment=st.sampled_from([None, 8, 64, 256]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_random_file_reads_as_with_the_gguf_package(
    values: dict[str, tuple[str, object]],
    stored: dict[str, tuple[tuple[int, ...], GGUFType]],
    alignment: int | None,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "random.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, (method, value) in values.items():
        if key not in ("general.architecture", "general.alignment"):
            getattr(writer, method)(key, value)
    rng = np.random.default_rng(seed)
    for name, (shape, kind) in stored.items():
        rows = rng.integers(0, 256, (*shape[:-1], shape[-1] // kind.block_size * kind.block_bytes), np.uint8)
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType(kind))
    write(writer)
    with GGUFFile(path) as file:
        assert_same(file, gguf.GGUFReader(path))
        assert {name: tensor.shape for name, tensor in file.tensors.items()} == {n: s for n, (s, _) in stored.items()}


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def assert_same(file: GGUFFile, oracle: gguf.GGUFReader) -> None:
    fields = {key: field for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, field in fields.items():
        value = file.metadata[key]
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = list(value)
        assert value == field.contents(), key
        assert type(value) is type(field.contents()), key
    assert file.alignment == oracle.alignment
    assert list(file.tensors) == [tensor.name for tensor in oracle.tensors]
    for tensor in oracle.tensors:
        ours = file.tensors[tensor.name]
        assert ours.shape == tuple(int(n) for n in tensor.shape)[::-1]
        assert ours.type.name == tensor.tensor_type.name
        assert ours.data.nbytes == tensor.n_bytes
        assert np.array_equal(ours.data, tensor.data.reshape(-1).view(np.uint8))
        assert not ours.data.flags.writeable


# Malformed files, made byte by byte


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(key: str | bytes, kind: int, raw: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + raw


def entry(name: str, dims: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_bytes(
    values: tuple[bytes, ...] = (),
    entries: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    num_values: int | None = None,
    num_entries: int | None = None,
) -> bytes:
    counts = (len(entries) if num_entries is None else num_entries, len(values) if num_values is None else num_values)
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(values) + b"".join(entries)
    return head + bytes(-len(head) % 32) + data


ARRAY, STRING, BOOL, U32 = ValueType.ARRAY, ValueType.STRING, ValueType.BOOL, ValueType.UINT32
BIG = 2**63
FLOATS = bytes(32)

MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "short": (b"GG", "ends inside the header"),
    "version 1": (file_bytes(version=1), "version 1 is not supported"),
    "version 4": (file_bytes(version=4), "version 4 is not supported"),
    "version 0": (file_bytes(version=0), "version 0 is not supported"),
    "value count": (file_bytes(num_values=BIG), "ends inside metadata value"),
    "tensor count": (file_bytes(num_entries=BIG), "ends inside the table entry"),
    "key length": (file_bytes((struct.pack("<Q", BIG) + b"a",)), "key of metadata value 0 of 1 is .* bytes long"),
    "key twice": (file_bytes((value("a", U32, bytes(4)),) * 2), "key 'a' occurs twice"),
    "key utf-8": (file_bytes((value(b"\xff", U32, bytes(4)),)), "key of metadata value 0 of 1 is not valid UTF-8"),
    "value type": (file_bytes((value("a", 13, bytes(8)),)), "'a' has the unknown value type 13"),
    "string length": (file_bytes((value("a", STRING, struct.pack("<Q", BIG)),)), "ends inside metadata value 'a'"),
    "string utf-8": (file_bytes((value("a", STRING, string(b"\xc3")),)), "'a' is not valid UTF-8"),
    "boolean": (file_bytes((value("a", BOOL, b"\x02"),)), "'a' has a boolean that is neither"),
    "array length": (file_bytes((value("a", ARRAY, struct.pack("<IQ", U32, BIG)),)), "ends inside metadata value 'a'"),
    "strings length": (
        file_bytes((value("a", ARRAY, struct.pack("<IQ", STRING, BIG)),)),
        "ends inside metadata value 'a'",
    ),
    "strings string": (
        file_bytes((value("a", ARRAY, struct.pack("<IQ", STRING, 2) + string("x") + struct.pack("<Q", BIG)),)),
        r"ends inside metadata value 'a' \(string 1 of 2\)",
    ),
    "strings utf-8": (
        file_bytes((value("a", ARRAY, struct.pack("<IQ", STRING, 2) + string("x") + string(b"\x80")),)),
        "'a': string 1 is not valid UTF-8",
    ),
    "array type": (file_bytes((value("a", ARRAY, struct.pack("<IQ", 99, 1)),)), "'a' has the unknown value type 99"),
    "alignment 0": (file_bytes((value("general.alignment", U32, bytes(4)),)), "'general.alignment' is 0"),
    "alignment 24": (file_bytes((value("general.alignment", U32, struct.pack("<I", 24)),)), "is 24, not a power"),
    "alignment type": (file_bytes((value("general.alignment", STRING, string("32")),)), "is no integer but str"),
    "name twice": (file_bytes((), (entry("t", (8,), 0),) * 2, FLOATS), "tensor 't' occurs twice"),
    "dimensions 0": (file_bytes((), (entry("t", (), 0),), FLOATS), "tensor 't' has 0 dimensions"),
    "dimensions 5": (file_bytes((), (entry("t", (1,) * 5, 0),), FLOATS), "tensor 't' has 5 dimensions"),
    "empty tensor": (file_bytes((), (entry("t", (8, 0), 0),), FLOATS), "tensor 't' is empty"),
    "row": (file_bytes((), (entry("t", (33,), GGUFType.Q4_0),), bytes(64)), "tensor 't': rows of 33 do not divide"),
    "row K": (file_bytes((), (entry("t", (32, 8), GGUFType.Q4_K),), bytes(144)), "tensor 't': rows of 32 do not"),
    "overflow": (file_bytes((), (entry("t", (2**40,) * 4, 0),), FLOATS), "tensor 't' .*the file ends at"),
    "wraps to 0": (file_bytes((), (entry("t", (2**62, 4), 0),), FLOATS), "tensor 't' .*the file ends at"),
    "offset": (file_bytes((), (entry("t", (8,), 0, 64),), FLOATS), "tensor 't' .*the file ends at"),
    "offset wraps": (file_bytes((), (entry("t", (8,), 0, 2**64 - 32),), FLOATS), "tensor 't' .*the file ends at"),
    "misaligned": (file_bytes((), (entry("t", (8,), 0, 4),), bytes(64)), "tensor 't': its offset 4 is not a multiple"),
    "contents": (file_bytes((), (entry("t", (9,), 0),), FLOATS), "tensor 't' .* takes 36 bytes"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_by_name(case: str, tmp_path: Path) -> None:
    raw, message = MALFORMED[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=message) as error:
        GGUFFile(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (file_bytes((), (entry("t", (8,), 77),), FLOATS), "tensor 't' has the unknown type 77"),
        (file_bytes((value("a", ARRAY, struct.pack("<IQ", ARRAY, 1)),)), "'a' is an array of arrays"),
    ],
)
def test_what_is_well_formed_but_not_supported_says_so(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(raw)
    with pytest.raises(UnsupportedModelError, match=message):
        GGUFFile(tmp_path / "bad.gguf")


def test_good_bytes_are_read(tmp_path: Path) -> None:
    """The builder of the malformed files makes good ones too; version 2; tensors may overlap."""
    path = tmp_path / "good.gguf"
    entries = (entry("t", (4, 2), 0), entry("u", (8,), 0))
    path.write_bytes(file_bytes((value("a", BOOL, b"\x01"),), entries, np.arange(8, dtype="<f4").tobytes(), version=2))
    with GGUFFile(path) as file:
        assert file.metadata == {"a": True}
        assert file.tensors["t"].shape == (2, 4)
        assert file.tensors["u"].data.view(np.float32).tolist() == list(range(8))


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        GGUFFile(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        GGUFFile(tmp_path)


# Mutations of a good file: a typed error or a valid read, nothing else


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "good.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_rope_freq_base(1e4)
    writer.add_token_list(["a", "é", "漢字", "🙂", ""])
    writer.add_token_types([1, 1, 1, 1, 3])
    writer.add_array("some.booleans", [True, False])
    writer.add_tensor("a.weight", np.ones((3, 8), np.float32))
    writer.add_tensor("b.weight", np.zeros((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    write(writer)
    return path.read_bytes()


def read_or_typed_error(path: Path) -> bool:
    """True if the file could be read, and then all of it is in reach."""
    try:
        file = GGUFFile(path)
    except ModelError as error:
        assert str(path) in str(error)
        return False
    with file:
        for tensor in file.tensors.values():
            blocks = math.prod(tensor.shape) // tensor.type.block_size
            assert tensor.data.nbytes == blocks * tensor.type.block_bytes
            tensor.data.sum()
    return True


def test_a_file_cut_anywhere_is_refused(good_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    padding = -(2 * 34) % 32  # after the last tensor, which nobody needs
    for length in range(len(good_bytes) - padding):
        path.write_bytes(good_bytes[:length])
        with pytest.raises(ModelFileError):
            GGUFFile(path)
    path.write_bytes(good_bytes[: len(good_bytes) - padding])
    assert read_or_typed_error(path)


def flip_bits(raw: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def overwrite_number(raw: bytearray, rng: random.Random) -> None:
    number = rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, rng.getrandbits(16)])
    start = rng.randrange(len(raw) - 8)
    raw[start : start + 8] = struct.pack("<Q", number)


def drop_bytes(raw: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(raw))
    del raw[start : start + rng.randint(1, 16)]


def repeat_bytes(raw: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(raw))
    raw[start:start] = raw[start : start + rng.randint(1, 64)]


@pytest.mark.parametrize("mutate", [flip_bits, overwrite_number, drop_bytes, repeat_bytes])
def test_a_mutated_file_is_read_or_refused(
    mutate: Callable[[bytearray, random.Random], None], good_bytes: bytes, tmp_path: Path
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    path = tmp_path / f"mutated-{seed}.gguf"
    header_bytes = good_bytes.index(b"b.weight") + 40
    for _ in range(500):
        raw = bytearray(good_bytes[:header_bytes])
        mutate(raw, rng)
        path.write_bytes(raw + good_bytes[header_bytes:])
        read_or_typed_error(path)
