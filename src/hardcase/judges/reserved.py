"""A judge for which nothing has to be made: a pretrained network that took no part in the search.

It reads photographs of ImageNet's kind as it is, so a run is judged in seconds. A panel of features
(`hardcase.judges.photographs`) knows more, and needs photographs that are no seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from hardcase import registry
from hardcase.data.streams import ImageSet
from hardcase.errors import Problem
from hardcase.judges.features import Encoder, encoder
from hardcase.models.load import Loading, lineage_of, load_model, network
from hardcase.models.names import map_between
from hardcase.models.pretrained.catalogue import PRETRAINED
from hardcase.tensors import from_bytes, tile_rows
from hardcase.types import Findings, Images, Verdicts

__all__ = ["ReservedJudge", "encoder_of", "head_of", "reserved_judge"]

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
        """Return the verdicts on findings; `Findings.seed` is the row of a seed."""
        read = _read(self.encoder, self.outputs, findings.x)
        expected = findings.expected.cpu()
        first = read.logits.argmax(1)
        top = read.logits.topk(min(TOP, read.logits.shape[1]), 1).indices
        lost = ~(top == expected[:, None]).any(1) & self.read[findings.seed.cpu()]
        answers = torch.where(first == expected, 1, torch.where(lost, 0, 2))
        probability = read.logits.softmax(1).gather(1, expected[:, None]).squeeze(1)
        return Verdicts(
            [usual or None for usual in (read.strength >= self.usual).tolist()],
            [(False, True, None)[answer] for answer in answers.tolist()],
            {"seen": first.tolist(), "p_label_kept": probability.tolist()},
            functional.normalize(read.features, dim=1),
        )

    def about(self) -> dict[str, Any]:
        """Return what run.json and the report say of it."""
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
            "lineages": list(filter(None, [self.encoder.lineage])),
        }


@registry.judge(
    "reserved",
    needs="a pretrained network of another lineage that knows the classes",
    paper="ours",
    laws=("took no part in the search", "never used in a search"),
)
def reserved_judge(net: Encoder, seeds: ImageSet) -> ReservedJudge:
    """Return the judge that a pretrained network is, as it is, for a run from these seeds.

    Args:
        net: A network that took no part in the search.
        seeds: The photographs that the run started from.

    Raises:
        Problem: If its outputs cannot be mapped to the run's classes.
    """
    outputs = head_of(net, seeds)
    if outputs is None:
        raise Problem(
            f"{net.spec} does not know the classes of these photographs,"
            " and there are too few beside the seeds to teach it.",
            fix="more photographs beside the seeds: a folder train/ and a folder test/",
        )
    outputs = outputs.to(net.subject.device)
    parts = [_read(net, outputs, part.x) for part in seeds.shards(AT_ONCE)]
    usual = float(torch.cat([part.strength for part in parts]).quantile(USUAL))
    rightly = torch.cat([part.logits.argmax(1) for part in parts]) == seeds.y
    return ReservedJudge(net, outputs, rightly, usual, seeds.hash)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Log-probabilities of the run's classes, how strongly images excite the network, and its
    deepest features.
    """

    logits: Float[Tensor, "m k"]
    strength: Float[Tensor, " m"]
    features: Float[Tensor, "m f"]


def _read(net: Encoder, outputs: Int[Tensor, " k"], x: UInt8[Tensor, "m c h w"]) -> _Reading:
    images = from_bytes(x.to(net.subject.device))
    batch = max(32, tile_rows(images.device))
    seen = [net.ask(images, view=view, batch=batch) for view in VIEWS]
    logits = torch.stack([each.logits[:, outputs].log_softmax(1) for each in seen])
    strength = torch.stack([each.logits.logsumexp(1) for each in seen])
    deepest = seen[0].features[net.layers[-1]]
    return _Reading(logits.logsumexp(0).cpu(), strength.mean(0).cpu(), deepest.cpu())


def encoder_of(
    spec: str,
    train: Images,
    test: Images,
    *,
    device: torch.device | str = "cpu",
    offline: bool = False,
) -> Encoder:
    """Load the network that `spec` names as an encoder of images like these."""
    how = Loading(train=train, test=test, device=str(device), offline=offline)
    subject = network(load_model(spec, how))
    known = PRETRAINED.get(spec.removeprefix("zoo:"))
    size = 0
    if known is not None and test.x.shape[2] < known.size / 2:
        size = known.size
    example = from_bytes(test.x[:1].to(subject.device))
    return encoder(subject, example, lineage=lineage_of(spec), spec=spec, size=size)


def head_of(each: Encoder, train: ImageSet) -> Int[Tensor, " k"] | None:
    """Return the output of an encoder that means each class, if it has one for all of them."""
    names = each.subject.class_names
    try:
        found = map_between(train.classes, names)
    except Problem:
        return None
    if not names:
        return None
    if found is None:
        return torch.arange(len(train.classes))
    return torch.tensor(found.outputs)
