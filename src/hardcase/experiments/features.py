"""Feature perturbation on networks as they are: which features move, how far in pixels, and what robust networks say.

After I. Dunn, H. Pouget, T. Melham, D. Kroening, "Exposing Previously Undetectable Faults in Deep Neural Networks", ISSTA
2021: RQ2 (faults of unmodified networks), RQ3 (Figure 2: pixel distances; Table 3: robust networks' accuracy on the tests).
There ImageNet at 512 pixels with BigGAN, and people who looked; here small images, a small GAN, and features that are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.saying import mean, share
from hardcase.experiments.searching import Searched, probabilities, search
from hardcase.experiments.world import both_splits
from hardcase.generators.build import trained_generator
from hardcase.generators.quality import Sampler, fresh
from hardcase.generators.staged import Decoder
from hardcase.methods.feature_perturbation import feature_perturbation, feature_perturbation_paper
from hardcase.methods.pgd import pgd
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.oracles import Confident
from hardcase.semantics import FEATURES, measured, moved
from hardcase.spaces.activations import Activations, Staged, early_places
from hardcase.tensors import from_bytes
from hardcase.types import Images, Method

CONFIDENCE, EPSILON, LEAST = 3.0, 0.3, 0.2
PAIRS = ((4, 9), (9, 4), (3, 8), (8, 3))


@dataclass(frozen=True, slots=True)
class Studio:
    """The data, the generator and its card's own words."""

    train: Images
    test: Images
    generator: nn.Module
    note: str

    def space(self, places: Sequence[int] | None = None) -> Activations:
        assert isinstance(self.generator, Staged)
        classes = len(self.test.classes)
        return Activations(
            self.generator, early_places(self.generator, places, classes=classes), classes=classes
        )


def studio(bench: Bench) -> Studio:
    """``--set generator=vae`` takes the decoder of a conditional VAE; ``kind=conditional`` the GAN for GPUs."""
    train, test = both_splits(bench)
    judge, _ = trained_classifier(
        "sinvad-cnn", train, test, epochs=bench.options.get("epochs"), device=bench.device
    )
    family = str(bench.options.get("generator", "gan"))
    kind = bench.options.get("kind", "conditional" if family == "vae" else None)
    bench.say(f"the generator, a {family}")
    net, card = trained_generator(
        family,
        train,
        test,
        kind=kind,
        epochs=bench.options.get("gan_epochs"),
        judge=judge,
        device=bench.device,
    )
    said = card.get("sample_accuracy", card.get("reconstruction_accuracy"))
    note = f"generator {card['kind']} {card['name']}; sinvad-cnn sees the class asked for in {said:.1%}"
    return Studio(train, test, Decoder(net) if family == "vae" else net, note)  # type: ignore[arg-type]  # a Vae, by its family


def subject(
    bench: Bench, here: Studio, name: str, *, seed: int = 0, adversarial: str | None = None
) -> Subject:
    epochs = bench.options.get("robust_epochs" if adversarial else "epochs")
    net, _ = trained_classifier(
        name,
        here.train,
        here.test,
        seed=seed,
        adversarial=adversarial,
        epochs=epochs,
        device=bench.device,
    )
    return Subject(
        net, classes=here.test.classes, name=f"{name} {adversarial or seed}", device=bench.device
    )


def painted(
    bench: Bench, here: Studio, one: Subject, count: int, *, labels: Sequence[int] | None = None
) -> Images:
    """Fresh seeds that the network gets right."""
    assert isinstance(here.generator, Sampler)
    return fresh(
        here.generator, here.test.classes, count, seed=bench.seed, device=bench.device,
        labels=None if labels is None else torch.tensor(labels), accept=lambda x, y: one(x).logits.argmax(1) == y,
    )  # fmt: skip


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
    here, count = studio(bench), int(bench.options.get("seeds", 100 if bench.full else 20))
    one, rows, lines = subject(bench, here, "lenet5"), list[list[Cell]](), dict[str, Tensor]()
    spread = measured(from_bytes(here.test.x[:1000])).std(0)
    for origin, target in _pairs(len(here.test.classes)):
        bench.say(f"{origin} → {target}")
        seeds = painted(bench, here, one, count, labels=[origin])
        for name, method in _targeted(here, target).items():
            done = search(one, method, seeds, seed=bench.seed)
            own, made = seeds.x[done.findings.seed], done.findings.x
            rows.append(
                [
                    f"{origin} → {target}",
                    name,
                    f"{done.succeeded} of {len(seeds)}",
                    *_surest(own, made, spread),
                ]
            )
            lines |= {f"{origin} → {target}": own[:8], f"{origin} → {target}, {name}": made[:8]}
    columns = ["pair", "method", "seeds that fail", "what moved most often", "second", "third"]
    notes = [
        f"lenet5 on {here.train.name}; {here.note}; margin {CONFIDENCE} in logits, pixels within {EPSILON} of the seed",
        f"moved: by {LEAST} of a feature's standard deviation over test images; Wilson's 95 % intervals",
        f"shown are the three largest of {2 * len(FEATURES)} shares (each feature, up and down), which their intervals do not allow for",
    ]
    table = Table(
        "What moves in confident targeted failures of an unmodified network", columns, rows, notes
    )
    return Outcome("features-rq2", [table], [figures.images(bench.out / "tests.png", lines)])


def _pairs(classes: int) -> Sequence[tuple[int, int]]:
    known = [pair for pair in PAIRS if max(pair) < classes]
    return known or [(0, 1), (1, 0)]


def _surest(seeds: Tensor, tests: Tensor, spread: Tensor, most: int = 3) -> list[Cell]:
    """The features that moved one way in the most tests, in words."""
    if not len(tests):
        return [None] * most
    change = moved(from_bytes(seeds), from_bytes(tests)) / spread.clamp_min(1e-6)
    said = [(int(hit.sum()), words, hit) for i, f in enumerate(FEATURES) if float(spread[i]) > 0
            for hit, words in ((change[:, i] > LEAST, f.up), (change[:, i] < -LEAST, f.down))]  # fmt: skip
    best = sorted(said, key=lambda one: -one[0])[:most]
    return [f"{words}: {share(hit)}" for _, words, hit in best]


def rq3(bench: Bench) -> Outcome:
    """``--set seeds=… robust_epochs=…``: pixel distances, and the accuracy of robust networks on tests for others."""
    here, count = studio(bench), int(bench.options.get("seeds", 1000 if bench.full else 40))
    robust = {
        norm: subject(bench, here, "lenet5", adversarial=norm) for norm in ("l2:1.5", "linf:0.1")
    }
    target = int(bench.options.get("target", len(here.test.classes) - 1))
    far, kept = list[list[Cell]](), list[list[Cell]]()
    for name in ("lenet5", "sinvad-cnn"):
        bench.say(f"tests for {name}")
        one = subject(bench, here, name)
        seeds = painted(
            bench,
            here,
            one,
            count,
            labels=[c for c in range(len(here.test.classes)) if c != target],
        )
        for way, method in _targeted(here, target).items():
            done = search(one, method, seeds, seed=bench.seed)
            l2, linf = _distances(seeds, done)
            within = (l2 <= 1.5) & (linf <= 0.1)
            far.append(
                [
                    name,
                    way,
                    f"{done.succeeded} of {len(seeds)}",
                    mean(l2),
                    mean(linf),
                    share(within),
                ]
            )
            kept.append([name, way, *(share(_kept(net, done)) for net in robust.values())])
    notes = [
        here.note,
        f"target {target}, margin {CONFIDENCE} in logits for both; {here.train.name}",
    ]
    clean = ", ".join(f"{norm} {_accuracy(net, here.test):.1%}" for norm, net in robust.items())
    return Outcome(
        "features-rq3",
        [
            Table("Pixel magnitude (Figure 2)", ["attacked", "method", "seeds that fail", "L2", "L∞", "within both balls"], far, notes),
            Table("Transfer: robust networks that still see the seed's label (Table 3)", ["attacked", "method", *robust], kept,
                [f"accuracy of the robust networks on test images: {clean}", "paper, L2 and L∞: pixel tests 56 and 53 %, GAN tests 27 and 24 %; 36, 32 and 25, 22 for the robust networks' own architecture"]),
        ],
    )  # fmt: skip


def labels(bench: Bench) -> Outcome:
    """``--set seeds=… generator=…``: whether independent networks keep the seed's label, by step, bound and way back."""
    here, count = studio(bench), int(bench.options.get("seeds", 300 if bench.full else 60))
    one = subject(bench, here, "lenet5")
    panel = [
        subject(bench, here, "sinvad-cnn"),
        subject(bench, here, "lenet1"),
        subject(bench, here, "lenet5", seed=1),
    ]
    seeds, rows = painted(bench, here, one, count), list[list[Cell]]()
    for name, method in _trials(here).items():
        bench.say(name)
        done = search(one, method, seeds, seed=bench.seed)
        votes = torch.stack([_kept(net, done) for net in panel])
        l2, _ = _distances(seeds, done)
        rows.append(
            [
                name,
                f"{done.succeeded} of {len(seeds)}",
                share(votes.sum(0) >= 2),
                share(votes.all(0)),
                mean(l2),
            ]
        )
    columns = ["setting", "seeds that fail", "label kept by two of three", "by all three", "L2"]
    notes = [
        f"lenet5 on {here.train.name}; judges: sinvad-cnn, lenet1 and lenet5 from other weights",
        here.note,
    ]
    return Outcome("features-labels", [Table("Label keeping", columns, rows, notes)])


def _trials(here: Studio) -> dict[str, Method]:
    space = here.space()
    return {
        "as maintained": feature_perturbation(space=space),
        "without the way back": feature_perturbation(space=space, retreat=0),
        "step 0.001": feature_perturbation(space=space, stride=0.001, gradients=600),
        "step 0.02, no bound, no way back": feature_perturbation(
            space=space, stride=0.02, radius=1e9, retreat=0
        ),
        "as published (step 0.01)": feature_perturbation_paper(space=space),
        "latent code only": feature_perturbation(space=space, places=(0,)),
        "bound 3": feature_perturbation(space=space, radius=3.0),
    }


def _distances(seeds: Images, done: Searched) -> tuple[Tensor, Tensor]:
    change = (from_bytes(done.findings.x) - from_bytes(seeds.x[done.findings.seed])).flatten(1)
    return change.norm(dim=1), change.abs().amax(1) if len(change) else change.sum(1)


def _kept(net: Subject, done: Searched) -> Bool[Tensor, " t"]:
    found = done.findings
    return (
        probabilities(net, found.x).argmax(1) == found.expected
        if len(found)
        else found.expected == -1
    )


def _accuracy(net: Subject, images: Images) -> float:
    return float((probabilities(net, images.x).argmax(1) == images.y).double().mean())
