"""A judge for which nothing has to be made: a pretrained network that took no part in the search.

It reads photographs of ImageNet's kind as it is, so a run is judged in seconds. A panel of features
(`hardcase.judges.photographs`) knows more, and needs photographs that are no seeds to learn from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from hardcase.data.streams import ImageSet
from hardcase.errors import Problem
from hardcase.judges.encoders import Encoder
from hardcase.judges.photographs import head_of
from hardcase.tensors import from_bytes, tile_rows
from hardcase.types import Findings, Verdicts

NAME = "reserved network"
VIEWS = ("plain", "flipped")
TOP = 5
"""A label that is not among so many first answers is lost."""
USUAL = 0.05
"""Share of real photographs that excite the network less than what counts as valid."""
AT_ONCE = 256
"""Seeds that are in memory at once."""


@dataclass(frozen=True, eq=False)
class ReservedJudge:
    """One network of another lineage than any that the search has used.

    The label is kept where the network's first answer, over an image and its mirror image, is the
    label; it is lost where the label is not among its first five although it has read the seed
    rightly; it is undecided between. An image is valid if it excites the network (log-sum-exp of
    its scores) as much as 95 of 100 of the run's own seeds do; else that is undecided.

    Args:
        encoder: The network.
        outputs: Which of its outputs means each class of the run.
        read: Which of the run's seeds it reads rightly.
        usual: How strongly a valid image excites it.
        data: Hash of the seeds.
    """

    encoder: Encoder
    outputs: Int[Tensor, " k"] = field(repr=False)
    read: Bool[Tensor, " n"] = field(repr=False)
    usual: float
    data: str

    def __call__(self, findings: Findings) -> Verdicts:
        """What it says of findings; `Findings.seed` is the row of a seed."""
        said = _look(self.encoder, self.outputs, findings.x)
        expected = findings.expected.cpu()
        first = said.logits.argmax(1)
        top = said.logits.topk(min(TOP, said.logits.shape[1]), 1).indices
        lost = ~(top == expected[:, None]).any(1) & self.read[findings.seed.cpu()]
        answers = torch.where(lost, 0, 2)
        answers = torch.where(first == expected, 1, answers)
        own = said.logits.softmax(1).gather(1, expected[:, None]).squeeze(1)
        return Verdicts(
            [True if usual else None for usual in (said.strength >= self.usual).tolist()],
            [(False, True, None)[answer] for answer in answers.tolist()],
            {"seen": first.tolist(), "p_label_kept": own.tolist()},
            functional.normalize(said.features, dim=1),
        )

    def about(self) -> dict[str, Any]:
        """What run.json and the report say of it."""
        share = float(self.read.double().mean())
        count = len(self.read)
        return {
            "name": NAME,
            "weights": self.encoder.hash,
            "data": self.data,
            "accuracy": share,
            "measured_images": count,
            "members": {"encoder 1": self.encoder.hash},
            "calibrated": False,
            "standing": f"uncalibrated, reads {share:.1%} of {count} real images rightly:"
            f" {self.encoder.spec} took no part in the search and its first answer counts;"
            " no person has rated images of this data",
            "encoders": [self.encoder.spec],
            "lineages": [self.encoder.lineage] if self.encoder.lineage else [],
        }


def reserved_judge(encoder: Encoder, seeds: ImageSet) -> ReservedJudge:
    """The judge that this network is for a run from these seeds.

    Args:
        encoder: A network that took no part in the search.
        seeds: The photographs that the run started from.

    Raises:
        Problem: If its outputs cannot be mapped to the run's classes.
    """
    outputs = head_of(encoder, seeds)
    if outputs is None:
        raise Problem(
            f"{encoder.spec} does not know the classes of these photographs,"
            " and there are too few beside the seeds to teach it.",
            fix="more photographs beside the seeds: a folder train/ and a folder test/",
        )
    outputs = outputs.to(encoder.subject.device)
    said = [_look(encoder, outputs, part.x) for part in seeds.shards(AT_ONCE)]
    usual = float(torch.cat([part.strength for part in said]).quantile(USUAL))
    read = torch.cat([part.logits.argmax(1) for part in said]) == seeds.y
    return ReservedJudge(encoder, outputs, read, usual, seeds.hash)


@dataclass(frozen=True, slots=True)
class _Look:
    """Log-probabilities of the run's classes, how strongly images excite the network, and its
    deepest features.
    """

    logits: Float[Tensor, "m k"]
    strength: Float[Tensor, " m"]
    features: Float[Tensor, "m f"]


def _look(encoder: Encoder, outputs: Int[Tensor, " k"], x: UInt8[Tensor, "m c h w"]) -> _Look:
    images = from_bytes(x.to(encoder.subject.device))
    batch = max(32, tile_rows(images.device))
    seen = [encoder.ask(images, view=view, batch=batch) for view in VIEWS]
    logits = torch.stack([one.logits[:, outputs].log_softmax(1) for one in seen])
    strength = torch.stack([one.logits.logsumexp(1) for one in seen])
    deepest = seen[0].features[encoder.layers[-1]]
    return _Look(logits.logsumexp(0).cpu(), strength.mean(0).cpu(), deepest.cpu())
