"""The answers of a network on each image of a proof, and the attacks on networks.

Every figure is a share of failures or errors per image, so that above means worse. An attack joins
searches of the declared ranges, and failures of each network are tried on the others:
a repaired network may only hide its failures from the search that it was trained with. Its result
is a lower bound all the same, since a longer attack still finds more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from hardcase.campaign.claims import Claims, asking
from hardcase.conditions import (
    PROFILES,
    ConditionBox,
    Conditions,
    WorstCase,
    condition_box,
    measure_risk,
    measure_worst,
)
from hardcase.conditions.declared import DECLARABLE, parse_range, profile
from hardcase.conditions.risk import SAMPLES, rows_together
from hardcase.corruptions import CORRUPTIONS, corrupt
from hardcase.errors import HardcaseError, choice
from hardcase.models.health import answers
from hardcase.randomness import keys_of
from hardcase.tensors import chunks, from_bytes, to_grid
from hardcase.types import Images, Model

__all__ = ["SIZES", "AttackResult", "AttackSize", "ProofSize", "ProofValues", "Shares"]
__all__ += ["attack_all", "measure_values", "proof_queries", "proof_size"]
__all__ += ["seconds_per_query", "untrained"]

Shares = NDArray[np.float64]
"""A number between 0 and 1 per image."""
HELD = 2**28
"""Numbers of the images that prove a repair, at most: they are in memory together."""
FEW = 16
"""Images by which it is forecast how long a proof takes."""
SEVERITY = 3.0
"""Of corruptions that no declaration asks for; the middle of the published five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSize:
    """How hard networks are attacked.

    Args:
        images: Images, at most.
        restarts: Searches, each with other random numbers; an even number.
        gradients: Gradients per image and box of each search.
        queries: Queries per image and box of the search without gradients.
        samples: Random samples per image.
    """

    images: int = 100
    restarts: int = 2
    gradients: int = 20
    queries: int = 40
    samples: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSize:
    """The size of a proof. The number of images decides, so a handful of samples of each is enough.

    Args:
        images: Images, at most; of photographs as many as `HELD` numbers are.
        samples: Samples of the declared conditions per image.
        alone: Samples per image of each condition alone, trained on or not.
        attack: How hard both networks are attacked.
    """

    images: int = 10_000
    samples: int = SAMPLES
    alone: int = 1
    attack: AttackSize = field(default_factory=AttackSize)


SIZES: Mapping[str, ProofSize] = {
    "quick": ProofSize(
        attack=AttackSize(images=30, restarts=2, gradients=6, queries=10, samples=32),
    ),
    "usual": ProofSize(),
    "full": ProofSize(
        attack=AttackSize(images=1000, restarts=10, gradients=30, queries=60, samples=64),
    ),
}
"""By the names of ``--proof``; ``full`` is for a GPU."""


def proof_size(given: str | ProofSize) -> ProofSize:
    """Return the size of a proof by its name, with the changes after the colon."""
    if isinstance(given, ProofSize):
        return given
    name, _, words = given.partition(":")
    if name not in SIZES:
        raise choice("size of a proof", name, list(SIZES))
    size = SIZES[name]
    numbers = {key: value for key, value in asdict(size).items() if key != "attack"}
    attack = {f"attack.{key}": value for key, value in asdict(size.attack).items()}
    for word in filter(None, words.split(",")):
        key, _, value = word.partition("=")
        if key not in numbers | attack:
            raise choice("number of a proof", key, [*numbers, *attack])
        if not value.isdecimal() or int(value) < 1:
            raise HardcaseError(f"{key} of a proof is {value!r}.", fix=f"--proof {name}:{key}=10")
        (numbers if key in numbers else attack)[key] = int(value)
    inner = {key.removeprefix("attack."): value for key, value in attack.items()}
    return ProofSize(**numbers, attack=AttackSize(**inner))


@dataclass(frozen=True, slots=True)
class ProofValues:
    """The measurements of a network on each image.

    Args:
        label: The classes of the images.
        clean: Whether it misreads the unmodified image.
        risk: The share of samples of the declared conditions that fail.
        conditions: The same with a single declared condition at a time.
        elsewhere: The same with conditions that were not declared.
        corruptions: The share of standard corruptions that it misreads, by family.
        outside: Whether it misreads images of other data, by its name.
        image: The image of each row, where rows are claims.
    """

    label: NDArray[np.int64]
    clean: Shares
    risk: Shares
    conditions: Mapping[str, Shares] = field(default_factory=dict)
    elsewhere: Mapping[str, Shares] = field(default_factory=dict)
    corruptions: Mapping[str, Shares] = field(default_factory=dict)
    outside: Mapping[str, Shares] = field(default_factory=dict)
    image: tuple[str, ...] = ()

    @property
    def untrained(self) -> Shares | None:
        """The mean over conditions that were not declared and families of corruptions."""
        every = [*self.elsewhere.values(), *self.corruptions.values()]
        mean: Shares | None = np.mean(every, axis=0) if every else None
        return mean


def untrained(trained: Conditions, shape: tuple[int, ...]) -> dict[str, Conditions]:
    """Return each condition that was not declared, alone, by its usual range."""
    others = dict[str, Conditions]()
    usual = {
        name: declared
        for known in reversed(PROFILES)
        for name, declared in profile(known).ranges.items()
    }
    for name, row in DECLARABLE.items():
        if name in trained.ranges or (row.colour and shape[0] == 1):
            continue
        if name in usual:
            others[name] = Conditions({name: usual[name]}, name=name)
        elif row.unit in ("%", "deg"):
            lower = "±5" if row.least < 0 else "0..5"
            others[name] = Conditions({name: parse_range(name, f"{lower} {row.unit}")}, name=name)
    return others


def proof_queries(box: ConditionBox, size: ProofSize) -> int:
    """Return how many images each network classifies for an image of a proof."""
    shape = box.space.shape
    declared = box.conditions
    alone = len(declared.ranges) + len(untrained(declared, shape))
    corruptions = len(CORRUPTIONS) if _corruptible(shape) else 0
    # every table of conditions begins with the unmodified image
    return (1 + size.samples) + alone * (1 + size.alone) + corruptions


def seconds_per_query(model: Model, images: Images, box: ConditionBox, *, seed: int) -> float:
    """Return how long a network takes for a sample of the declared conditions, by timed calls."""
    sample = images.first(min(FEW, len(images)))
    measure_risk(model, sample.first(1), box, samples=1, seed=seed)  # what is slow once
    began = perf_counter()
    measure_risk(model, sample, box, samples=SAMPLES, seed=seed)
    return (perf_counter() - began) / (len(sample) * (1 + SAMPLES))


def measure_values(
    model: Model,
    images: Images,
    box: ConditionBox,
    size: ProofSize,
    *,
    seed: int,
    outside: Mapping[str, Images] | None = None,
) -> ProofValues:
    """Measure a network on unseen images; the samples are the same for every network."""
    failure_table = measure_risk(model, images, box, samples=size.samples, seed=seed)
    declared = box.conditions

    def alone(conditions: Conditions) -> Shares:
        single = condition_box(conditions, images.shape)
        table = measure_risk(model, images, single, samples=size.alone, seed=seed)
        return table.shares

    return ProofValues(
        label=images.y.numpy(),
        image=failure_table.image,
        clean=failure_table.clean.double().numpy(),
        risk=failure_table.shares,
        conditions={
            name: alone(Conditions({name: spread}, name=name))
            for name, spread in declared.ranges.items()
        },
        elsewhere={
            name: alone(spread) for name, spread in untrained(declared, images.shape).items()
        },
        corruptions=_corruption_errors(model, images),
        outside={
            name: (answers(model, errors).argmax(1) != errors.y).double().numpy()
            for name, errors in (outside or {}).items()
        },
    )


def _corruptible(shape: tuple[int, ...]) -> bool:
    """Whether standard corruptions are made for images of this shape."""
    return shape[0] in (1, 3) and min(shape[1:]) >= 8


def _corruption_errors(model: Model, images: Images) -> dict[str, Shares]:
    """The share of the corruptions of each family that the model misreads, per image."""
    if not _corruptible(images.shape):
        return {}
    wrong = dict[str, list[Shares]]()
    claims = Claims.of(images, model.device)
    for name, kind in ((name, corruption.kind) for name, corruption in CORRUPTIONS.items()):
        parts = list[torch.Tensor]()
        for part in chunks(len(images), min(256, rows_together(images.shape))):
            x = from_bytes(images.x[part]).to(model.device)
            keys = keys_of(images.id[part]).to(model.device)
            severity = torch.full((len(x),), SEVERITY, device=model.device)
            with torch.no_grad():
                changed = to_grid(corrupt(x, name, severity, keys))
                logits = asking(model, claims and claims.take(part))(changed).logits
            parts.append(logits.argmax(1).cpu() != images.y[part])
        wrong.setdefault(kind, []).append(torch.cat(parts).double().numpy())
    return {kind: np.mean(shares, axis=0) for kind, shares in wrong.items()}


@dataclass(frozen=True, slots=True)
class AttackResult:
    """The result of the union of all searches for each image.

    Args:
        least: The smallest scale of a failure; infinite without a failure.
        half: Which images the first half of the searches had broken.
    """

    least: Float[Tensor, " n"]
    half: Bool[Tensor, " n"]

    @property
    def failing(self) -> Bool[Tensor, " n"]:
        """Which images fail somewhere in the box."""
        return self.least <= 1

    @property
    def added(self) -> float:
        """The share of images that only the second half of the searches broke."""
        return float((self.failing & ~self.half).double().mean())


def attack_all(
    models: Mapping[str, Model],
    images: Images,
    box: ConditionBox,
    size: AttackSize,
    *,
    seed: int,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, AttackResult]:
    """Attack networks on the same images, and each with the failures of the others."""
    tables = {
        name: measure_risk(model, images, box, samples=size.samples, seed=seed + 1)
        for name, model in models.items()
    }
    least = {name: torch.full((len(images),), torch.inf) for name in models}
    results = dict[str, WorstCase]()

    def search(name: str, number: int, gradients: int, queries: int) -> None:
        """A search, which starts from the last failures of all networks."""
        result = measure_worst(
            models[name],
            images,
            box,
            table=tables[name],
            others=list(results.values()),
            seed=seed + number,
            gradients=gradients,
            queries=queries,
            alone=False,
        )
        results[name] = result
        least[name] = torch.minimum(least[name], result.least_scale.float())

    half = dict[str, Tensor]()
    searches = max(size.restarts, 2)
    for number in range(searches):
        if number == searches // 2:
            half = {name: scale <= 1 for name, scale in least.items()}
        for name in models:
            log(f"proof: attack {number + 1} of {searches} on the network {name}")
            search(name, number, size.gradients, size.queries)
    for name in models:  # what the last search found in the networks after it
        search(name, 0, 1, 0)
    return {name: AttackResult(least[name], half[name]) for name in models}
