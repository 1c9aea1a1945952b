"""SINVAD's feasibility study: what changes when pixels give way to latent codes (Figures 4, 5 and 6).

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.searching import search, usable, walk
from hardcase.experiments.world import World, world
from hardcase.methods.neurons import Profiles
from hardcase.methods.sinvad import sinvad, sinvad_surprise
from hardcase.oracles import Surprising
from hardcase.spaces.latent import collect
from hardcase.spaces.pixel import Pixels
from hardcase.tensors import from_bytes
from hardcase.types import Images, Seeds, Space


def run(bench: Bench) -> Outcome:
    """Interpolate, climb to a surprise, and find ambiguous images, in pixels and in codes."""
    here = world(bench)
    seeds = usable(
        here.subject, here.test.sample(count=int(bench.options.get("seeds", 40)), seed=bench.seed)
    )
    bench.say("interpolating")
    shown = [figures.images(bench.out / "interpolation.png", interpolations(here, seeds.first(8)))]
    few = seeds.first(int(bench.options.get("climbers", 100 if bench.full else 6)))
    climbs = [_climbed(bench, here, few, name, start) for name, start in CLIMBS]
    pictures = {climb.name: climb.images[:10] for climb in climbs} | {
        "real": seeds.x[: len(climbs[0].images[:10])]
    }
    shown.append(figures.images(bench.out / "surprise.png", pictures))
    rows, images = _ambiguous(bench, here, seeds)
    shown.append(figures.images(bench.out / "ambiguous.png", images))
    tables = [_climbing(bench, here, climbs), rows]
    return Outcome("sinvad-feasibility", tables, shown)


def interpolations(here: World, seeds: Images, steps: int = 9) -> dict[str, Tensor]:
    """Figure 4: between images of different classes, mixed pixel by pixel and in the latent space."""
    rows: dict[str, Tensor] = {}
    share = torch.linspace(0, 1, steps)[:, None]
    for one in range(0, len(seeds) - 1, 2):
        pair = seeds.take(torch.tensor([one, one + 1]))
        for name, space in (("pixels", Pixels()), ("latent", here.space)):
            z = encoded(space, pair, here)
            mixed = (1 - share) * z[0].flatten() + share * z[1].flatten()
            rows[f"{name} {one // 2 + 1}"] = decoded(
                space, mixed.reshape(steps, *z.shape[1:]), here
            )
    return rows


CLIMBS: tuple[tuple[str, Literal["seed", "prior"]], ...] = (
    ("pixels from noise", "prior"),
    ("pixels from images", "seed"),
    ("latent from the prior", "prior"),
)


@dataclass(frozen=True, slots=True)
class Climbed:
    """Final images of one kind of climb."""

    name: str
    images: Float[Tensor, "n c h w"]
    off: float
    queries: float
    seconds: float


def _climbed(
    bench: Bench, here: World, seeds: Images, name: str, start: Literal["seed", "prior"]
) -> Climbed:
    """Figure 5: climb to the surprise that one training image in a hundred exceeds."""
    bench.say(f"climbing: {name}")
    space: Space = Pixels() if name.startswith("pixels") else here.space
    profile = Profiles(from_bytes(here.test.x[:1]), lambda: here.train)
    plain = sinvad_surprise(space=space, subject=here.subject, profile=profile)
    assert isinstance(plain.oracle, Surprising)
    goal = float(bench.options.get("goal", plain.oracle.least))
    stride = 2.0 if space.name == "pixels" else 1.0
    method = sinvad_surprise(
        space=space, subject=here.subject, profile=profile, goal=goal, start=start, stride=stride,
        passes=int(bench.options.get("passes", 3 if bench.full else 1)),
    )  # fmt: skip
    begun = perf_counter()
    state, queries = walk(here.subject, method, seeds, seed=bench.seed)
    spent = perf_counter() - begun
    z = state["z"].reshape(-1, *state["shape"].tolist())
    off = -state["score"][state["score"].isfinite()]
    mean = float(off.mean()) if len(off) else float("nan")
    images = decoded(space, z, here)
    return Climbed(name, images, mean, float(queries.float().mean()), spent / len(seeds))


def _climbing(bench: Bench, here: World, climbs: list[Climbed]) -> Table:
    rows: list[list[Cell]] = [[c.name, len(c.images), c.off, c.queries, c.seconds] for c in climbs]
    notes = [
        *here.notes,
        "goal: a likelihood-based surprise as high as that of the most surprising training image (paper: 111 by its own density)",
        "published code: 10.6 s an image; one coordinate after the other, all images side by side",
    ]
    columns = [
        "climb",
        "images",
        "mean |surprise − goal|",
        "questions an image",
        "seconds an image",
    ]
    return Table("Figure 5: climbing to a surprise", columns, rows, notes)


def _ambiguous(bench: Bench, here: World, seeds: Images) -> tuple[Table, dict[str, Tensor]]:
    """Figure 6: images that just leave their class, by the same search in codes and in pixels."""
    bench.say("ambiguous images")
    pixels = collect(here.train, lambda x: x, device=torch.device(bench.device), limit=5000)
    done = {
        "latent": search(
            here.subject, sinvad(space=here.space, partners=here.codes), seeds, seed=bench.seed
        ),
        "pixels": search(
            here.subject, sinvad(space=Pixels(), partners=pixels), seeds, seed=bench.seed
        ),
    }
    rows: list[list[Cell]] = [
        [
            name,
            f"{some.succeeded} of {int(some.attempted.sum())}",
            _l2(some.findings.x, seeds.x[some.findings.seed]),
        ]
        for name, some in done.items()
    ]
    place = {
        name: {seed: i for i, seed in enumerate(some.findings.seed.tolist())}
        for name, some in done.items()
    }
    both = sorted(set.intersection(*(set(rows) for rows in place.values())))[:10]
    images = {
        f"{n}, found": some.findings.x[[place[n][seed] for seed in both]]
        for n, some in done.items()
    }
    shown = {"seeds": seeds.x[both], **images}
    return Table(
        "Figure 6: images that just leave their class",
        ["space", "found", "mean L2 to the seed"],
        rows,
    ), shown


def _l2(one: Tensor, two: Tensor) -> float:
    return float((from_bytes(one) - from_bytes(two)).flatten(1).norm(dim=1).mean())


@torch.no_grad()
def encoded(space: Space, images: Images, here: World) -> Tensor:
    device = here.subject.device
    return space.encode(
        from_bytes(images.x.to(device)), images.y.to(device), torch.Generator(device)
    )[0].cpu()


@torch.no_grad()
def decoded(space: Space, z: Tensor, here: World) -> Float[Tensor, "m c h w"]:
    z = z.to(here.subject.device)
    whom = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    origin = Seeds(z, torch.zeros(len(z), 1, 1, 1, device=z.device), whom, whom)
    return space.decode(z, origin).clamp(0, 1).cpu()
