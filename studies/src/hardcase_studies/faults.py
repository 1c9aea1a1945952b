"""Planted faults: networks that tell two classes apart by something irrelevant, and which methods notice.

After I. Dunn, H. Pouget, T. Melham, D. Kroening, "Exposing Previously Undetectable Faults in Deep Neural Networks", ISSTA
2021, RQ1: there people labelled what had changed in 200 findings of each of eight faults in ImageNet classifiers; here what
changed is measured. A finding has moved if its trait went at least half of the way between the two kinds of image the network
was taught, in the direction of the other class. Every faulty network is searched from the same seeds as a clean one of the
same training seed; `hardcase_studies.paired` has the test, the least effect and the placebo.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save
from torch import Tensor, nn

from hardcase.cache import make_folder, write_atomically
from hardcase.campaign.in_memory import search
from hardcase.data.sources import load
from hardcase.errors import HardcaseError, choice
from hardcase.generators.adapters import Decoder
from hardcase.generators.build import trained_generator
from hardcase.generators.quality import Sampler
from hardcase.generators.vae import Vae
from hardcase.methods.neurons import Profiles
from hardcase.models.health import probabilities
from hardcase.models.subject import Subject
from hardcase.models.zoo import build_classifier
from hardcase.oracles import Confident
from hardcase.randomness import stream
from hardcase.registry import Part, resolve
from hardcase.spaces.activations import Activations, Staged, early_places
from hardcase.spaces.latent import Conditional, Grid, Labelled, partners
from hardcase.statistics import Rate
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, digest, from_bytes, to_bytes
from hardcase.training import cards
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import classify, fit, predict
from hardcase.types import Images, Method, Space
from hardcase_studies import figures, paired
from hardcase_studies.bench import Bench, share, table_of
from hardcase_studies.traits import (
    FEW,
    LOW,
    NAMES,
    TRAITS,
    Trait,
    measures,
    own_trait,
    selected,
    world,
)

TEACHING = TrainingRecipe(epochs=6, steps=300, batch=64, lr=2e-3)
LATENT = 48
EPOCHS = 12
COPIES = 8
WRONG = 0.4
"""The share of images with the other class's digit that a fault is taught with:
shape then says little, the trait all.
"""


@dataclass(frozen=True, slots=True)
class Lab:
    """`train` and `test` have free traits; `gaps`: how far apart the two kinds of image are in
    each trait.
    """

    source: str
    digits: tuple[Images, Images]
    pair: tuple[int, int]
    train: Images
    test: Images
    vae: nn.Module
    generator: nn.Module
    gaps: Float[Tensor, " f"]
    device: str
    seed: int
    traits: tuple[Trait, ...] = TRAITS
    own: bool = False

    def planted(
        self, split: int, fault: str | None, *, swapped: bool = False, mislabelled: float = 0.0
    ) -> Images:
        """The training (0) or test (1) split with this fault's trait tied to the classes."""
        digits, pair = self.digits[split], self.pair
        how: dict[str, Any] = {"swapped": swapped, "mislabelled": mislabelled, "seed": self.seed}
        if not self.own:
            return world(digits, pair, tied=fault, copies=COPIES if split == 0 else 4, **how)
        trait = self.traits[self.column(fault) if fault else 0]
        return selected(digits, pair, trait, tied=fault is not None, **how)

    def column(self, fault: str) -> int:
        return [trait.name for trait in self.traits].index(fault)


@dataclass(frozen=True, slots=True)
class Student:
    """A network and its held-out accuracy where the trait is as it was taught,
    swapped between the classes, or free.
    """

    fault: str | None
    subject: Subject
    free: float
    tied: float
    swapped: float

    @property
    def acquired(self) -> bool:
        return self.tied - self.swapped > 0.5


def lab(bench: Bench) -> Lab:
    """``--set pair=4,9`` names the two classes; ``measure=FILE.py:FUNCTION`` a trait of one's own
    data; ``vae_epochs`` and ``copies`` make the generator's training smaller.
    """
    digits = load(bench.data, split="train"), load(bench.data, split="test")
    first, second = (int(c) for c in bench.options.get("pair", (4, 9)))
    pair = (first, second)
    spec = bench.options.get("measure")
    own = spec is not None
    drawn = digits[0].x.shape[1:] == (1, 28, 28)
    known = range(len(digits[0].classes))
    if first == second or not {first, second} <= set(known) or not (drawn or own):
        raise HardcaseError(
            "the eight faults are planted into two different classes of grey images of 28x28;"
            " into other data by a measure of your own.",
            fix="--data mnist5k, or --measure FILE.py:FUNCTION --set pair=0,1",
        )
    traits = (own_trait(str(spec)),) if own else TRAITS
    copies = int(bench.options.get("copies", COPIES))
    if own:
        free = [selected(part, pair, traits[0], tied=False, seed=bench.seed) for part in digits]
    else:
        free = [world(part, pair, copies=copies, seed=bench.seed) for part in digits]
    bench.say("a conditional VAE of images with free traits")
    vae, _ = trained_generator(
        "vae",
        *free,
        kind="conditional",
        latent=LATENT,
        epochs=int(bench.options.get("vae_epochs", EPOCHS)),
        seed=bench.seed,
        device=bench.device,
    )
    assert isinstance(vae, Vae)
    gaps = _own_gap(free[1], traits[0]) if own else _gaps(digits[1], pair)
    return Lab(
        source=bench.data,
        digits=digits,
        pair=pair,
        train=free[0],
        test=free[1],
        vae=vae,
        generator=Decoder(vae),
        gaps=gaps,
        device=bench.device,
        seed=bench.seed,
        traits=traits,
        own=own,
    )


def _own_gap(images: Images, trait: Trait) -> Float[Tensor, " f"]:
    """The mean of the highest 30 % minus that of the lowest."""
    value = trait.measure(from_bytes(images.x)).double().sort().values
    some = max(1, round(LOW * len(value)))
    gap = value[-some:].mean() - value[:some].mean()
    if float(gap) <= 0:
        raise HardcaseError(f"{trait.name} is the same in all images of {images.name}.")
    return gap[None].float()


def _gaps(digits: Images, pair: tuple[int, int]) -> Float[Tensor, " f"]:
    """For each trait, the mean of its measure where it is high minus where it is low,
    on the same digits.
    """
    gaps = []
    for column, name in enumerate(NAMES):
        one, other = (world(digits, pair, tied=name, swapped=swapped) for swapped in (False, True))
        values = [measures(from_bytes(part.x))[:, column] for part in (one, other)]
        sign = torch.where(one.y == 1, 1.0, -1.0)
        gaps.append(((values[0] - values[1]) * sign).mean())
    return torch.stack(gaps)


def student(here: Lab, fault: str | None, number: int = 0) -> Student:
    """A small network taught the two classes, with the trait of this name tied to them;
    kept in the cache. `number` tells trainings apart.
    """
    train = here.train if fault is None else here.planted(0, fault, mislabelled=WRONG)
    tied = here.planted(1, fault)
    swapped = here.planted(1, fault, swapped=True)
    shape = {"channels": here.train.x.shape[1], "size": here.train.x.shape[2], "classes": 2}
    seed = here.seed + 1000 * number
    config = {"name": "lenet5", **shape, "seed": seed, "recipe": asdict(TEACHING)}

    def build(config: Mapping[str, Any]) -> nn.Module:
        return build_classifier("lenet5", **shape, seed=config["seed"])

    def teach(net: nn.Module) -> Mapping[str, Any]:
        return asdict(
            fit(net, train, classify(2), TEACHING, seed=seed, name=train.name, device=here.device)
        )

    net, _ = cards.cached(
        "classifier",
        "faults-lenet5",
        config,
        data=train.hash,
        build=build,
        train=teach,
        measure=lambda net: {"accuracy": _accuracy(net.to(here.device), tied, here)},
        measured_on=tied.hash,
    )
    net = net.to(here.device)
    name = f"network taught {fault or 'nothing but the classes'}"
    subject = Subject(net, classes=train.classes, name=name, device=here.device)
    return Student(
        fault, subject, *(_accuracy(net, part, here) for part in (here.test, tied, swapped))
    )


def _accuracy(net: nn.Module, images: Images, here: Lab) -> float:
    return float((predict(net, images, device=here.device) == images.y).double().mean())


MARGIN = 5.0
"""By how much, in logits, a test must fail that follows a gradient:
the same for features and for pixels.
"""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "feature-perturbation": {
        "confidence": MARGIN,
        "radius": 1e9,
        "bisections": 0,
        "step_size": 0.02,
    },
    "feature-perturbation@paper": {"confidence": MARGIN, "step_size": 0.02},
    "pgd": {"epsilon": 0.1},
    "fgsm": {"epsilon": 0.1},
}
"""Confident failures, as in the paper, and pixel changes that nobody would call a change of the
image.
"""


def built(name: str, here: Lab, subject: Subject, settings: Mapping[str, Any]) -> Method:
    """A method of the catalogue in this world, which has no data set to load by name: with `SETTINGS`, and `settings` on top."""
    row = resolve("method", name)
    if row.facts.get("peers") == "quantised":
        raise HardcaseError(
            f"{name} compares networks; a fault of one network has nothing to compare with."
        )
    able: Mapping[str, Callable[[], Any]] = {
        "space": lambda: _space(row, here),
        "subject": lambda: subject,
        "peers": lambda: (),
        "profile": lambda: Profiles(from_bytes(here.train.x[:1]), lambda: here.train),
        "partners": lambda: partners(_space(row, here), here.train, device=here.device),
    }
    family = str(row.facts.get("generator", ""))
    given = {
        key: make()
        for key, make in able.items()
        if key in row.given and not (key == "partners" and family.startswith("vae"))
    }
    options = {**SETTINGS.get(name, {}), **settings}
    for key in options:
        if key not in row.options:
            raise choice(f"option of {name}", key, list(row.options))
    method: Method = row(**given, **options)
    return replace(method, oracle=Confident(confidence=MARGIN)) if name == "pgd" else method


def _space(row: Part, here: Lab) -> Space:
    """The conditional VAE's code or activations, or a VQ-VAE of the same images."""
    if row.facts.get("seeds") == "generator":
        assert isinstance(here.generator, Staged)
        return Activations(here.generator, early_places(here.generator, classes=2), classes=2)
    if str(row.facts.get("generator", "")).startswith("vqvae"):
        net, _ = trained_generator(
            "vqvae", here.train, here.test, seed=here.seed, device=here.device
        )
        return Grid(net)  # type: ignore[arg-type]  # a VQ-VAE, by its family
    assert isinstance(here.vae, Conditional)
    return Labelled(here.vae)


COMPARED = ("feature-perturbation", "pgd", "sinvad")
HALF = 0.5
POOL = 40
"""Samples that are painted for each seed asked for."""


@dataclass(frozen=True, slots=True)
class TraitShifts:
    """What one method found on one network, seed by seed: how far each trait went in units of the
    gap between the two kinds of image (positive toward the other class; 0 without a finding), and
    its image, which is the seed's where nothing was found.
    """

    moved: Float[Tensor, "s f"]
    made: Tensor


def run(bench: Bench) -> Outcome:
    """``--set tests=100 trainings=5 methods=pgd,sinvad faults=tint,mark pair=4,9 pgd.epsilon=0.1``
    choose sizes, methods and faults; ``measure=FILE.py:FUNCTION`` plants one in your own data.
    """
    names = bench.names("methods", COMPARED)
    spec = bench.options.get("measure")
    known = NAMES if spec is None else (own_trait(str(spec)).name,)
    faults = bench.names("faults", known)
    for name in faults:
        if name not in known:
            raise choice("fault", name, list(known))
    here = lab(bench)
    tests = bench.size("tests", 25, 100)
    trainings = bench.size("trainings", 2, 5)
    clean = [student(here, None, number) for number in range(trainings)]
    students = {
        fault: [student(here, fault, number) for number in range(trainings)] for fault in faults
    }
    generated = _generated(here, tests, bench)
    seeds = {
        fault: _seeds(here, [*some, *clean], generated, tests) for fault, some in students.items()
    }
    cells: dict[tuple[str, str], paired.Pairs] = {}
    shown: dict[str, Tensor] = {}
    for fault in faults:
        for name in names:
            cells[fault, name], made = _cell(
                here, name, (students[fault], clean), seeds[fault], bench
            )
            shown.setdefault(fault, made)
    told = paired.verdicts(list(cells.values()), seed=bench.seed)
    verdicts = dict(zip(cells, told, strict=True))
    empty = {fault: _placebo(here, fault, seeds[fault], generated, bench) for fault in faults}
    tables = [
        _acquired(here, students, clean),
        _detected(here, faults, names, verdicts, empty, (tests, trainings), seeds),
        _shares(faults, names, cells),
    ]
    return Outcome("faults", tables, _pictures(bench, faults, seeds, shown))


def _cell(
    here: Lab,
    name: str,
    networks: tuple[Sequence[Student], Sequence[Student]],
    seeds: Images,
    bench: Bench,
) -> tuple[paired.Pairs, Tensor]:
    """What one method does on faulty and clean networks, and the images it makes on the first.

    A cell is kept in ``OUT/cells`` as soon as it is done: a study that was stopped goes on there,
    and several processes can share the faults of one table.
    """
    fault = str(networks[0][0].fault)
    hashes = [one.subject.hash for side in networks for one in side]
    asked = [name, fault, seeds.hash, *hashes, json.dumps(bench.options.get(name, {}))]
    key = digest([*asked, str(bench.seed)])
    path = bench.out / "cells" / f"{fault}-{name.replace('@', '-')}-{key}.safetensors"
    if path.is_file():
        kept = load_file(path)
        pairs = paired.Pairs(kept["faulty"].bool(), kept["clean"].bool(), kept["effect"])
        return pairs, kept["made"]
    both = [[_tests(here, one, name, seeds, bench) for one in side] for side in networks]
    pairs = _pairs(here, fault, *both)
    made = both[0][0].made
    make_folder(path.parent)
    tensors = {"faulty": pairs.faulty.byte(), "clean": pairs.clean.byte(), "effect": pairs.effect}
    write_atomically(path, save({**tensors, "made": made.contiguous()}))
    return pairs, made


def _tests(here: Lab, one: Student, name: str, seeds: Images, bench: Bench) -> TraitShifts:
    """The best finding of each seed."""
    bench.say(
        f"{name} on the network {'without a fault' if one.fault is None else 'taught ' + one.fault}"
    )
    method = built(name, here, one.subject, bench.options.get(name, {}))
    done = search(one.subject, method, seeds, keep="best", seed=bench.seed)
    rows = (done.findings.kind == 0).nonzero().squeeze(1)
    owner = done.findings.seed[rows]
    made = seeds.x.clone()
    made[owner] = done.findings.x[rows]
    return TraitShifts(_moved(here, seeds, made), made)


def _moved(here: Lab, seeds: Images, made: Tensor) -> Float[Tensor, "s f"]:
    """How far each trait went from the seeds to `made`, in gaps and toward the other class."""
    change = measures(from_bytes(made), here.traits) - measures(from_bytes(seeds.x), here.traits)
    toward = torch.where(seeds.y == 0, 1.0, -1.0)[:, None]
    return change / here.gaps * toward


def _pairs(
    here: Lab, fault: str, faulty: Sequence[TraitShifts], clean: Sequence[TraitShifts]
) -> paired.Pairs:
    column = here.column(fault)
    one, two = (torch.stack([some.moved[:, column] for some in side]) for side in (faulty, clean))
    unit = float(here.gaps[column]) * here.traits[column].scale
    return paired.Pairs(one >= HALF, two >= HALF, (one - two) * unit)


def _generated(here: Lab, each: int, bench: Bench) -> Images:
    """Fresh samples of either class, many for each seed that is wanted."""
    assert isinstance(here.generator, Sampler)
    label = torch.arange(2 * POOL * each, device=bench.device) % 2
    rng = stream(bench.seed, "faults", "seeds", device=bench.device)
    codes = []
    pictures = []
    with torch.no_grad():
        for rows in chunks(len(label), 512):
            code, image = here.generator.sample(label[rows], rng)
            codes.append(code.cpu())
            pictures.append(to_bytes(image).cpu())
    return Images(
        torch.cat(pictures),
        label.cpu(),
        tuple(f"generated/{i}" for i in range(len(label))),
        here.train.classes,
        "generated",
        context={"latent": torch.cat(codes)},
    )


def _seeds(here: Lab, students: Sequence[Student], generated: Images, each: int) -> Images:
    """Up to `each` samples of either class that every one of the networks gets right."""
    right = torch.ones(len(generated), dtype=torch.bool)
    for one in students:
        right &= probabilities(one.subject, generated.x).argmax(1) == generated.y
    rows = [(right & (generated.y == c)).nonzero().squeeze(1)[:each] for c in (0, 1)]
    if sum(map(len, rows)) < FEW:
        raise HardcaseError(
            f"only {sum(map(len, rows))} of {len(generated)} painted images are classified"
            " correctly by all networks.",
            fix="a generator trained longer: --set vae_epochs=30",
        )
    return generated.take(torch.cat(rows))


def _placebo(here: Lab, fault: str, seeds: Images, generated: Images, bench: Bench) -> Rate:
    """A method that asks no network: each seed is replaced by another sample of its class."""
    rng = stream(bench.seed, "faults", "placebo")
    column = here.column(fault)
    value = measures(from_bytes(generated.x), here.traits)[:, column]
    own = measures(from_bytes(seeds.x), here.traits)[:, column]
    toward = torch.where(seeds.y == 0, 1.0, -1.0)
    pools = [(generated.y == c).nonzero().squeeze(1) for c in (0, 1)]
    outcomes = []
    for _ in range(2 * paired.PLACEBOS):
        drawn = [pool[torch.randint(len(pool), (len(seeds),), generator=rng)] for pool in pools]
        other = torch.where(seeds.y == 0, value[drawn[0]], value[drawn[1]])
        outcomes.append((other - own) / here.gaps[column] * toward >= HALF)
    return paired.placebo(torch.stack(outcomes), seed=bench.seed)


def _acquired(
    here: Lab, students: Mapping[str, Sequence[Student]], clean: Sequence[Student]
) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "fault": fault,
            "tells the classes apart": here.traits[here.column(fault)].fault,
            "trait as taught": fmean(one.tied for one in some),
            "trait swapped": fmean(one.swapped for one in some),
            "trait free": fmean(one.free for one in some),
            "acquired": f"{sum(one.acquired for one in some)} of {len(some)}",
        }
        for fault, some in students.items()
    ]
    free = fmean(one.free for one in clean)
    return table_of(
        "Held-out accuracy of the faulty networks, mean over trainings",
        rows,
        [
            f"clean networks, taught with free traits, get {free:.1%} of held-out images right",
            "acquired: the lead of the trait as taught over the trait swapped is more than half",
        ],
    )


def _detected(
    here: Lab,
    faults: Sequence[str],
    names: Sequence[str],
    verdicts: Mapping[tuple[str, str], paired.Verdict],
    empty: Mapping[str, Rate],
    sizes: tuple[int, int],
    seeds: Mapping[str, Images],
) -> Table:
    def cell(fault: str, name: str) -> str:
        verdict = verdicts[fault, name]
        trait = here.traits[here.column(fault)]
        word = "**detected**" if verdict.detected else "not detected"
        share = verdict.difference
        return f"{word} {share.text('+.2f')}, p {verdict.p:.2g}, {verdict.effect:+.3g} {trait.unit}"

    rows: list[list[Cell]] = [
        [
            fault,
            len(seeds[fault]),
            *(cell(fault, name) for name in names),
            f"{empty[fault].hits} of {empty[fault].of}",
        ]
        for fault in faults
    ]
    counts = [sum(verdicts[fault, name].detected for fault in faults) for name in names]
    total: list[Cell] = [f"{count} of {len(faults)}" for count in counts]
    rows.append(["faults detected", "", *total, ""])
    tests, trainings = sizes
    return Table(
        "Who detects what: share of seeds that moved on the faulty network, minus the clean one",
        ["fault", "seeds", *names, "placebo rejections"],
        rows,
        [
            f"up to {tests} seeds a direction, fresh samples of a conditional VAE that all networks"
            " get right; the same seeds on the faulty and on the clean network",
            f"{trainings} trainings of each network; a seed without a finding has not moved",
            "moved: the trait went half of the way to the other class's kind",
            "p: sign flips of per-seed differences, averaged over trainings, Holm over"
            f" {len(faults) * len(names)} cells; intervals over seeds and trainings",
            f"detected: p at most {paired.LEVEL}, at least {paired.LEAST:+.2f}, in every training",
            "placebo: asks no network, replaces seeds by other samples; rejections at 5 % without"
            " correction",
            "sinvad here is the form without partners, decoding as the seed's class",
            f"classes {' and '.join(here.train.classes)} of {here.source}",
        ],
    )


def _shares(
    faults: Sequence[str], names: Sequence[str], cells: Mapping[tuple[str, str], paired.Pairs]
) -> Table:
    rows: list[list[Cell]] = [
        [fault, name, share(cells[fault, name].faulty[0]), share(cells[fault, name].clean[0])]
        for fault in faults
        for name in names
    ]
    columns = ["fault", "method", "moved, faulty network", "moved, clean network, same seeds"]
    return Table(
        "Shares of the first training", columns, rows, ["Wilson's 95 % intervals over seeds"]
    )


def _pictures(
    bench: Bench, faults: Sequence[str], seeds: Mapping[str, Images], shown: Mapping[str, Tensor]
) -> list[str]:
    """A line of seeds and a line of findings of the first method for every fault."""
    lines: dict[str, Any] = {}
    for fault in faults:
        found = (shown[fault] != seeds[fault].x).flatten(1).any(1)
        rows = found.nonzero().squeeze(1)[:10]
        if len(rows):
            lines |= {
                f"{fault}: seed": seeds[fault].x[rows],
                f"{fault}: finding": shown[fault][rows],
            }
    return [figures.images(bench.out / "findings.png", lines)] if lines else []
