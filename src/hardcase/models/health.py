"""Does a model answer sensibly on these images?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, process_time

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hardcase.campaign.claims import CLAIMED, Claims, asking
from hardcase.data.files import ImageSet
from hardcase.data.sources import check_labels
from hardcase.errors import HardcaseError, Raised, first_line, guarded
from hardcase.models.mistakes import (
    CLEARLY,
    FINE,
    Mistake,
    diagnosis_of,
    may_be_guessing,
    odd_outputs,
    reordered,
)
from hardcase.models.subject import is_softmax
from hardcase.tensors import TILE, chunks, from_bytes, margin, tile_rows
from hardcase.types import Answer, Images, Method, Model, is_photographic

DOUBTFUL = 0.6
"""Share right below which the usual mistakes are tried, if that is quick."""
FEW_CLAIMS = 0.1
"""Share of claims that a network must make of unmodified images."""
SOME = 16
"""Images that say how long that takes, and ..."""
ROUNDS = 60
"""... about the number of calls."""
ASKINGS = 2.5
"""How often `check` asks about an image, those that it asks about alone included."""
PATIENCE = 20.0
"""Seconds that this may take."""
MIXED = 0.01
"""Share of the spread of the logits by which an answer may depend on the other images of a call;
rounding alone changes far less in float32."""
SATURATED = 88.0
"""Lead of the best logit above which all other probabilities are 0 in float32."""
NEARLY_EQUAL = 4e-4
"""A lead of the best logit which is about the margin in probability that a stored failure needs."""
TIED = 0.02
"""Share of images with tied best classes above which the tie is reported."""
ROUNDED = 256
"""Different numbers among all logits up to which they are rounded, as those of 8-bit networks are.
"""


@dataclass(frozen=True, slots=True)
class Health:
    """The result of `check`; `notes` are worth a user's eye but stop nothing.

    Args:
        accuracy: Share of images that are correctly classified.
        images: How many images the model classified.
        outputs: Outputs of the network.
        classes: Classes of the data.
        confidence: Mean probability of the answers.
        bitwise: Whether answers are the same bits in any batch.
        notes: What else a user should know.
    """

    accuracy: float
    images: int
    outputs: int
    classes: int
    confidence: float
    bitwise: bool
    notes: tuple[str, ...]

    def __str__(self) -> str:
        depend = {True: "do not depend on the batch", False: "depend on the batch in the last bits"}
        lines = [
            f"accuracy {100 * self.accuracy:.1f} % on {self.images} images, mean confidence"
            f" {self.confidence:.2f}",
            f"{self.outputs} outputs, data has {self.classes} classes",
            f"answers {depend[self.bitwise]}",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def answers(subject: Model, images: Images, batch: int = 0) -> Float[Tensor, "n k"]:
    """The model's logits on all images; where memory runs out, in smaller batches."""
    tile = tile_rows(subject.device)
    batch = batch or _usual(subject, images)
    claims = None
    if CLAIMED in images.context:
        claims = Claims.of(images, subject.device)
    parts = list[Tensor]()
    try:
        with torch.inference_mode():
            for rows in chunks(len(images), batch):
                x = from_bytes(images.x[rows].to(subject.device))
                ask: Callable[..., Answer] = subject
                if claims is not None:
                    ask = asking(subject, claims.take(rows))
                parts.append(ask(x).logits.cpu())
            return torch.cat(parts).clone()
    except (torch.OutOfMemoryError, MemoryError):
        if batch <= tile:
            raise
    return answers(subject, images, max(tile, batch // 2))


def _usual(subject: Model, images: Images) -> int:
    """Default rows per call."""
    fit = min(256, 2**22 // max(images.x[:1].numel(), 1) // TILE * TILE)
    return max(tile_rows(subject.device), fit)


def affordable(subject: Model, images: ImageSet, seconds: float) -> int:
    """How many images `check` can ask about in so many seconds of processor time."""
    began = process_time()
    answers(subject, images.take(torch.arange(min(len(images), SOME))).images())
    each = (process_time() - began) / SOME
    return max(SOME, min(512, int(seconds / max(each, 1e-6) / ASKINGS)))


def usable(subject: Model, images: Images) -> Images:
    """The images that `subject` classifies correctly."""
    return images.take((answers(subject, images).argmax(1).cpu() == images.y).nonzero().squeeze(1))


@torch.no_grad()
def probabilities(model: Model, x: UInt8[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
    """What `model` says of 8-bit images, in calls of bounded size."""
    parts = [
        model(from_bytes(x[rows].to(model.device))).logits.softmax(1).cpu()
        for rows in chunks(len(x), 256)
    ]
    return torch.cat(parts)


def check(
    subject: Model, images: ImageSet, *, allow_low_accuracy: bool = False, sample: int = 512
) -> Health:
    """Return the health of a model on up to `sample` images, or raise what is to be fixed."""
    if not len(images):
        raise HardcaseError(
            "there are no images to check the model with.", fix="another --data or --split"
        )
    rows = torch.linspace(0, len(images) - 1, min(sample, len(images))).long()
    sampled = images.take(rows).images()
    logits = first_answers(subject, sampled)
    check_labels(sampled, sampled.name)
    _refuse_senseless(subject, sampled, logits)
    accuracy = (logits.argmax(1) == sampled.y).float().mean().item()
    notes = list[str]()
    doubts = list[str]()
    if CLAIMED in sampled.context:
        if not allow_low_accuracy:
            _enough_claims(len(sampled), accuracy)
    else:
        notes = _notes(subject, logits, sampled)
        if not allow_low_accuracy:
            _require_better_than_chance(subject, logits, sampled, accuracy)
            if accuracy < DOUBTFUL:
                doubts = _suspicion(subject, sampled, accuracy)
        if accuracy < 1 - 2 * CLEARLY and not doubts:  # above it no other order is clearly better
            order = reordered(logits, sampled)
            doubts = [str(order)] if order else []
    return Health(
        accuracy=accuracy,
        images=len(sampled),
        outputs=logits.shape[1],
        classes=len(sampled.classes),
        confidence=logits.softmax(1).amax(1).mean().item(),
        bitwise=_batch_independent(subject, sampled, logits),
        notes=(*notes, *doubts),
    )


def first_answers(subject: Model, images: Images) -> Float[Tensor, "n k"]:
    """The model's logits; where it crashes, a problem that says why."""
    try:
        return answers(subject, images)
    except HardcaseError as problem:
        cause = problem.__cause__
        if not isinstance(problem, Raised) or not isinstance(cause, Exception):
            raise  # a problem of its own, or it called sys.exit or the like
        raise _unfit(subject, images, cause) from problem
    except Exception as error:
        raise _unfit(subject, images, error) from error


def _unfit(subject: Model, images: Images, error: Exception) -> HardcaseError:
    if re.search(r"alloc|memory|create a primitive", first_line(error)):
        fix = "more memory (ulimit -v), or a smaller model"
        return HardcaseError(f"memory ran out while the model was asked: {error}", fix=fix)
    why = "Most often the image size or the number of channels differs from what it was built for."
    fix = "data of the model's own size, or a factory that resizes"
    cause = _cause(subject, images)
    if cause:
        why, fix = f"Here {cause.sentence}.", cause.fix
    shape = " x ".join(map(str, images.x.shape[1:]))
    raised = first_line(error)[:200]
    what = f"the model crashes on an image of {shape} from {images.name}"
    return HardcaseError(f"{what} ({type(error).__name__}: {raised}).", why, fix=fix)


def _cause(subject: Model, images: Images, logits: Tensor | None = None) -> Mistake | None:
    """The mistake that explains why a model fails, or misreads what it answers `logits` to."""
    diagnosis = diagnosis_of(subject, images)
    named = [
        mistake for mistake in (diagnosis.mistakes if diagnosis else ()) if mistake.name != "fails"
    ]
    order = None if logits is None else reordered(logits, images)
    if named and (order is None or (named[-1].accuracy or 0.0) >= FINE):
        return named[-1]
    return order


def _refuse_senseless(subject: Model, images: Images, logits: Tensor) -> None:
    """Raise for answers that nothing can be searched on."""
    if logits.shape[1] < len(images.classes):
        why = ["Images of the missing classes could never be correctly classified."]
        fix = "the data the model was trained for"
        cause = _cause(subject, images)
        if cause:
            why.append(f"Here {cause.sentence}.")
            fix = cause.fix
        what = f"the model has {logits.shape[1]} outputs, but {images.name} has"
        raise HardcaseError(f"{what} {len(images.classes)} classes.", *why, fix=fix)
    if not bool(logits.isfinite().all(1).any()):
        raise HardcaseError(
            f"the model answers NaN or infinity on all of the {len(logits)} images it was asked"
            " about.",
            fix="look at the weights, and at mean and std: --set model.mean=... model.std=...",
        )
    rows = min(_usual(subject, images), len(images))  # as they were asked before: one call
    again = answers(subject, images.take(torch.arange(rows)))
    if not torch.equal(again.nan_to_num(), logits[:rows].nan_to_num()):
        worst = (again - logits[:rows]).abs().max().item()
        raise HardcaseError(
            "the model changes its answer: the same images gave logits that differ by up to"
            f" {worst:.2g}.",
            "A failure could not be repeated. Most often dropout or noise is active in evaluation"
            " mode.",
            fix="remove the randomness from the model's forward pass",
        )


def _enough_claims(count: int, share: float) -> None:
    if share < FEW_CLAIMS:
        raise HardcaseError(
            f"the model makes {100 * share:.1f} % of {count} claims about unmodified images.",
            "Most often normalisation is missing, classes have other names or boxes another form.",
            fix="hardcase doctor ...; continue anyway: --allow-low-accuracy",
        )


def _require_better_than_chance(
    subject: Model, logits: Tensor, images: Images, accuracy: float
) -> None:
    """Raise for a model that guesses, that predicts a constant class, or that is often wrong for an
    identified reason."""
    classes = len(images.classes)
    right = round(accuracy * len(images))
    predicted = logits.argmax(1)
    present = len(set(images.y.tolist()))
    constant = present > 1 and len(set(predicted.tolist())) == 1
    if (present == 1 and right) or (accuracy > 2 / classes and not constant):
        return
    guesses = may_be_guessing(right, len(images), classes)
    if classes == 2 and not (guesses or constant):  # nobody gets more than twice the chance
        return
    cause = _cause(subject, images, logits)
    if not (guesses or constant) and (cause is None or cause.name == "no weights"):
        return  # it is weak, and nothing says why
    if present == 1:
        raise _one_class(logits, images)
    said = ""
    share = predicted.bincount().max().item() / len(images)
    if share > 0.9:
        said = f" It answers class {int(predicted.mode().values)} for {100 * share:.0f} % of them."
    low, high = (images.x.min().item() / 255, images.x.max().item() / 255)
    ranges = f"inputs {low:.2f}..{high:.2f}, {logits.shape[1]} outputs, data has {classes} classes."
    why = "None of the usual mistakes explains it: it may be weak on these images."
    fix = "--set model.mean=... model.std=..."
    if cause:
        why, fix = f"Here {cause.sentence}.", cause.fix
    raise _chance(accuracy, images, f"{ranges}{said}", why, fix)


def _one_class(logits: Tensor, images: Images) -> HardcaseError:
    label = int(images.y[0])
    outputs = logits.shape[1]
    why = f"All images are of one class, {images.classes[label]!r}, which is taken for output"
    fix = "folders of the other classes too, or --set model.classes=NAME,NAME,..."
    return _chance(0.0, images, f"{outputs} outputs.", f"{why} {label} of {outputs}.", fix, outputs)


def _chance(
    accuracy: float, images: Images, ranges: str, why: str, fix: str, classes: int = 0
) -> HardcaseError:
    chance = 100 / (classes or len(images.classes))
    return HardcaseError(
        f"accuracy {100 * accuracy:.1f} % (n = {len(images):,}); chance is {chance:.0f} %.",
        f"Most often normalisation is missing or the class order differs. Seen: {ranges}",
        why,
        fix=f"{fix}      continue anyway: --allow-low-accuracy",
    )


def _batch_independent(subject: Model, images: Images, logits: Tensor) -> bool:
    """Whether rows alone, or in an odd batch, get the bits of the full batch; raise if their
    answers differ by more than rounding.
    """
    # a row alone is padded to a tile, which takes its time where images are large
    every = len(images) if is_photographic(images.shape) else max(1, len(images) // 4)
    alone = torch.cat(
        [answers(subject, images.take(torch.tensor([i]))) for i in range(0, len(images), every)]
    )
    odd = answers(subject, images, batch=37)
    differences = [alone - logits[::every], odd - logits]
    largest = max(difference.abs().nan_to_num(0.0).amax().item() for difference in differences)
    spread = logits[logits.isfinite()].std().item()
    if largest > max(MIXED, 8 * _rounding(subject)) * spread:
        raise HardcaseError(
            "the model's answer to an image depends on the other images of a call: the same image"
            f" gave logits that differ by up to {largest:.2g}.",
            "No answer of it can be repeated. Most often a BatchNorm uses the statistics of the"
            " batch (track_running_stats=False).",
            fix="BatchNorm with running statistics, in evaluation mode",
        )
    return torch.equal(alone, logits[::every]) and torch.equal(odd, logits)


def _rounding(subject: Model) -> float:
    """The step between 1 and the next number, in the number type of a network's weights."""
    weights = subject.parameters() if isinstance(subject, torch.nn.Module) else ()
    kinds = (each.dtype for each in weights if each.is_floating_point())
    return torch.finfo(next(kinds, torch.float32)).eps


def require_gradients(subject: Model, images: ImageSet, method: Method) -> None:
    """Look once at the gradients of a network that a method climbs.

    Args:
        subject: The network.
        images: The images that a search would start from; a sample of them is checked.
        method: The method.

    Raises:
        HardcaseError: If the gradients are missing, or zero on every image: a search by them would
            fail almost everywhere, and that would not be the network's merit.
    """
    if method.needs != "gradients" or method.closed or subject.offers != "gradients":
        return
    rows = torch.linspace(0, len(images) - 1, min(SOME, len(images))).long()
    sampled = images.take(rows).images()
    ask: Callable[..., Answer] = subject
    if CLAIMED in sampled.context:
        ask = asking(subject, Claims.of(sampled, subject.device))
    with torch.inference_mode():  # as a model is asked where no gradient is wanted
        plain = ask(from_bytes(sampled.x.to(subject.device))).logits
    with torch.enable_grad():
        x = from_bytes(sampled.x.to(subject.device)).requires_grad_()
        logits = ask(x).logits
        _require_same_with_gradients(subject, plain, logits.detach())
        gradient = None
        if logits.requires_grad:
            lead = margin(logits, sampled.y.to(subject.device))
            with guarded(f"the backward pass of model {subject.name}"):
                (gradient,) = torch.autograd.grad(lead.sum(), x, allow_unused=True)
    fix = "--method natural-blackbox, or a forward that torch can differentiate"
    if gradient is None:
        raise HardcaseError(
            f"model {subject.name} gives no gradient of its logits by the image, and method"
            f" {method.name} needs one.",
            "Most often forward runs under torch.no_grad() or inference_mode(), or detaches.",
            fix=fix,
        )
    if not bool((gradient.nan_to_num(0, 0, 0) != 0).any()):
        raise HardcaseError(
            f"the gradient of model {subject.name} is zero on all of {len(sampled)} images, and"
            f" method {method.name} climbs it.",
            "Most often outputs are rounded, or a hook or a layer takes the gradient away.",
            fix=fix,
        )


def _require_same_with_gradients(subject: Model, plain: Tensor, logits: Tensor) -> None:
    """Refuse a network that says something else as soon as its gradient is wanted."""
    spread = plain[plain.isfinite()].std().nan_to_num(0.0).item()
    largest = (plain - logits).abs().nan_to_num(0.0).amax().item()
    if largest > max(MIXED, 8 * _rounding(subject)) * spread:
        raise HardcaseError(
            f"model {subject.name} answers the same images differently when its gradient is asked"
            f" for: logits differ by up to {largest:.2g}.",
            "What a search finds by gradients would be no failure of the model as it is used.",
            fix="a forward that does not look at requires_grad or torch.is_grad_enabled()",
        )


def _notes(subject: Model, logits: Tensor, images: Images) -> list[str]:
    notes = []
    if getattr(subject, "outputs", "") == "probabilities" or is_softmax(logits):
        notes.append("the model returns probabilities; their logarithm is used as logits")
    elif logits.min() >= 0 and logits.max() <= 1:
        odd = odd_outputs(logits, images)
        notes += [str(mistake) for mistake in odd if mistake.name in ("several labels", "sigmoid")]
    if logits.shape[1] > len(images.classes):
        notes.append(
            f"the model has {logits.shape[1] - len(images.classes)} outputs more than the data has"
            " classes"
        )
    bad = int((~logits.isfinite()).any(1).sum())
    if bad:
        notes.append(
            f"NaN or infinity on {bad} of {len(images)} images; they are left out as originals"
        )
    if len(set(images.y.tolist())) == 1:
        notes.append("all images show one class")
    return [*notes, *_coarse(subject, logits)]


def _coarse(subject: Model, logits: Tensor) -> list[str]:
    """What a search should know of outputs that say less than logits usually do."""
    best = logits.nan_to_num(0.0).topk(min(2, logits.shape[1]), 1).values
    lead = best[:, 0] - best[:, -1]
    if subject.offers == "label" or logits.shape[1] < 2:
        return []
    notes = []
    if lead.median() > SATURATED:
        notes.append(
            f"the outputs are saturated: the best logit leads by {lead.median():.3g} in the median,"
            " so probabilities are 0 or 1 and searches by gradients find little"
        )
    elif lead.median() < NEARLY_EQUAL:
        notes.append(
            f"the outputs are nearly equal: the best logit leads by {lead.median():.3g} in the"
            " median, so hardly any failure that a search finds has the margin to be stored"
        )
    values = len(logits.unique())  # type: ignore[no-untyped-call]  # torch does not say
    if values <= min(ROUNDED, logits.numel() / 8):
        notes.append(
            f"the outputs are rounded: {logits.numel():,} of them take {values} different values,"
            " so searches by scores or gradients find little"
        )
    tied = int((lead == 0).sum())
    if tied > TIED * len(logits):
        notes.append(f"the two best classes tie on {tied} of {len(logits)} images")
    return notes


def _suspicion(subject: Model, images: Images, accuracy: float) -> list[str]:
    """What may be wrong with a model that is often wrong."""
    weak = f"accuracy is only {100 * accuracy:.0f} %"
    began = monotonic()
    answers(subject, images.take(torch.arange(min(SOME, len(images)))))
    if (monotonic() - began) * ROUNDS > PATIENCE:
        return [f"{weak}; hardcase doctor tries what may be wrong"]
    cause = _cause(subject, images)
    if cause:
        return [f"{weak}. Here {cause}"]
    counts = images.y.bincount()
    largest = f"{images.classes[int(counts.argmax())]!r} of every image"
    share = 100 * counts.max().item() / len(images)
    chance = 100 / len(images.classes)
    return [f"{weak}; chance is {chance:.0f} %, saying {largest} gets {share:.0f} %"]
