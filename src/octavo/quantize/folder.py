"""A folder of safetensors that is written: the tensors that stay as they are, those that take the place of a matrix,
config.json with what was done, and the files of the tokenizer.

Of a GGUF file the tensors get the names, and q and k the order of rows, that folders have.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from octavo.errors import UnsupportedError
from octavo.model_config import ModelConfig
from octavo.models.config_json import config_json, same_model
from octavo.models.registry import program_for
from octavo.quantize.outputs import Spec, safetensors_file
from octavo.quantize.packing import Parts
from octavo.quantize.subject import Subject
from octavo.text.folder_files import folder_files

COPIED = (".json", ".txt", ".jinja", ".model")  # beside the weights; larger ones are no part of a tokenizer
LARGEST = 64 << 20
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Folder:
    """replaced: tensor's name in the folder -> end of a name -> spec of what stands for it. changed: tensors whose
    values change, which become F32. The weights are written when all of them are put; the rest on entering."""

    def __init__(
        self,
        subject: Subject,
        path: Path,
        replaced: Mapping[str, Mapping[str, Spec]],
        changed: Collection[str] = (),
    ) -> None:
        self._subject = subject
        self._path = path
        self._config, self._kept = _gguf_parts(subject) if subject.checkpoint.format == "gguf" else _parts(subject)
        specs: dict[str, Spec] = {}
        for name, (dtype, shape) in self._kept.items():
            if name in replaced:
                specs |= {stem_of(name) + end: spec for end, spec in replaced[name].items()}
            else:
                specs[name] = ("F32" if name in changed else dtype), shape
        self._left = [name for name in self._kept if name not in replaced and name not in changed]
        path.mkdir()
        self._out = safetensors_file(path / "model.safetensors", specs)

    @property
    def kept_matrices(self) -> list[str]:
        """Modules with a matrix that stays as it is, the embedding aside."""
        tables = {folder_name(self._subject, name) for name in self._subject.tables}
        found = [n for n in self._left if n.endswith(".weight") and len(self._kept[n][1]) == 2 and n not in tables]
        return [
            *(name.removesuffix(".weight") for name in found),
            *(["lm_head"] if "lm_head.weight" not in found else []),
        ]

    def state(self, quantization: Mapping[str, Any]) -> None:
        """Writes config.json."""
        config = {**self._config, "quantization_config": dict(quantization)}
        (self._path / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")

    def put(self, name: str, parts: Parts) -> None:
        """What takes the place of a matrix."""
        for end, part in parts.items():
            self._out.put(stem_of(name) + end, part.contiguous().numpy())

    def change(self, name: str, values: torch.Tensor) -> None:
        self._out.put(name, values.float().contiguous().numpy())

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self._keep()
        self._out.__exit__(kind, error, tb)

    def _keep(self) -> None:
        subject = self._subject
        if subject.checkpoint.format == "hf":
            for name in self._left:
                self._out.put(name, subject.checkpoint.raw(name))
            _copy_files(subject.path, self._path)
            return
        names = {folder_name(subject, name): name for name in subject.program.weights}
        for name in self._left:
            values = subject.values(names[name]).to(FLOATS[self._kept[name][0]]).contiguous()
            self._out.put(name, values.view(torch.uint8).numpy())
        for file, text in folder_files(subject.checkpoint.tokenizer).items():
            (self._path / file).write_text(text, encoding="utf-8")


def stem_of(name: str) -> str:
    return name.removesuffix(".weight")


def folder_name(subject: Subject, weight: str) -> str:
    """What a weight's tensor is called in the folder."""
    if subject.checkpoint.format == "hf":
        return subject.sources[weight]
    return subject.program.weights[weight].sources["hf"]


def _parts(subject: Subject) -> tuple[dict[str, Any], dict[str, Spec]]:
    """(config.json, name -> spec)"""
    headers = subject.checkpoint.headers
    return dict(subject.checkpoint.config), {name: (header.dtype, header.shape) for name, header in headers.items()}


def _gguf_parts(subject: Subject) -> tuple[dict[str, Any], dict[str, Spec]]:
    """The same for a GGUF file. Raises ConfigError or UnsupportedError where a folder cannot say what it says."""
    config = config_json(subject.model)
    other = program_for(ModelConfig.from_mapping(config))
    if not same_model(subject.program, other) or any(weight.prep for weight in other.weights.values()):
        what = (
            f"{subject.path}: config.json cannot state all that this GGUF file does; quantize the folder it was made of"
        )
        raise UnsupportedError(what, param="model")
    specs: dict[str, Spec] = {}
    for name, weight in subject.program.weights.items():
        dtype = subject.checkpoint.headers[subject.sources[name]].dtype
        wide = "F32" if len(weight.shape) < 2 else "BF16"
        specs[weight.sources["hf"]] = (dtype if dtype in FLOATS and len(weight.shape) > 1 else wide), weight.shape
    return config, specs


def _copy_files(source: Path, target: Path) -> None:
    """The small files beside the weights, and the folder that says how an encoder pools."""
    for entry in sorted(source.iterdir()):
        written = entry.name == "config.json" or entry.name.endswith(".index.json")
        if entry.is_file() and entry.suffix in COPIED and not written and entry.stat().st_size <= LARGEST:
            shutil.copyfile(entry, target / entry.name)
    if (source / "1_Pooling").is_dir():
        shutil.copytree(source / "1_Pooling", target / "1_Pooling")
