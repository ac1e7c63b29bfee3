"""Blocks in files, for prefixes that memory has no room for: they outlive the process.

A folder for each fingerprint (what the bytes of a block mean: model, precision, layout, version) holds a file for each
block, named by the digest of all tokens up to its end. A file:

    magic, version, number of layer groups      "OCTAVOKV", u32, u32
    fingerprint, digest                         32 bytes each
    bytes of each group's part                  u64 each; 0: the group has no such block
    parts
    checksum of everything before               32 bytes (BLAKE2b)
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from threading import Lock

logger = logging.getLogger(__name__)

DIGEST_BYTES = 32
_MAGIC = b"OCTAVOKV"
_VERSION = 1
_HEAD = struct.Struct(f"<8sII{DIGEST_BYTES}s{DIGEST_BYTES}s")
_SUFFIX = ".block"
# So much may wait to be written; more is not kept.
_MAX_UNWRITTEN_BYTES = 256 * 2**20

Parts = tuple[bytes | None, ...]
"""A block's bytes in each layer group; None where a group does not have it."""


class BlockStore:
    """At most `max_bytes` of blocks under `folder`; the least recently used go first.

    `part_bytes` are the sizes of a block in each layer group. Reading happens in the caller's thread, writing in one of
    its own. A file that is damaged, or of another fingerprint, is ignored with a warning. Raises `OSError` if the
    folder cannot be made; later failures to write are logged.
    """

    def __init__(self, folder: Path, fingerprint: bytes, part_bytes: Sequence[int], max_bytes: int) -> None:
        self._fingerprint = blake2b(fingerprint, digest_size=DIGEST_BYTES).digest()
        self._folder = folder / self._fingerprint.hex()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._part_bytes = tuple(part_bytes)
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._sizes: OrderedDict[bytes, int] = OrderedDict()  # of the files there are, least recently used first
        self._num_bytes = 0
        self._unwritten: dict[bytes, Parts] = {}
        self._num_unwritten_bytes = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-offload")
        self._scan()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sizes or digest in self._unwritten

    def __len__(self) -> int:
        with self._lock:
            return len(self._sizes.keys() | self._unwritten.keys())

    def put(self, digest: bytes, parts: Parts) -> None:
        """Keeps a block, if it is not here and there is not too much to write already."""
        num_bytes = sum(len(part) for part in parts if part is not None)
        with self._lock:
            if digest in self or self._num_unwritten_bytes + num_bytes > _MAX_UNWRITTEN_BYTES:
                return
            self._unwritten[digest] = parts
            self._num_unwritten_bytes += num_bytes
        self._writer.submit(self._write, digest, parts, num_bytes)

    def get(self, digest: bytes) -> Parts | None:
        """A block that is here; None if it turns out to be damaged."""
        with self._lock:
            parts = self._unwritten.get(digest)
            if parts is not None:
                return parts
            if digest not in self._sizes:
                return None
            self._sizes.move_to_end(digest)
        path = self._path(digest)
        try:
            data = path.read_bytes()
            parts = self._unpack(data, digest)
        except (OSError, ValueError) as error:
            logger.warning("ignoring %s of the KV cache: %s", path, error)
            self._drop(digest)
            return None
        return parts

    @property
    def max_blocks(self) -> int:
        """How many blocks fit."""
        return self._max_bytes // (sum(self._part_bytes) + _HEAD.size + 8 * len(self._part_bytes) + DIGEST_BYTES)

    def flush(self) -> None:
        """Waits until everything has been written."""
        self._writer.submit(lambda: None).result()

    def clear(self) -> None:
        """Deletes every block. Files that cannot be deleted are forgotten until the next start, with a warning."""
        self.flush()
        with self._lock:
            digests = list(self._sizes)
            self._sizes.clear()
            self._num_bytes = 0
        for digest in digests:
            self._delete(digest)

    def close(self) -> None:
        """Waits until everything has been written; nothing can be put here any more."""
        self._writer.shutdown(wait=True)

    # ---- files

    def _path(self, digest: bytes) -> Path:
        return self._folder / (digest.hex() + _SUFFIX)

    def _scan(self) -> None:
        found = []
        for path in self._folder.iterdir():
            digest = _digest_of(path)
            if digest is not None:
                status = path.stat()
                found.append((status.st_mtime_ns, digest, status.st_size))
            elif path.suffix == ".part":  # of a process that was killed
                path.unlink(missing_ok=True)
            else:
                logger.warning("ignoring %s in the folder of the KV cache: not a block", path)
        for _, digest, num_bytes in sorted(found):
            self._sizes[digest] = num_bytes
            self._num_bytes += num_bytes
        self._shrink()

    def _write(self, digest: bytes, parts: Parts, num_bytes: int) -> None:
        path = self._path(digest)
        data = self._pack(digest, parts)
        try:
            scratch = path.with_suffix(".part")
            scratch.write_bytes(data)
            scratch.replace(path)
        except OSError as error:
            logger.warning("cannot write %s of the KV cache: %s", path, error)
            data = b""
        with self._lock:
            del self._unwritten[digest]
            self._num_unwritten_bytes -= num_bytes
            if data:
                self._sizes[digest] = len(data)
                self._num_bytes += len(data)
        self._shrink()

    def _shrink(self) -> None:
        """Deletes files until the rest is small enough."""
        while self._num_bytes > self._max_bytes:
            with self._lock:
                digest, num_bytes = self._sizes.popitem(last=False)
                self._num_bytes -= num_bytes
            self._delete(digest)

    def _delete(self, digest: bytes) -> None:
        path = self._path(digest)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("cannot delete %s of the KV cache: %s", path, error)

    def _drop(self, digest: bytes) -> None:
        with self._lock:
            self._num_bytes -= self._sizes.pop(digest, 0)

    def _pack(self, digest: bytes, parts: Parts) -> bytes:
        sizes = struct.pack(f"<{len(parts)}Q", *(len(part or b"") for part in parts))
        head = _HEAD.pack(_MAGIC, _VERSION, len(parts), self._fingerprint, digest)
        body = b"".join((head, sizes, *(part or b"" for part in parts)))
        return body + _checksum(body)

    def _unpack(self, data: bytes, digest: bytes) -> Parts:
        """Raises `ValueError` saying what is wrong."""
        body = memoryview(data)[:-DIGEST_BYTES]
        num_parts = len(self._part_bytes)
        place = _HEAD.size + 8 * num_parts
        if len(body) < place:
            raise ValueError("it is too short")
        if body[: _HEAD.size] != _HEAD.pack(_MAGIC, _VERSION, num_parts, self._fingerprint, digest):
            raise ValueError("it is of another model, format or prompt")
        if _checksum(body) != data[-DIGEST_BYTES:]:
            raise ValueError("its checksum is wrong")
        sizes = struct.unpack(f"<{num_parts}Q", body[_HEAD.size : place])
        parts: list[bytes | None] = []
        for size, expected in zip(sizes, self._part_bytes, strict=True):
            if size not in (0, expected):
                raise ValueError(f"a part has {size} bytes, not {expected}")
            parts.append(bytes(body[place : place + size]) if size else None)
            place += size
        return tuple(parts)


def _checksum(body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES).digest()


def _digest_of(path: Path) -> bytes | None:
    if path.suffix != _SUFFIX or len(path.stem) != 2 * DIGEST_BYTES:
        return None
    try:
        return bytes.fromhex(path.stem)
    except ValueError:
        return None
