"""What a campaign costs beside its networks: the time of the same calls made bare, over the campaign's time."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.figures import Figure, seconds
from hardcase import data, generators
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits
from hardcase.methods import pgd, sinvad
from hardcase.methods.appearance_search import natural
from hardcase.methods.sinvad import sinvad_code
from hardcase.models import zoo
from hardcase.models.subject import Subject
from hardcase.models.witnesses import default_witnesses
from hardcase.objectives import with_witnesses
from hardcase.spaces.latent import Latent, partners
from hardcase.tensors import from_bytes
from hardcase.types import Answer, Images, Method

COMMAND = "python -m benchmarks campaign"


class Bare:
    """Replays, without a campaign around them, the calls that a campaign made: same networks, same numbers of rows."""

    def __init__(self, subject: Subject, space: Latent | None) -> None:
        self.subject, self.space = subject, space
        self.calls: list[tuple[int, bool]] = []
        self.name, self.hash, self.offers, self.device = (
            subject.name,
            subject.hash,
            subject.offers,
            subject.device,
        )

    def __call__(self, x: Tensor, taps: object = None) -> Answer:
        self.calls.append((len(x), x.requires_grad))
        return self.subject(x)

    def codes(self, images: Images) -> Tensor:
        """Something to ask about: the images, or their codes."""
        x = from_bytes(images.x)
        z = x if self.space is None else self.space.encode(x, images.y, torch.Generator())[0]
        return z.repeat(8, *[1] * (z.ndim - 1))

    def replay(self, z: Tensor) -> None:
        for rows, graded in self.calls:
            with torch.set_grad_enabled(graded):
                code = z[:rows].clone().requires_grad_(graded)
                images = self.space.vae.decode(code) if self.space is not None else code
                logits = self.subject(images).logits
                if graded:
                    torch.autograd.grad(logits.sum(), code)


def figures() -> Iterator[Figure]:
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    lenet = Subject(zoo.trained_classifier("lenet5", train, test)[0], name="lenet5")
    cnn = Subject(zoo.trained_classifier("sinvad-cnn", train, test)[0], name="sinvad-cnn")
    space = Latent(generators.trained_generator("vae", train, test)[0])
    ours = sinvad(space=space, partners=partners(space, train, device="cpu", limit=10_000))
    yield _share("sinvad", cnn, ours, space, seeds=512)
    yield _share("sinvad-lenet5", lenet, ours, space, seeds=512)
    yield _share("sinvad-paper", cnn, sinvad_code(space=space, generations=20), space)
    yield _share("pgd", lenet, pgd(epsilon=0.05), None, seeds=512)
    witnesses = default_witnesses(train, test)
    yield _share("natural", lenet, natural((1, 28, 28)), None, seeds=128, witnesses=witnesses)
    yield from start_up()
    yield memory()


def _share(
    name: str,
    subject: Subject,
    method: Method,
    space: Latent | None,
    seeds: int = 64,
    witnesses: Sequence[Subject] = (),
) -> Figure:
    images = data.load("mnist5k", split="test").sample(count=seeds, seed=0)
    shares = []
    composed = with_witnesses(method) if witnesses else method
    for _ in range(3):
        bare = Bare(subject, space)
        beside = tuple(Bare(one, None) for one in witnesses)
        campaign = Campaign(subject=bare, method=composed, witnesses=beside, batch=512)
        whole = seconds(lambda c=campaign: run_shard(c, images, limits(method.budget, len(images))))
        asked = [(one, one.codes(images)) for one in (bare, *beside)]
        alone = seconds(lambda some=asked: [one.replay(z) for one, z in some])
        shares.append(alone / whole)
    return Figure(
        name=f"campaign-model-share-{name}",
        value=statistics.median(shares),
        unit="of the campaign's time",
        against="the same calls of decoder, subject and witnesses, bare",
        command=COMMAND,
    )


def start_up() -> Iterator[Figure]:
    for name, command in {
        "start-help": ["-m", "hardcase", "--help"],
        "start-list-methods": ["-m", "hardcase", "list", "methods"],
        "start-import": ["-c", "import hardcase"],
    }.items():
        times = [
            seconds(
                lambda c=command: subprocess.run(
                    [sys.executable, *c], capture_output=True, check=True
                )
            )
            for _ in range(5)
        ]
        yield Figure(
            name=name,
            value=statistics.median(times),
            unit="s",
            against="a fresh process",
            command=COMMAND,
        )


def memory() -> Figure:
    """Peak memory of 1,000 seeds x population 50 x 100 generations, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "hardcase", "run", "--data", "mnist5k", "--model", "zoo:lenet5", "--method", "sinvad@code",
            "--images", "1000", "--set", "method.generations=100", "--progress", "none", "--out", str(Path(folder) / "run"),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return Figure(
        name="memory-sinvad-1000", value=peak, unit="GB", against="a limit of 4 GB", command=COMMAND
    )
