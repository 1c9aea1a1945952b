"""Parts of a long study, kept as they are measured: a stopped study goes on, and one with a limit of time ends with the rows it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter, time

from safetensors.torch import load_file, save_file
from torch import Tensor

from hardcase.cache import cache_folder, make_folder, write_atomically
from hardcase.environment import VERSION
from hardcase.tensors import digest
from hardcase.types import Findings, Images
from hardcase_studies.bench import Bench
from hardcase_studies.witness_world import SeedOutcomes, WitnessWorld

Tensors = Mapping[str, Tensor]
UNTIL = "until"


def limited(bench: Bench) -> Bench:
    """The bench with ``--set minutes=M`` as a moment, the same for all processes of the study."""
    limit = 60 * float(bench.options.get("minutes", "inf"))
    return replace(bench, options={**bench.options, UNTIL: time() + limit})


class OutOfTimeError(Exception):
    """The study's time is up and this part is not measured yet."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of one study on one sample of seeds."""

    folder: Path
    until: float
    say: Callable[[str], None]

    @staticmethod
    def of(bench: Bench, study: str, seeds: Images) -> Parts:
        """The parts of a study, which `limited` may have given an end."""
        key = digest([VERSION, study, bench.data, str(bench.seed), seeds.hash])
        until = float(bench.options.get(UNTIL, "inf"))
        return Parts(cache_folder() / "studies" / key, until, bench.say)

    def outcomes(
        self, world: WitnessWorld, name: str, seeds: Images, make: Callable[[], SeedOutcomes]
    ) -> SeedOutcomes:
        """What became of every seed in one search of one world."""

        def flat() -> dict[str, Tensor]:
            made = make()
            found = {f.name: getattr(made.found, f.name) for f in fields(Findings)}
            return {
                **{f"column {key}": value for key, value in made.columns.items()},
                **{f"found {key}": value for key, value in found.items()},
            }

        kept = self.tensors(world, name, flat)
        columns, found = (
            {key.removeprefix(role): kept[key] for key in kept if key.startswith(role)}
            for role in ("column ", "found ")
        )
        return SeedOutcomes(columns, Findings(**found), seeds)

    def tensors(self, world: WitnessWorld, name: str, make: Callable[[], Tensors]) -> Tensors:
        """A part that is plain tensors by name."""
        path = self.folder / f"{digest([name, world.hash])}.safetensors"
        if path.is_file():
            kept: dict[str, Tensor] = load_file(path)
            return kept
        if time() >= self.until:
            raise OutOfTimeError(name)
        begun = perf_counter()
        whole = {key: value.cpu().contiguous() for key, value in make().items()}
        make_folder(self.folder)
        write_atomically(path, lambda place: save_file(whole, place))
        self.say(f"{name}: {perf_counter() - begun:.1f} s")
        return whole
