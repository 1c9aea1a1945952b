"""Four experiments on why ARGUS's error rates are not found here: counting, batch normalisation, literal losses, plain networks.

Each asks whether it brings error rates to the paper's at the paper's likeness (MSE): (1) all originals are counted, none set aside;
(2) networks with batch normalisation are left in training mode and see the variants of one original as a batch; (3) the generator
is trained jointly by the losses as the text adds them up (weight 1), as sums and as means; (4) several networks are trained without
augmentation, to about the paper's accuracy. Networks see the same images.

``--set originals=40 partners=150 mixes=[0,0.1,0.2,0.3,0.4,0.5] plain=3 model_epochs=2 normalised=resnet18-small normalised_epochs=6
reductions=["sum","mean"] joint_epochs=5`` change what is run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes, to_grid
from hardcase.types import Images
from hardcase_studies.argus import quantised
from hardcase_studies.argus_measure import decode_mixture, mse, ssim
from hardcase_studies.argus_paper import PAPER, published_name
from hardcase_studies.bench import Bench, finite_mean
from hardcase_studies.lab import Lab, LatentModel

Answer = Callable[[Tensor], Tensor]
"""Labels of a batch of images in [0, 1]."""
SHARES = (0.1, 0.2, 0.3)
"""The shares that the paper has numbers of."""
TRAINING_MODE = "in training mode"


@dataclass(frozen=True, slots=True)
class Spot:
    """One generator at one share: how like their originals its images are, and which of them each network misreads."""

    generator: str
    mix: float
    mse: float
    ssim: float
    wrong: Mapping[str, Bool[Tensor, "n p"]]


def run(bench: Bench) -> Outcome:
    """Error rates of every network with every generator at every share, and the paper's points beside them."""
    here = Lab(bench)
    images = here.test.sample(count=bench.size("originals", 40, 100), seed=bench.seed)
    networks, notes = _networks(here)
    mixes = [float(mix) for mix in bench.options.get("mixes", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5))]
    spots = []
    for name, mix, make in _generators(here, mixes):
        bench.say(f"{name}, mix {mix}")
        try:
            own = make()
        except HardcaseError as problem:
            notes.append(f"{name}, mix {mix:g}: {problem.what}")
            continue
        spots.append(_spot(own, name, mix, images, networks, bench))
    right = _kept(spots, images, networks, bench)
    tables = [
        _rates("ER, nothing set aside", spots, networks, {}),
        _rates(
            "ER of originals that the network reads rightly, reconstructed too",
            spots,
            networks,
            right,
        ),
        _likeness(spots),
        _paper(spots, bench),
    ]
    tables[0] = replace(tables[0], notes=[*notes, *NOTES])
    return Outcome("argus-settling", tables)


NOTES = (
    "percent of mixtures of each original with partners of other classes; means over originals, 95 % intervals over originals",
    f"{TRAINING_MODE}: batch normalisation uses the mean and variance of a batch that holds one original's variants only",
    "a generator trained jointly is used at the share it was trained for; its mixture at 0 is its reconstruction",
)


def _networks(here: Lab) -> tuple[dict[str, Answer], list[str]]:
    """Ours with augmentation, plain ones, and one with batch normalisation in both modes."""
    options = here.bench.options
    notes = [
        f"data {here.train.name}, {len(here.train)} training images, device {here.bench.device}"
    ]
    usual = "lenet5" if here.train.x.shape[1] == 1 else "vgg16"
    model = str(options.get("model", usual))
    found: dict[str, Answer] = {}

    def add(label: str, subject: Subject, card: Mapping[str, Any]) -> None:
        found[label] = lambda x: subject(x).logits.argmax(1)
        notes.append(f"{label}: {card['accuracy']:.2%} of {len(here.test)} test images right")

    add(f"{model}, as trained here", *here.network(model, seed=0, epochs="own_epochs"))
    for number in range(int(options.get("plain", 3))):
        made = here.network(model, seed=number, epochs="model_epochs", augment="none")
        add(f"{model}, not augmented, {number + 1}", *made)
    name = str(options.get("normalised", "resnet18-small"))
    subject, card = here.network(name, seed=0, epochs="normalised_epochs", augment="none")
    add(name, subject, card)
    found[f"{name}, {TRAINING_MODE}"] = in_training_mode(subject)
    return found, notes


def in_training_mode(subject: Subject) -> Answer:
    """The network with batch normalisation by the batch it is shown; its own statistics do not move."""
    whole = copy.deepcopy(subject)
    for layer in whole.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
            layer.train()
            layer.momentum = 0.0

    @torch.no_grad()
    def answer(x: Tensor) -> Tensor:
        said: Tensor = whole.net((x - whole.mean) / whole.std)
        return said.argmax(1)

    return answer


def _generators(
    here: Lab, mixes: Sequence[float]
) -> list[tuple[str, float, Callable[[], LatentModel]]]:
    """Without discriminators at every share; jointly, by sums and by means, at the paper's."""
    bench = here.bench
    kind = str(bench.options.get("kind", "gradient"))
    rounds = bench.options.get("joint_epochs", None if bench.full else 5)
    found: list[tuple[str, float, Callable[[], LatentModel]]] = [
        ("no discriminators", mix, lambda: quantised(here)) for mix in mixes
    ]
    for reduction in bench.names("reductions", ("sum", "mean")):
        for mix in SHARES:
            make = partial(
                quantised, here, kind=kind, mix=mix, reduction=reduction, joint_epochs=rounds,
                latent_weight=1.0, image_weight=1.0,
            )  # fmt: skip
            found.append((f"jointly, {reduction}", mix, make))
    return found


@torch.no_grad()
def _spot(
    own: LatentModel,
    name: str,
    mix: float,
    images: Images,
    networks: Mapping[str, Answer],
    bench: Bench,
) -> Spot:
    """Original by original, so that what is shown together are the variants of one."""
    device = torch.device(bench.device)
    wrong: dict[str, list[Tensor]] = {network: [] for network in networks}
    far: list[Tensor] = []
    like: list[Tensor] = []
    for i, partner in enumerate(_partners(own, images, bench)):
        x = from_bytes(images.x[i : i + 1].to(device))
        y = images.y[i : i + 1].to(device)
        made = to_grid(decode_mixture(own, x, y, partner[None].to(device), mix))
        far.append(mse(made, x.expand_as(made)).mean())
        like.append(ssim(made, x.expand_as(made)).mean())
        for network, answer in networks.items():
            wrong[network].append((answer(made) != y).cpu())
    tables = {network: torch.stack(rows) for network, rows in wrong.items()}
    return Spot(name, mix, float(torch.stack(far).mean()), float(torch.stack(like).mean()), tables)


def _partners(own: LatentModel, images: Images, bench: Bench) -> list[Int[Tensor, " p"]]:
    """For each original as many codes of other classes, drawn by chance; the same for every generator."""
    count = bench.size("partners", 150, 1000)
    rng = stream(bench.seed, "partners")
    found = []
    for label in images.y.tolist():
        rows = own.codes.by_class[label].cpu()
        found.append(rows[torch.randint(len(rows), (count,), generator=rng)])
    return found


@torch.no_grad()
def _kept(
    spots: Sequence[Spot], images: Images, networks: Mapping[str, Answer], bench: Bench
) -> dict[str, Bool[Tensor, " n"]]:
    """Which originals each network reads rightly, as they are and reconstructed without any mixture."""
    at_zero = next((spot for spot in spots if spot.mix == 0), None)
    x = from_bytes(images.x.to(bench.device))
    found = {}
    for network, answer in networks.items():
        if not network.endswith(TRAINING_MODE):  # one image is no batch
            right = answer(x).cpu() == images.y
            found[network] = right if at_zero is None else right & ~at_zero.wrong[network][:, 0]
    return found


def _rates(
    title: str,
    spots: Sequence[Spot],
    networks: Mapping[str, Answer],
    kept: Mapping[str, Bool[Tensor, " n"]],
) -> Table:
    """A row for each generator and network, a column for each share; only `kept` originals where any are named."""

    def rate(network: str, spot: Spot) -> str:
        wrong = spot.wrong[network][kept.get(network, slice(None))]
        return finite_mean(100 * wrong.double().mean(1)).text(".1f")

    shown = [network for network in networks if not kept or network in kept]
    said = {f"; {network}": partial(rate, network) for network in shown}
    return _along_mixes(title, "generator; network", spots, said)


def _likeness(spots: Sequence[Spot]) -> Table:
    said = {"": lambda spot: f"{spot.mse:.4f}, {spot.ssim:.3f}"}
    return _along_mixes("MSE, SSIM of all images", "generator", spots, said)


def _along_mixes(
    title: str, first: str, spots: Sequence[Spot], said: Mapping[str, Callable[[Spot], str]]
) -> Table:
    """For each generator a row of each kind of cell, a column for each share."""
    mixes = sorted({spot.mix for spot in spots})
    rows: list[list[Cell]] = []
    for generator in dict.fromkeys(spot.generator for spot in spots):
        at = {spot.mix: spot for spot in spots if spot.generator == generator}
        for name, cell in said.items():
            cells = [cell(at[mix]) if mix in at else "" for mix in mixes]
            rows.append([f"{generator}{name}", *cells])
    return Table(title, [first, *(f"mix {mix:g}" for mix in mixes)], rows)


def _paper(spots: Sequence[Spot], bench: Bench) -> Table:
    """Whether any setting has the paper's error rate where its images are as like their originals as the paper's."""
    rows: list[list[Cell]] = []
    for label, paper in _published(bench).items():
        near = [spot for spot in spots if spot.mse <= paper.mse]
        best = [
            (100 * float(wrong.double().mean()), f"{spot.generator}, mix {spot.mix:g}; {network}")
            for spot in near
            for network, wrong in spot.wrong.items()
        ]
        rate, where = max(best, default=(float("nan"), "no setting is so like"))
        verdict = "reached" if rate >= paper.er else "above every curve"
        verdict = verdict if near else "not comparable"
        rows.append([label, f"{paper.mse:.4f}", f"{paper.er:.1f}", rate, where, verdict])
    columns = [
        "published",
        "MSE",
        "ER, %",
        "largest ER here at most this MSE, %",
        "of",
        "the paper's point",
    ]
    return Table("The paper's points", columns, rows)


def _published(bench: Bench) -> dict[str, Any]:
    model = published_name(str(bench.options.get("model", "lenet5")))
    return {
        label: row
        for (name, label), row in PAPER.items()
        if name == model and label.startswith("ARGUS")
    }
