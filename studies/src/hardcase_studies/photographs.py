"""Samples of a diffusion model of small photographs, measured by a network that took no part.

Ours. Everything is trained when it is first asked for and found again afterwards, so that a study that was stopped goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hardcase.generators.build import trained_generator
from hardcase.generators.quality import write
from hardcase.judges import panel
from hardcase.judges.judge import TrainedJudge
from hardcase.judges.rules import Signals
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, from_bytes, to_bytes
from hardcase.training.cards import TrainingProgress
from hardcase_studies.bench import Bench, share
from hardcase_studies.diffusion import Diffusion
from hardcase_studies.lab import Lab

GUIDANCE = (0.0, 1.0, 2.0, 3.0, 4.0)
SECONDS = 20.0
"""Between two words on a training."""


def _classifier(lab: Lab) -> tuple[Subject, Mapping[str, Any]]:
    """The network that recognises; ``--set model=… epochs=…`` choose another one or a shorter training."""
    return lab.network(str(lab.bench.options.get("model", "resnet18")), seed=lab.bench.seed)


def _rate(part: float, count: int) -> str:
    return share(torch.arange(count) < round(part * count))


def _telling(bench: Bench) -> Callable[[TrainingProgress], None]:
    """Says now and then how far a training is."""
    said = time.monotonic()

    def tell(now: TrainingProgress) -> None:
        nonlocal said
        if now.warning or time.monotonic() - said > SECONDS:
            said = time.monotonic()
            told = f"{now.what}: epoch {now.epoch}, step {now.step}, loss {now.loss:.4f}"
            bench.say(f"{told} {now.warning}".rstrip())

    return tell


def diffusion(bench: Bench) -> Outcome:
    """``--set minutes=… samples=… guidance=…``: the share of a diffusion model's samples that a classifier recognises.

    The guidance is the one whose samples the judge of the data recognises most often; the classifier sees none of these.
    """
    lab = Lab(bench)
    subject, known = _classifier(lab)
    bench.say("judge")
    made = panel.trained(
        lab.train, lab.test, seed=bench.seed, device=bench.device, progress=_telling(bench)
    )
    options = bench.options
    bench.say("diffusion model")
    net, card = trained_generator(
        "diffusion",
        lab.train,
        lab.test,
        seed=bench.seed,
        latent=options.get("width"),
        epochs=options.get("generator_epochs"),
        minutes=options.get("minutes"),
        judge=lambda x: subject(x).logits,
        device=bench.device,
        progress=_telling(bench),
    )
    assert isinstance(net, Diffusion)
    net.halves = bench.device != "cpu"
    tried = bench.size("tried", 200, 1000)
    given = options.get("guidance", GUIDANCE)
    guided = {
        float(one): _development(net, tried, float(one), made, bench)
        for one in (given if isinstance(given, Sequence) else (given,))
    }
    best = max(guided, key=lambda one: guided[one])
    count = bench.size("samples", 1000, 10_000)
    bench.say(f"{count} samples, guidance {best}")
    images, label = _drawn(net, count, best, "samples", bench)
    seen = torch.cat(
        [
            subject(from_bytes(images[part].to(bench.device))).logits.argmax(1).cpu()
            for part in chunks(count, 500)
        ]
    )
    right = [int((seen[label == c] == c).sum()) for c in range(net.labels)]
    worst = min(range(net.labels), key=lambda c: right[c] / max(int((label == c).sum()), 1))
    rows: list[list[Cell]] = [
        [one, _rate(part, tried), _rate(sum(right) / count, count) if one == best else None]
        for one, part in guided.items()
    ]
    write(bench.out / "samples.png", [images[label == c][:12] for c in range(min(net.labels, 20))])
    columns = ("guidance", "recognised by the judge", "recognised")
    weights = sum(parameter.numel() for parameter in net.parameters())
    notes = (
        f"{count} samples of the best guidance, classes in turns; 18 steps of Heun's method",
        f"least recognised: {lab.test.classes[worst]}, {right[worst]} of {int((label == worst).sum())}",
        f"{weights:,} weights, trained for {card['seconds']:.0f} s: {card['steps']} steps of "
        f"{card['configuration']['recipe']['batch']} of the {len(lab.train)} training images",
        f"{subject.name}, which took no part: {known['accuracy']:.2%} of real test images right; "
        f"the judge, by which the guidance was chosen on other samples: {made.card['accuracy']:.2%}",
        f"reconstructions right: {card['reconstruction_accuracy']:.2%}; "
        f"samples by their codes right: {card['sample_accuracy']:.2%}; diversity {card['diversity']:.2f}",
    )
    table = Table("Samples recognised", columns, rows, notes)
    return Outcome("diffusion-cifar10", [table], ["samples.png"])


def _development(
    net: Diffusion, count: int, guidance: float, judge: TrainedJudge, bench: Bench
) -> float:
    """The share of samples that the judge takes for what they should be."""
    bench.say(f"{count} samples for the judge, guidance {guidance}")
    images, label = _drawn(net, count, guidance, "development", bench)
    signals = judge.panel.ask(from_bytes(images.to(bench.device)), label.to(bench.device))
    seen = Signals.average(signals).seen
    return float((seen.cpu() == label).double().mean())


def _drawn(
    net: Diffusion, count: int, guidance: float, name: str, bench: Bench
) -> tuple[Tensor, Tensor]:
    """So many 8-bit samples and their labels, classes in turns."""
    label = torch.arange(count) % net.labels
    rng = stream(bench.seed, "study", name, device=bench.device)
    parts = [
        to_bytes(net.draw(label[part].to(bench.device), rng, guidance=guidance)).cpu()
        for part in chunks(count, 1000)
    ]
    return torch.cat(parts), label
