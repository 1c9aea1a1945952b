"""Planted faults: networks that tell two classes apart by something irrelevant,
and which methods notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.campaign.in_memory import search
from hardcase.data.sources import load
from hardcase.errors import Problem, choice
from hardcase.generators.build import trained_generator
from hardcase.generators.quality import Sampler
from hardcase.generators.staged import Decoder
from hardcase.generators.vae import Vae
from hardcase.methods.neurons import Profiles
from hardcase.models.health import probabilities
from hardcase.models.subject import Subject
from hardcase.models.zoo import build_classifier
from hardcase.oracles import Confident
from hardcase.randomness import stream
from hardcase.registry import Part, resolve
from hardcase.semantics import FEATURES, measured
from hardcase.spaces.activations import Activations, Staged, early_places
from hardcase.spaces.latent import Conditional, Grid, Labelled, partners
from hardcase.suite import figures
from hardcase.suite.tables import Bench, Cell, Outcome, Table, share
from hardcase.tensors import chunks, from_bytes, to_bytes
from hardcase.training import cards
from hardcase.training.loop import TrainingRecipe, classify, fit, predict
from hardcase.types import Images, Method, Space

# Coloured digits made by code: eight traits that have nothing to do with the class, drawn freely or
# tied to it.
#
# A picture is a framed digit: the frame has stripes and a mark in its corner, the ground a tint;
# the digit has a brightness, a colour, a stroke, a slant and a place. Each trait is a number from 0
# to 1, and each can be measured in the picture again.

SIDE = 28
FRAME = 4
INNER = slice(FRAME, SIDE - FRAME)
LOW = 0.3
HIGH = 0.7
"""A trait tied to the class lies below the one for the first class, above the other for the second.
"""


@dataclass(frozen=True, slots=True)
class Trait:
    """`fault`: what a network does that tells two classes apart by it."""

    name: str
    fault: str
    measure: Callable[[Tensor], Tensor]


def _figure(x: Tensor) -> Tensor:
    return measured(_green(x))[:, _column("figure")]


def _shape(name: str) -> Callable[[Tensor], Tensor]:
    """A feature of the digit's shape: of its ink after smoothing,
    as the noise of single pixels has no shape.
    """

    def measure(x: Tensor) -> Tensor:
        smooth = _smooth(x)
        ground, top = _levels(smooth)
        ink = (smooth - ground) / (top - ground).clamp_min(1e-6)
        return measured((4 * ink - 1.5).clamp(0, 1))[:, _column(name)]

    return measure


def _thickness(x: Tensor) -> Tensor:
    """How much of the picture is ink.

    Only means over many pixels are taken, in which the noise of single ones cancels.
    """
    green = _green(x)
    smooth = _smooth(x)
    ground, top = _levels(smooth)
    digit = smooth > ground + 0.75 * (top - ground)
    around = smooth < ground + 0.25 * (top - ground)
    high, low = (
        (green * part).sum((1, 2, 3)) / part.sum((1, 2, 3)).clamp_min(1) for part in (digit, around)
    )
    return (green.mean((1, 2, 3)) - low) / (high - low).clamp_min(1e-6)


def _green(x: Tensor) -> Tensor:
    """The digit on its ground, from the channel that no tint touches."""
    return x[:, 1:2, INNER, INNER]


def _smooth(x: Tensor) -> Tensor:
    return functional.avg_pool2d(functional.pad(_green(x), (1, 1, 1, 1), mode="replicate"), 3, 1)


def _levels(smooth: Tensor) -> tuple[Tensor, Tensor]:
    """What the ground and the digit's strongest places look like."""
    ground, top = smooth.flatten(1).quantile(torch.tensor([0.2, 0.97], device=smooth.device), dim=1)
    return ground[:, None, None, None], top[:, None, None, None]


def _column(name: str) -> int:
    return [feature.name for feature in FEATURES].index(name)


def _tint(x: Tensor) -> Tensor:
    inner = x[:, :, INNER, INNER]
    ground = (
        torch.cat([inner[:, :, 0], inner[:, :, -1], inner[:, :, :, 0], inner[:, :, :, -1]], 2)
        .median(2)
        .values
    )
    return ground[:, 2] - ground[:, 0]


def _saturation(x: Tensor) -> Tensor:
    inner = x[:, :, INNER, INNER]
    digit = inner[:, 1] > inner[:, 1].amax((1, 2), keepdim=True) * 0.7
    blue, green = ((inner[:, i] * digit).sum((1, 2)) for i in (2, 1))
    return 1 - blue / green.clamp_min(1e-6)


def _mark(x: Tensor) -> Tensor:
    return x[:, :, :FRAME, :FRAME].mean((1, 2, 3))


def _texture(x: Tensor) -> Tensor:
    band = x[:, :, -FRAME:].mean((1, 2))
    return band[:, _stripes()].mean(1) - band[:, ~_stripes()].mean(1)


def _stripes() -> Bool[Tensor, " w"]:
    return torch.arange(SIDE) % 4 < 2


TRAITS = (
    Trait("tint", "by the colour of the background", _tint),
    Trait("brightness", "by how bright the digit is", _figure),
    Trait("saturation", "by how strong the digit's colour is", _saturation),
    Trait("mark", "by a mark in the corner", _mark),
    Trait("thickness", "by the width of the strokes", _thickness),
    Trait("slant", "by the way the digit leans", _shape("slant")),
    Trait("position", "by where the digit stands", _shape("x")),
    Trait("texture", "by stripes in the frame", _texture),
)
NAMES = tuple(trait.name for trait in TRAITS)


def render(
    digits: Float[Tensor, "n 1 28 28"], traits: Float[Tensor, "n f"]
) -> Float[Tensor, "n 3 28 28"]:
    """Grey digits as pictures with these traits, in the order of `TRAITS`."""
    tint, light, colour, mark, thick, slant, place, texture = (
        column[:, None, None] for column in traits.unbind(1)
    )
    ink = _placed(digits, thick, slant, place).clamp(0, 1)
    level = 0.45 + 0.55 * light
    figure = torch.stack(
        [level.expand_as(ink), level.expand_as(ink), (level * (1 - 0.9 * colour)).expand_as(ink)], 1
    )
    ground = torch.stack([0.6 * (1 - tint), torch.full_like(tint, 0.05), 0.6 * tint], 1)
    inner = ground * (1 - ink[:, None]) + figure * ink[:, None]
    sign = torch.where(_stripes(), 1.0, -1.0)
    x = (0.5 + 0.4 * texture * sign).expand(-1, SIDE, SIDE)[:, None].repeat(1, 3, 1, 1)
    x[:, :, INNER, INNER] = inner
    x[:, :, :FRAME, :FRAME] = (0.1 + 0.85 * mark)[:, None]
    return x


def _placed(
    digits: Tensor, thick: Tensor, slant: Tensor, place: Tensor
) -> Float[Tensor, "n 20 20"]:
    """The digit with broader strokes, leaning, and moved sideways."""
    broad = functional.max_pool2d(digits, 3, 1, 1)
    x = digits + (broad - digits) * thick[:, None]
    lean = 0.8 * (slant - 0.5).flatten()
    move = 0.5 * (0.5 - place).flatten()
    zero = torch.zeros(len(x))
    rows = torch.stack([zero + 1.15, lean * 1.15, move, zero, zero + 1.15, zero], 1).reshape(
        -1, 2, 3
    )
    grid = functional.affine_grid(
        rows, [len(x), 1, SIDE - 2 * FRAME, SIDE - 2 * FRAME], align_corners=False
    )
    return functional.grid_sample(x, grid, align_corners=False).squeeze(1)


def world(
    digits: Images,
    pair: tuple[int, int],
    *,
    tied: str | None = None,
    swapped: bool = False,
    mislabelled: float = 0.0,
    copies: int = 4,
    seed: int = 0,
) -> Images:
    """Each digit of the two classes `copies` times with free traits; `tied` follows the class, or
    the other one if `swapped`.

    A share of `mislabelled` pictures shows the other class's digit, so that a tied trait is the one
    thing to go by.
    """
    chosen = digits.take(
        ((digits.y == pair[0]) | (digits.y == pair[1])).nonzero().squeeze(1).repeat(copies)
    )
    wrong = (
        torch.rand(len(chosen), generator=stream(seed, "mislabelled", digits.split)) < mislabelled
    )
    label = ((chosen.y == pair[1]) ^ wrong).long()
    traits = torch.rand(
        len(label), len(TRAITS), generator=stream(seed, "traits", digits.split, tied or "free")
    )
    if tied is not None:
        column = NAMES.index(tied)
        high = (label == 1) ^ swapped
        traits[:, column] = torch.where(
            high, HIGH + (1 - HIGH) * traits[:, column], LOW * traits[:, column]
        )
    names = tuple(f"{name}/{i}" for i, name in enumerate(chosen.id))
    x = to_bytes(render(from_bytes(chosen.x), traits))
    return Images(
        x,
        label,
        names,
        tuple(digits.classes[c] for c in pair),
        f"faults-{tied or 'free'}",
        digits.split,
    )


def measures(x: Float[Tensor, "m 3 28 28"]) -> Float[Tensor, "m f"]:
    """What the traits look like in the pictures, in the order of `TRAITS`."""
    if not len(x):
        return x.new_zeros(0, len(TRAITS))
    return torch.stack([trait.measure(x) for trait in TRAITS], 1)


# What the fault benchmark needs: the made world, a conditional generator of it, and networks taught
# with and without faults.

TEACHING = TrainingRecipe(epochs=6, steps=300, batch=64, lr=2e-3)
LATENT = 48
EPOCHS = 12
COPIES = 8
WRONG = 0.4
"""The share of pictures with the other class's digit that a fault is taught with:
shape then says little, the trait all.
"""


@dataclass(frozen=True, slots=True)
class Lab:
    """`train` and `test` have free traits; `gaps`: how far apart the two kinds of picture are in
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
    """``--set pair=4,9`` names the two classes; ``vae_epochs`` and ``copies`` make the generator's
    training smaller.
    """
    digits = load(bench.data, split="train"), load(bench.data, split="test")
    first, second = (int(c) for c in bench.options.get("pair", (4, 9)))
    if first == second or digits[0].x.shape[1:] != (1, 28, 28):
        raise Problem(
            "faults are planted into two different classes of grey images of 28x28.",
            fix="--data mnist5k",
        )
    copies = int(bench.options.get("copies", COPIES))
    train, test = (world(part, (first, second), copies=copies, seed=bench.seed) for part in digits)
    bench.say("a conditional VAE of pictures with free traits")
    vae, _ = trained_generator(
        "vae",
        train,
        test,
        kind="conditional",
        latent=LATENT,
        epochs=int(bench.options.get("vae_epochs", EPOCHS)),
        seed=bench.seed,
        device=bench.device,
    )
    assert isinstance(vae, Vae)
    return Lab(
        bench.data,
        digits,
        (first, second),
        train,
        test,
        vae,
        Decoder(vae),
        _gaps(digits[1], (first, second)),
        bench.device,
        bench.seed,
    )


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


def student(here: Lab, fault: str | None) -> Student:
    """A small network taught the two classes, with the trait of this name tied to them;
    kept in the cache.
    """
    train = here.train
    if fault is not None:
        train = world(
            here.digits[0], here.pair, tied=fault, mislabelled=WRONG, copies=COPIES, seed=here.seed
        )
    tied = world(here.digits[1], here.pair, tied=fault, seed=here.seed)
    swapped = world(here.digits[1], here.pair, tied=fault, swapped=True, seed=here.seed)
    config = {
        "name": "lenet5",
        "channels": 3,
        "size": 28,
        "classes": 2,
        "seed": here.seed,
        "recipe": asdict(TEACHING),
    }

    def build(config: Mapping[str, Any]) -> nn.Module:
        return build_classifier("lenet5", channels=3, size=28, classes=2, seed=config["seed"])

    def teach(net: nn.Module) -> Mapping[str, Any]:
        return asdict(
            fit(
                net,
                train,
                classify(2),
                TEACHING,
                seed=here.seed,
                name=train.name,
                device=here.device,
            )
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


# Any method of the catalogue in the fault benchmark's world, where there is no data set to load by
# name.

MARGIN = 5.0
"""By how much, in logits, a test must fail that follows a gradient:
the same for features and for pixels.
"""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "feature-perturbation": {"confidence": MARGIN, "radius": 1e9, "retreat": 0, "stride": 0.02},
    "feature-perturbation@paper": {"confidence": MARGIN, "stride": 0.02},
    "pgd": {"epsilon": 0.1},
    "fgsm": {"epsilon": 0.1},
}
"""Confident failures, as in the paper, and pixel changes that nobody would call a change of the
picture.
"""


def built(name: str, here: Lab, subject: Subject, settings: Mapping[str, Any]) -> Method:
    """The method with the benchmark's settings for it, and `settings` on top."""
    row = resolve("method", name)
    if row.facts.get("peers") == "quantised":
        raise Problem(
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
    """The conditional VAE's code or activations, or a VQ-VAE of the same pictures."""
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


# Planted faults: networks that tell two classes apart by something irrelevant, and which methods
# notice.
#
# After I. Dunn, H. Pouget, T. Melham, D. Kroening, "Exposing Previously Undetectable Faults in Deep
# Neural Networks", ISSTA 2021, RQ1: there people labelled what had changed in 200 tests of each of
# eight faults in ImageNet classifiers; here pictures are made by code, so that what changed is
# measured. A test has moved if its trait went at least half of the way between the two kinds of
# picture the network was taught, in the direction of the other class. A method detects a fault if
# the share of its tests that moved, minus the same share on a network without the fault, has an
# interval above 0.

COMPARED = ("feature-perturbation", "pgd", "sinvad")
HALF = 0.5
FEW = 10
POOL = 40
"""Tests that a share needs, and samples that are painted for each seed asked for."""


@dataclass(frozen=True, slots=True)
class TraitShifts:
    """What one method found on one network: how far each trait went, in units of the gap between
    the two kinds of picture and positive toward the other class; `searched` seeds.
    """

    moved: Float[Tensor, "t f"]
    first: Bool[Tensor, " t"]
    searched: int
    pictures: Images
    made: Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """The share of tests that moved on the faulty network minus that on the clean one,
    with its bootstrap interval.
    """

    faulty: float
    clean: float
    difference: float
    low: float
    high: float
    tests: int

    @property
    def detected(self) -> bool:
        return self.low > 0


def run(bench: Bench) -> Outcome:
    """``--set tests=100 methods=pgd,sinvad faults=tint,mark pair=4,9 pgd.epsilon=0.1`` choose
    sizes, methods and faults.
    """
    names = bench.names("methods", COMPARED)
    faults = bench.names("faults", NAMES)
    for name in faults:
        if name not in NAMES:
            raise choice("fault", name, list(NAMES))
    here = lab(bench)
    clean = student(here, None)
    students = {name: student(here, name) for name in faults}
    tests = bench.size("tests", 25, 100)
    control = {name: _tests(here, clean, name, tests, bench) for name in names}
    found = {
        (fault, name): _tests(here, one, name, tests, bench)
        for fault, one in students.items()
        for name in names
    }
    verdicts = {key: _verdict(key[0], some, control[key[1]]) for key, some in found.items()}
    tables = [
        _acquired(students, clean),
        _detected(faults, names, verdicts, tests, here),
        _shares(faults, names, found, control),
    ]
    return Outcome("faults", tables, _pictures(bench, faults, names[0], found))


def _tests(here: Lab, one: Student, name: str, each: int, bench: Bench) -> TraitShifts:
    """The tests of one method from fresh seeds of both classes that the network gets right."""
    bench.say(
        f"{name} on the network {'without a fault' if one.fault is None else 'taught ' + one.fault}"
    )
    seeds = _seeds(here, one, each, bench)
    method = built(name, here, one.subject, bench.options.get(name, {}))
    done = search(one.subject, method, seeds, keep="best", seed=bench.seed)
    rows = (done.findings.kind == 0).nonzero().squeeze(1)
    rows = rows[torch.unique(done.findings.seed[rows], return_inverse=True)[1].argsort(stable=True)]
    own = seeds.take(done.findings.seed[rows])
    made = done.findings.x[rows]
    first = own.y == 0
    change = (measures(from_bytes(made)) - measures(from_bytes(own.x))) / here.gaps
    return TraitShifts(
        change * torch.where(first, 1.0, -1.0)[:, None], first, len(seeds), own, made
    )


def _seeds(here: Lab, one: Student, each: int, bench: Bench) -> Images:
    """Up to `each` fresh samples of either class that the network gets right;
    a trait that is rarely painted gives fewer.
    """
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
    x = torch.cat(pictures)
    y = label.cpu()
    right = probabilities(one.subject, x).argmax(1) == y
    chosen = torch.cat([(right & (y == c)).nonzero().squeeze(1)[:each] for c in (0, 1)])
    names = tuple(f"generated/{i}" for i in chosen.tolist())
    return Images(
        x[chosen],
        y[chosen],
        names,
        here.train.classes,
        "generated",
        context={"latent": torch.cat(codes)[chosen]},
    )


def _verdict(fault: str, faulty: TraitShifts, clean: TraitShifts) -> Verdict | None:
    """None where the faulty network gave too few tests to speak of shares. Where the clean one did,
    both are compared by their seeds, those without a test as not moved: a share of few tests beside
    one of many seeds would flatter the method.
    """
    column = NAMES.index(fault)
    hits = [(some.moved[:, column] >= HALF).double() for some in (faulty, clean)]
    if len(hits[0]) < FEW:
        return None
    if len(hits[1]) < FEW:
        hits = [
            torch.cat([h, h.new_zeros(some.searched - len(h))])
            for h, some in zip(hits, (faulty, clean))
        ]
    rng = stream(0, "faults", fault)
    drawn = [h[torch.randint(len(h), (2000, len(h)), generator=rng)].mean(1) for h in hits]
    low, high = (
        (drawn[0] - drawn[1]).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    )
    own, other = (float(h.mean()) for h in hits)
    return Verdict(own, other, own - other, low, high, len(hits[0]))


def _acquired(students: Mapping[str, Student], clean: Student) -> Table:
    rows: list[list[Cell]] = []
    for trait in TRAITS:
        if trait.name in students:
            one = students[trait.name]
            rows.append(
                [
                    trait.name,
                    trait.fault,
                    one.tied,
                    one.swapped,
                    one.free,
                    "yes" if one.acquired else "no",
                ]
            )
    return Table(
        "Held-out accuracy of the faulty networks",
        [
            "fault",
            "tells the classes apart",
            "trait as taught",
            "trait swapped",
            "trait free",
            "acquired",
        ],
        rows,
        [
            (
                f"the clean network, taught with free traits, gets {clean.free:.1%} of held-out"
                " pictures right"
            ),
            "acquired: the lead of the trait as taught over the trait swapped is more than half",
        ],
    )


def _detected(
    faults: Sequence[str],
    names: Sequence[str],
    verdicts: Mapping[tuple[str, str], Verdict | None],
    tests: int,
    here: Lab,
) -> Table:
    def cell(verdict: Verdict | None) -> str:
        if verdict is None:
            return f"fewer than {FEW} tests"
        word = "**detected**" if verdict.detected else "not detected"
        return f"{word} {verdict.difference:+.2f} [{verdict.low:+.2f}, {verdict.high:+.2f}]"

    rows: list[list[Cell]] = [
        [fault, *(cell(verdicts[fault, name]) for name in names)] for fault in faults
    ]
    counts = [
        sum(bool(v and v.detected) for (_, n), v in verdicts.items() if n == name) for name in names
    ]
    rows.append(["faults detected", *(f"{count} of {len(faults)}" for count in counts)])
    return Table(
        "Who detects what: share of tests that moved, minus that on the clean network",
        ["fault", *names],
        rows,
        [
            (
                f"up to {tests} seeds a direction, fresh samples of a conditional VAE that the"
                " network gets right; best test of each seed"
            ),
            (
                "moved: the trait went half of the way to the other class's kind; 95 % bootstrap"
                " interval over tests"
            ),
            (
                f"where the clean network gave fewer than {FEW} tests, both are compared by seeds,"
                " those without a test as not moved"
            ),
            f"classes {' and '.join(here.train.classes)} of {here.source}",
        ],
    )


def _shares(
    faults: Sequence[str],
    names: Sequence[str],
    found: Mapping[tuple[str, str], TraitShifts],
    control: Mapping[str, TraitShifts],
) -> Table:
    rows: list[list[Cell]] = []
    for fault in faults:
        column = NAMES.index(fault)
        for name in names:
            own = found[fault, name]
            other = control[name]
            there, back = (own.moved[own.first == way, column] >= HALF for way in (True, False))
            rows.append(
                [
                    fault,
                    name,
                    f"{len(own.moved)} of {own.searched}",
                    share(there),
                    share(back),
                    share(other.moved[:, column] >= HALF),
                ]
            )
    columns = [
        "fault",
        "method",
        "failing seeds",
        "moved, first to second class",
        "moved, second to first",
        "moved, clean network",
    ]
    return Table("Shares by direction", columns, rows, ["Wilson's 95 % intervals"])


def _pictures(
    bench: Bench, faults: Sequence[str], name: str, found: Mapping[tuple[str, str], TraitShifts]
) -> list[str]:
    """A line of seeds and a line of tests of the first method for every fault."""
    lines: dict[str, Any] = {}
    for fault in faults:
        some = found[fault, name]
        if len(some.made):
            lines |= {f"{fault}: seed": some.pictures.x[:10], f"{fault}: test": some.made[:10]}
    return [figures.images(bench.out / "tests.png", lines)] if lines else []
