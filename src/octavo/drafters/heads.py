"""Draft heads by what their folders say: `head:PATH`.

config.json names the kind in `architectures`, or has the fields that only one kind has. A kind is a file of its own,
and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from octavo.drafters.folder import HeadFolder
from octavo.drafters.medusa import MedusaDrafter
from octavo.drafters.port import Drafter
from octavo.drafters.recurrent import RecurrentDrafter
from octavo.drafters.target import Target
from octavo.errors import ConfigError

# Part of an architecture's name -> (a field that only this kind has, its drafter). The first that fits.
KINDS: Mapping[str, tuple[str, Callable[[HeadFolder, Target], Drafter]]] = {
    "Medusa": ("medusa_num_heads", MedusaDrafter),
    "ReDrafter": ("rnn", RecurrentDrafter),
}


def head_drafter(path: str, target: Target) -> Drafter:
    """Raises MissingFileError, PolicyError, BadFileError, ConfigError: one line that names the folder."""
    folder = HeadFolder(Path(path), target)
    name = folder.architecture
    for part, (field, drafter) in KINDS.items():
        if part in name or (not name and folder.fields.get(field) is not None):
            return drafter(folder, target)
    what = f"architectures {name!r}" if name else "config.json names no architecture, and it"
    raise ConfigError(f"{path}: {what} is none of the draft heads known: {', '.join(KINDS)}", code="unsupported")
