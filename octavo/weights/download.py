"""Fetching one file over HTTP into a partial file, resumed where an earlier attempt stopped, and checked."""

from __future__ import annotations

import hashlib
import http.client
import logging
import re
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import DownloadError, WrongDigestError
from octavo.weights.progress import Progress

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 60
MAX_FRUITLESS_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on an HTTP server. `sha256` is what its index promises; `ca_file` has certificates to trust."""

    url: str
    name: str
    sha256: str | None = None
    ca_file: str | None = None


def download(remote: RemoteFile, target: Path, progress: Progress) -> None:
    """Fetch `remote` to `target`, by way of `target` + ".part", which is kept when the transfer breaks off.

    Raises `DownloadError` if the server refuses or the connection keeps failing, `WrongDigestError` if what arrived is
    not what was announced.
    """
    part = target.with_name(target.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    _transfer(remote, part, progress)
    found = sha256_of(part) if remote.sha256 is not None else None
    if resumed and found != remote.sha256:
        log.warning("%s: what an earlier download left does not fit; starting again", remote.name)
        part.unlink()
        _transfer(remote, part, progress)
        found = sha256_of(part)
    if found != remote.sha256:
        part.unlink()
        raise WrongDigestError(f"{remote.name}: sha256 of the download is {found}, expected {remote.sha256}")
    part.replace(target)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _transfer(remote: RemoteFile, part: Path, progress: Progress) -> None:
    """Append to `part` until it is whole; a broken connection is taken up again while each attempt brings something."""
    fruitless = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _attempt(remote, part, before, progress):
                return
            problem = "the connection closed early"
        except urllib.error.HTTPError as error:
            error.close()
            raise DownloadError(f"{remote.name}: the server answered {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
        after = part.stat().st_size if part.exists() else 0
        fruitless = fruitless + 1 if after <= before else 0
        if fruitless == MAX_FRUITLESS_ATTEMPTS:
            raise DownloadError(f"{remote.name}: the download stopped after {after} bytes: {problem}")
        log.warning("%s: %s after %d bytes; resuming", remote.name, problem, after)
        time.sleep(0.2 * 2**fruitless)


def _attempt(remote: RemoteFile, part: Path, start: int, progress: Progress) -> bool:
    """One request from byte `start` on. True when the file is whole."""
    headers = {"Range": f"bytes={start}-"} if start else {}
    context = ssl.create_default_context(cafile=remote.ca_file)
    request = urllib.request.Request(remote.url, headers={**headers, "Accept-Encoding": "identity"})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()  # the partial file is whole already, or longer than what is there now: the digest will tell
        return _is_whole(part, error.headers.get("Content-Range", ""))
    with response:
        if start and not _resumes_at(response, start):
            start = 0
        total = None if response.length is None else start + response.length
        return _append(response, part, start, total, remote.name, progress)


def _append(
    response: http.client.HTTPResponse, part: Path, start: int, total: int | None, name: str, progress: Progress
) -> bool:
    done = start
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        progress(done, total, name)
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            done += len(chunk)
            progress(done, total, name)
    return total is None or done == total


def _resumes_at(response: http.client.HTTPResponse, start: int) -> bool:
    content_range = response.headers.get("Content-Range", "")
    return response.status == http.HTTPStatus.PARTIAL_CONTENT and content_range.startswith(f"bytes {start}-")


def _is_whole(part: Path, content_range: str) -> bool:
    """Whether `part` has the length a 416 answer reports ("bytes */LENGTH"); if not, it is dropped."""
    found = re.fullmatch(r"bytes \*/(\d+)", content_range)
    if found and int(found[1]) == part.stat().st_size:
        return True
    part.unlink()
    return False
