"""Draft heads by what their folders say: `head:PATH`.

config.json names the kind in `architectures`; else the kind is that whose field, or tensor, is there: the first EAGLE
heads are called after their targets. A kind is a file of its own, and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from octavo.drafters.eagle import EagleDrafter
from octavo.drafters.folder import HeadFolder
from octavo.drafters.medusa import MedusaDrafter
from octavo.drafters.mtp_head import mtp_head
from octavo.drafters.port import Drafter
from octavo.drafters.recurrent import RecurrentDrafter
from octavo.drafters.target import Target
from octavo.errors import ConfigError


class HeadMaker(Protocol):
    def __call__(self, folder: HeadFolder, target: Target, *, adaptive: bool = True) -> Drafter: ...


# Part of an architecture's name -> (a field or tensor that only this kind has, its drafter). The first that fits.
KINDS: Mapping[str, tuple[str, HeadMaker]] = {
    "Medusa": ("medusa_num_heads", MedusaDrafter),
    "ReDrafter": ("rnn", RecurrentDrafter),
    "MTP": ("num_nextn_predict_layers", mtp_head),
    "Eagle": ("fc.weight", EagleDrafter),
}


def head_drafter(path: str, target: Target, *, adaptive: bool = True) -> Drafter:
    """adaptive: it proposes what is worth its rows; else always all that it has.

    Raises MissingFileError, PolicyError, BadFileError, ConfigError: one line that names the folder."""
    folder = HeadFolder(Path(path), target)
    name = folder.architecture
    named = [drafter for part, (_, drafter) in KINDS.items() if part in name]
    told = [drafter for sign, drafter in KINDS.values() if folder.has(sign) or folder.fields.get(sign) is not None]
    if named or told:
        return (named or told)[0](folder, target, adaptive=adaptive)
    what = f"architectures {name!r}" if name else "config.json names no architecture, and it"
    raise ConfigError(f"{path}: {what} is none of the draft heads known: {', '.join(KINDS)}", code="unsupported")
