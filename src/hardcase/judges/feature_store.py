"""Features of images on the disk, by what the image shows: computed once, and again only where they
are missing.

A folder for every encoder, its layers and the view; in it parts of some hundred images, each
written whole. Work that was interrupted goes on after the last finished part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from hardcase.cache import cache_folder, write_atomically
from hardcase.errors import Problem
from hardcase.judges.encoders import Encoder, Seen
from hardcase.tensors import chunks, digest, fingerprints, from_bytes

PART = 128
"""Images in one part: what an interruption can lose."""
Tell = Callable[[int, int], None]
"""Told how many images are done, of how many."""


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """Where features are kept.

    Args:
        root: The folder; that of the user's cache if not given.
    """

    root: Path | None = None

    def folder(self, encoder: Encoder, view: str) -> Path:
        size = [str(encoder.size)] if encoder.size else []
        key = digest([encoder.hash, *encoder.layers, view, *size])
        return (self.root or cache_folder() / "features") / key

    def features(
        self,
        encoder: Encoder,
        x: UInt8[Tensor, "n c h w"],
        *,
        view: str = "plain",
        batch: int = 32,
        tell: Tell | None = None,
    ) -> Seen:
        """Features and scores of 8-bit images, read where they are known and computed and kept
        where they are not.
        """
        folder = self.folder(encoder, view)
        keys = fingerprints(x)
        known = self._known(folder, keys)
        missing = [row for row, key in enumerate(keys.tolist()) if key not in known]
        for number, rows in enumerate(chunks(len(missing), PART)):
            some = missing[rows]
            part = encoder.ask(
                from_bytes(x[some].to(encoder.subject.device)), view=view, batch=batch
            )
            self._keep(folder, keys[some], part)
            known.update(self._rows(keys[some], part))
            if tell is not None:
                tell(len(keys) - len(missing) + min((number + 1) * PART, len(missing)), len(keys))
        found = [known[key] for key in keys.tolist()]
        if not found:
            raise Problem("there are no images to take features of.")
        names = encoder.layers
        joined = {name: torch.stack([row[name] for row in found]) for name in names}
        return Seen(joined, torch.stack([row[LOGITS] for row in found]))

    def _known(self, folder: Path, keys: Int[Tensor, " n"]) -> dict[int, dict[str, Tensor]]:
        """The kept rows of these images."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        known: dict[int, dict[str, Tensor]] = {}
        for path in sorted(folder.glob("part-*.safetensors")):
            try:
                table = load_file(path)
                own = torch.isin(table[KEYS], keys)
                found = table[KEYS][own].tolist()
            except (SafetensorError, OSError, KeyError) as error:
                raise Problem(f"{path} cannot be used: {error}", fix=f"delete {path}") from error
            values = {name: value[own] for name, value in table.items() if name != KEYS}
            known |= {
                key: {name: value[i] for name, value in values.items()}
                for i, key in enumerate(found)
            }
        return known

    def _keep(self, folder: Path, keys: Int[Tensor, " m"], seen: Seen) -> None:
        from safetensors.torch import save

        table = {
            KEYS: keys,
            LOGITS: seen.logits.cpu(),
            **{n: v.cpu() for n, v in seen.features.items()},
        }
        name = digest([keys.numpy().tobytes()])
        write_atomically(
            folder / f"part-{name}.safetensors", save({n: v.contiguous() for n, v in table.items()})
        )

    def _rows(self, keys: Int[Tensor, " m"], seen: Seen) -> Iterator[tuple[int, dict[str, Tensor]]]:
        columns = {
            LOGITS: seen.logits.cpu(),
            **{name: value.cpu() for name, value in seen.features.items()},
        }
        for row, key in enumerate(keys.tolist()):
            yield key, {name: value[row] for name, value in columns.items()}


KEYS = "hardcase.keys"
LOGITS = "hardcase.logits"
