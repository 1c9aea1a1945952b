"""Feature perturbation on networks as they are: which features move, how far in pixels, and what robust networks say.

After I. Dunn, H. Pouget, T. Melham, D. Kroening, "Exposing Previously Undetectable Faults in Deep Neural Networks", ISSTA
2021: RQ2 (faults of unmodified networks), RQ3 (Figure 2: pixel distances; Table 3: robust networks' accuracy on the tests).
There ImageNet at 512 pixels with BigGAN, and people who looked; here small images, a small GAN, and features that are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hardcase.analysis.semantics import FEATURES, equal_noise, measured, moved, noticeable
from hardcase.campaign.in_memory import SearchResult, search
from hardcase.generators.adapters import Decoder
from hardcase.generators.quality import Sampler, check_samples, verified_seeds
from hardcase.methods.generative import feature_perturbation
from hardcase.methods.pgd import pgd
from hardcase.models.health import probabilities
from hardcase.models.subject import Subject
from hardcase.models.witnesses import default_witnesses
from hardcase.oracles import Confident
from hardcase.randomness import Rng, stream
from hardcase.spaces.activations import Activations, Staged, early_places
from hardcase.statistics import max_statistic
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes
from hardcase.types import Images, Method, Seeds
from hardcase_studies import figures
from hardcase_studies.bench import Bench, mean, share
from hardcase_studies.lab import Lab, accuracy

CONFIDENCE = 3.0
EPSILON = 0.3
LEAST = 1.0
LONGEST = 1000.0
"""The longest change of activations that is tried; no image changes more beyond it."""
HALVINGS = 30
PAIRS = ((4, 9), (9, 4), (3, 8), (8, 3))


@dataclass(frozen=True, slots=True)
class Studio:
    """A lab with a generator whose activations are perturbed, what its card says, and networks that check its samples."""

    lab: Lab
    generator: nn.Module
    note: str
    verifiers: tuple[Subject, ...]

    @property
    def classes(self) -> int:
        return len(self.lab.test.classes)

    def space(self, places: Sequence[int] | None = None) -> Activations:
        assert isinstance(self.generator, Staged)
        early = early_places(self.generator, places, classes=self.classes)
        return Activations(self.generator, early, classes=self.classes)

    def subject(self, name: str, *, seed: int = 0, adversarial: str | None = None) -> Subject:
        """A network trained from these weights; ``--set epochs=… robust_epochs=…`` shorten that."""
        epochs = "robust_epochs" if adversarial else "epochs"
        return self.lab.network(name, seed=seed, adversarial=adversarial, epochs=epochs)[0]

    def fresh_seeds(
        self, one: Subject, count: int, *, labels: Sequence[int] | None = None
    ) -> tuple[Images, str]:
        """New samples of the generator that the network and most of the verifiers classify correctly, and how many there were."""
        assert isinstance(self.generator, Sampler)
        bench = self.lab.bench
        seeds, told = verified_seeds(
            self.generator,
            self.lab.test.classes,
            count,
            subject=one,
            verifiers=self.verifiers,
            seed=bench.seed,
            device=bench.device,
            labels=None if labels is None else torch.tensor(labels),
        )
        return seeds, (
            f"seeds for {one.name.removeprefix('zoo:')}: {told['generated']} samples, {told['correctly_classified']} correctly classified, "
            f"{told['verified']} of these verified by most of {len(self.verifiers)} networks that no search asks"
        )


def studio(bench: Bench) -> Studio:
    """``--set generator=vae`` takes the decoder of a conditional VAE; ``kind=conditional`` the GAN for GPUs."""
    data = Lab(bench)
    judge, _ = data.network("sinvad-cnn", seed=0)
    lab = Lab(bench, splits=(data.train, data.test), subject=judge)
    family = str(bench.options.get("generator", "gan"))
    kind = bench.options.get("kind", "conditional" if family == "vae" else None)
    net, card = lab.trained(family, kind=kind, epochs=bench.options.get("gan_epochs"))
    seen = card.get("sample_accuracy", card.get("reconstruction_accuracy"))
    note = f"generator {card['kind']} {card['name']}; sinvad-cnn sees the class asked for in {seen:.1%}"
    verifiers = default_witnesses(data.train, data.test, device=bench.device)
    made = Decoder(net) if family == "vae" else net  # type: ignore[arg-type]  # a Vae, by its family
    assert isinstance(made, Sampler)
    labels = torch.arange(len(data.test.classes))
    check_samples(made, labels, verifiers, data.test, device=bench.device)
    return Studio(lab, made, note, verifiers)


def _targeted(here: Studio, target: int) -> dict[str, Method]:
    """Both kinds of test, equally targeted and with the same margin."""
    pixels = pgd(epsilon=EPSILON, gradients=100, target=target)
    return {
        "feature-perturbation": feature_perturbation(
            space=here.space(), confidence=CONFIDENCE, target=target
        ),
        "pgd": replace(pixels, oracle=Confident(confidence=CONFIDENCE, target=target)),
    }


def rq2(bench: Bench) -> Outcome:
    """``--set seeds=… generator=…``: confident targeted tests for pairs of classes, and what moved in them."""
    here = studio(bench)
    count = bench.size("seeds", 20, 100)
    one = here.subject("lenet5")
    rows: list[list[Cell]] = []
    lines: dict[str, Tensor] = {}
    told = list[str]()
    spread = measured(from_bytes(here.lab.test.x[:1000])).std(0)
    for origin, target in _pairs(here.classes):
        pair = f"{origin} → {target}"
        bench.say(pair)
        seeds, checked = here.fresh_seeds(one, count, labels=[origin])
        told.append(f"{pair}: {checked}")
        for name, method in _targeted(here, target).items():
            done = search(one, method, seeds, seed=bench.seed)
            own = seeds.x[done.findings.seed]
            made = done.findings.x
            control = _random_alike(here, seeds, done, name, bench.seed)
            failing = f"{done.succeeded} of {len(seeds)}"
            rows.append([pair, name, failing, *_surest(own, made, control, spread)])
            lines |= {pair: own[:8], f"{pair}, {name}": made[:8]}
    columns = ["pair", "method", "seeds that fail", "what moved most often", "second", "third"]
    notes = [
        f"lenet5 on {here.lab.train.name}; {here.note}; margin {CONFIDENCE} in logits, pixels within {EPSILON} of the seed",
        "moved: by what a person can see (a pixel of 28, half a pixel of stroke or size, 10 grey levels, 10° of hue, 5° of slant); Wilson's 95 % intervals",
        f"shown are the three largest of {2 * len(FEATURES)} shares (each feature, up and down)",
        "by chance: random changes that are as large in the image (L2), finding by finding: along a random direction of the "
        "generator's activations, or Gaussian noise in pixels",
        "p: of the difference from chance, for the best of all features by sign flips (Westfall and Young)",
        *told,
    ]
    table = Table(
        "What moves in confident targeted failures of an unmodified network", columns, rows, notes
    )
    return Outcome("features-rq2", [table], [figures.images(bench.out / "tests.png", lines)])


def _pairs(classes: int) -> Sequence[tuple[int, int]]:
    known = [pair for pair in PAIRS if max(pair) < classes]
    return known or [(0, 1), (1, 0)]


@torch.no_grad()
def _random_alike(here: Studio, seeds: Images, done: SearchResult, name: str, seed: int) -> Tensor:
    """For each finding, its seed after a random change of the same L2 distance *in the image*.

    Beside feature perturbation it is a random direction in the generator's activations, as long as makes the image differ so
    much; beside pixels, noise.
    """
    found = done.findings
    before = from_bytes(seeds.x[found.seed])
    if name == "pgd" or not len(found):
        return equal_noise(before, from_bytes(found.x), rng=stream(seed, "random alike"))
    space = here.space()
    device = here.lab.bench.device
    own = seeds.take(found.seed)
    y = own.y.to(device)
    x = before.to(device)
    known = {key: value.to(device) for key, value in own.context.items()}
    z, context = space.encode(x, y, Rng.numbered(seed, "random alike", len(y), device=x.device))
    origin = Seeds(z, x, y, torch.arange(len(y), device=x.device), {**known, **context})
    random = torch.randn(z.shape, generator=stream(seed, "direction")).to(device)
    random = random / random.flatten(1).norm(dim=1).reshape(-1, *[1] * (random.dim() - 1))
    asked = (from_bytes(found.x).to(device) - x).flatten(1).norm(dim=1)
    return as_far_in_the_image(lambda code: space.decode(code, origin), random, x, asked).cpu()


@torch.no_grad()
def as_far_in_the_image(
    decode: Callable[[Tensor], Tensor], direction: Tensor, before: Tensor, asked: Tensor
) -> Tensor:
    """Images along `direction` whose L2 distance from `before` is `asked`, by bisection; the farthest where none is so far."""
    wide = [-1, *[1] * (direction.dim() - 1)]
    low, high = torch.zeros_like(asked), torch.full_like(asked, LONGEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        made = decode(direction * middle.reshape(wide)).clamp(0, 1)
        short = (made - before).flatten(1).norm(dim=1) < asked
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return decode(direction * high.reshape(wide)).clamp(0, 1)


def _surest(
    seeds: Tensor, tests: Tensor, control: Tensor, spread: Tensor, most: int = 3
) -> list[Cell]:
    """The features that moved one way in the most tests, in words, beside a random change of equal size."""
    if not len(tests):
        return [None] * most
    own, chance = (
        moved(from_bytes(seeds), made) / noticeable() for made in (from_bytes(tests), control)
    )
    ways = [(c > LEAST).double() - (c < -LEAST).double() for c in (own, chance)]
    p = max_statistic(ways[0] - ways[1], rng=stream(0, "what moved"), permutations=2000).tolist()
    said = []
    for i, feature in enumerate(FEATURES):
        if float(spread[i]) > 0:
            for sign, words in ((1, feature.up), (-1, feature.down)):
                hit, random = (sign * change[:, i] > LEAST for change in (own, chance))
                said.append((int(hit.sum()), words, share(hit), int(random.sum()), p[i]))
    best = sorted(said, key=lambda one: -one[0])[:most]
    return [
        f"{words}: {told}, by chance {random} of {len(tests)}, p {value:.2g}"
        for _, words, told, random, value in best
    ]


def rq3(bench: Bench) -> Outcome:
    """``--set seeds=… robust_epochs=…``: pixel distances, and the accuracy of robust networks on tests for others."""
    here = studio(bench)
    count = bench.size("seeds", 40, 1000)
    norms = ("l2:1.5", "linf:0.1")
    robust = {norm: here.subject("lenet5", adversarial=norm) for norm in norms}
    target = int(bench.options.get("target", here.classes - 1))
    others = [c for c in range(here.classes) if c != target]
    referees = [
        here.subject("sinvad-cnn", seed=1),
        here.subject("lenet1"),
        here.subject("lenet5", seed=1),
    ]
    far: list[list[Cell]] = []
    kept: list[list[Cell]] = []
    told = list[str]()
    for name in ("lenet5", "sinvad-cnn"):
        bench.say(f"tests for {name}")
        one = here.subject(name)
        seeds, checked = here.fresh_seeds(one, count, labels=others)
        told.append(checked)
        for way, method in _targeted(here, target).items():
            done = search(one, method, seeds, seed=bench.seed)
            l2, linf = _distances(seeds, done)
            within = (l2 <= 1.5) & (linf <= 0.1)
            failing = f"{done.succeeded} of {len(seeds)}"
            far.append([name, way, failing, mean(l2), mean(linf), share(within)])
            agreed = torch.stack([_kept(net, done) for net in referees]).sum(0) >= 2
            said = [_kept(net, done) for net in robust.values()]
            kept.append(
                [name, way, *map(share, said), share(agreed), *(share(s[agreed]) for s in said)]
            )
    notes = [
        here.note,
        f"target {target}, margin {CONFIDENCE} in logits for both; {here.lab.train.name}",
        *told,
    ]
    clean = ", ".join(f"{norm} {accuracy(net, here.lab.test):.1%}" for norm, net in robust.items())
    return Outcome(
        "features-rq3",
        [
            Table("Pixel magnitude (Figure 2)", ["attacked", "method", "seeds that fail", "L2", "L∞", "within both balls"], far, notes),
            Table("Transfer: robust networks that still see the seed's label (Table 3)", ["attacked", "method", *robust, "label kept by two of three others", *(f"{norm}, of these" for norm in robust)], kept,
                [f"accuracy of the robust networks on test images: {clean}", "paper, L2 and L∞: pixel tests 56 and 53 %, GAN tests 27 and 24 %; 36, 32 and 25, 22 for the robust networks' own architecture",
                 "of these: only tests whose label two of three networks keep that no search asked (sinvad-cnn and lenet5 from other weights, lenet1); the paper counts all"]),
        ],
    )  # fmt: skip


def _distances(seeds: Images, done: SearchResult) -> tuple[Tensor, Tensor]:
    change = (from_bytes(done.findings.x) - from_bytes(seeds.x[done.findings.seed])).flatten(1)
    return change.norm(dim=1), change.abs().amax(1) if len(change) else change.sum(1)


def _kept(net: Subject, done: SearchResult) -> Bool[Tensor, " t"]:
    found = done.findings
    return (
        probabilities(net, found.x).argmax(1) == found.expected
        if len(found)
        else found.expected == -1
    )
