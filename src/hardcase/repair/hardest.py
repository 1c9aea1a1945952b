"""The worst of random conditions for each image: in any training loop, or as folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import make_folder
from hardcase.conditions import ConditionBox, Conditions, condition_box
from hardcase.conditions.box import ConditionDraws
from hardcase.errors import HardcaseError
from hardcase.models.subject import in_evaluation_mode
from hardcase.randomness import Rng, keys_of
from hardcase.runs.files import checked_json
from hardcase.searches.gradient import AdamAscent
from hardcase.suite.export import class_folders, refuse_occupied, table_text, whole_folder
from hardcase.tensors import chunks, encode_all, from_bytes, margin, to_bytes, to_grid
from hardcase.types import ClassNames, Feedback, Images, Model, Seeds, Targets

__all__ = [
    "WorstOfK",
    "climb",
    "conditions_of",
    "export_hardest",
    "hardest_rows",
    "render_draws",
    "seeds_at",
    "worst_rows",
]

STEP = 0.4
"""Size of a gradient step: few steps must cross the declared range."""
NUMBERS = 2**24
"""Numbers of the images that are rendered at once, at most, unless one image needs more."""

Logits = Callable[[Tensor], Tensor]
"""Images in [0, 1] to logits."""


class WorstOfK:
    """Replace part of a batch by the samples of declared conditions that the model likes least.

    For each of those images `draws` conditions are drawn and rendered at once, and the draw with
    the largest loss is returned. Gradients do not flow through it. The same seed and the same
    order of batches give the same images.

    Args:
        model: The network in training: images as the loop has them to logits.
        conditions: A profile, a ``.toml`` file, a table of ranges or `hc.Conditions`.
        draws: Draws per image; 1 is plain random augmentation.
        share: The part of each batch that is replaced, from its beginning; the rest stays.
        steps: Steps of gradient ascent from the worst draw, by the search of ``natural``.
        mean: Mean per channel by which the loop's images are normalised; 0 if they are not.
        std: Standard deviation per channel.
        seed: Everything random follows from it and from how many images came before.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        >>> hard = hc.WorstOfK(net, {"rotation": "±8 deg"}, draws=4)
        >>> x = torch.rand(8, 1, 28, 28)
        >>> changed = hard(x, torch.arange(8))
        >>> torch.equal(changed[4:], x[4:]), torch.equal(changed[:4], x[:4])
        (True, False)
    """

    def __init__(
        self,
        model: nn.Module,
        conditions: str | Mapping[str, Any] | Conditions,
        *,
        draws: int = 4,
        share: float = 0.5,
        steps: int = 0,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        seed: int = 0,
    ) -> None:
        if draws < 1 or not 0 < share <= 1 or steps < 0:
            raise HardcaseError(
                f"draws={draws}, share={share:g}, steps={steps} are not possible.",
                fix="draws=4, share=0.5, steps=0",
            )
        self.model = model
        self.conditions = conditions_of(conditions)
        self.draws = draws
        self.share = share
        self.steps = steps
        self.seed = seed
        self.seen = 0
        self._mean = torch.tensor(mean).reshape(1, -1, 1, 1)
        self._std = torch.tensor(std).reshape(1, -1, 1, 1)
        self._boxes = dict[tuple[int, ...], ConditionBox]()

    def __call__(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"]) -> Tensor:
        """Return the batch with its first part replaced by the hardest draws.

        Args:
            x: Images as the loop has them: in [0, 1], or normalised by `mean` and `std`.
            y: Their labels.
        """
        count = max(1, round(self.share * len(x)))
        mean = self._mean.to(x)
        std = self._std.to(x)
        keys = self.seen + torch.arange(count, device=x.device)
        self.seen += len(x)
        shape = tuple(x.shape[1:])
        if shape not in self._boxes:
            self._boxes[shape] = condition_box(self.conditions, shape)

        def logits(images: Tensor) -> Tensor:
            answer: Tensor = self.model((images - mean) / std)
            return answer

        with in_evaluation_mode(self.model), torch.no_grad():
            pixels = (x[:count].detach() * std + mean).float().clamp(0, 1)
            worst = hardest_rows(
                logits,
                self._boxes[shape],
                pixels,
                y[:count],
                keys,
                draws=self.draws,
                steps=self.steps,
                seed=self.seed,
            )
        return torch.cat([((worst.to(x.dtype) - mean) / std), x[count:]])

    def collate(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """A ``collate_fn`` for a `DataLoader` without worker processes: the batch with its worst
        samples.

        Args:
            rows: Pairs of an image and its label.
        """
        from torch.utils.data import default_collate, get_worker_info

        if get_worker_info() is not None:
            raise HardcaseError(
                "a worker process of a DataLoader has a copy of the model that learns nothing.",
                fix="DataLoader(..., num_workers=0), or x = hard(x, y) inside the loop",
            )
        x, y = default_collate(list(rows))
        place = next((weight.device for weight in self.model.parameters()), x.device)
        return self(x.to(place), y.to(place)), y.to(place)

    def state_dict(self) -> dict[str, int]:
        """Return what a checkpoint needs to go on with the same draws."""
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a `state_dict`."""
        self.seen = int(state["seen"])


def conditions_of(given: str | Mapping[str, Any] | Conditions) -> Conditions:
    """Return declared conditions in any of the forms that users have them in."""
    return given if isinstance(given, Conditions) else Conditions.load(given)


def render_draws(
    box: ConditionBox,
    x: Float[Tensor, "n c h w"],
    keys: Int[Tensor, " n"],
    count: int,
    *,
    seed: int,
    name: str = "hardest",
) -> tuple[Float[Tensor, "n k c h w"], ConditionDraws]:
    """Render `draws` random conditions of each image, all at once on the images' device.

    Returns the images, as many per original as were drawn, and what was drawn.
    """
    rows = torch.arange(len(x), device=x.device)
    drawn = box.draw(Rng(seed, name, keys.to(x.device)), rows, count)
    z = drawn.z.flatten(0, 1)
    of = rows.repeat_interleave(count)
    origin = seeds_at(x[of], of, z, drawn.pattern.flatten())
    with torch.no_grad():
        images = to_grid(box.decode(z, origin))
    return images.reshape(len(x), count, *x.shape[1:]), drawn


def worst_rows(
    logits: Logits, x: Float[Tensor, "n k c h w"], y: Int[Tensor, " n"]
) -> Int[Tensor, " n"]:
    """Return which of its variants costs each image most."""
    count = x.shape[1]
    if count == 1:
        return torch.zeros_like(y)
    loss = functional.cross_entropy(
        logits(x.flatten(0, 1)).float(), y.repeat_interleave(count), reduction="none"
    )
    return loss.reshape(len(x), count).argmax(1)


def hardest_rows(
    logits: Logits,
    box: ConditionBox,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    keys: Int[Tensor, " n"],
    *,
    draws: int,
    steps: int,
    seed: int,
) -> Float[Tensor, "n c h w"]:
    """Return the worst draw of each image, `steps` of gradient ascent further."""
    images, drawn = render_draws(box, x, keys, draws, seed=seed)
    rows = torch.arange(len(x), device=x.device)
    best = worst_rows(logits, images, y)
    if steps == 0:
        return images[rows, best]
    origin = seeds_at(x, y, drawn.z[rows, best], drawn.pattern[rows, best])
    z = climb(logits, box, origin, steps=steps)
    return to_grid(box.decode(z, origin))


def seeds_at(x: Tensor, y: Tensor, z: Tensor, pattern: Tensor) -> Seeds:
    """Return images with the codes and patterns from which a search starts."""
    rows = torch.arange(len(x), device=x.device)
    return Seeds(z, x, y, rows, {"pattern": pattern})


def climb(
    logits: Logits, box: ConditionBox, origin: Seeds, *, steps: int, step_size: float = STEP
) -> Float[Tensor, "n d"]:
    """Return codes by the gradient search of ``natural``: each row climbs until it fails."""
    evaluate = _BatchEvaluator(logits, box, origin)
    search = AdamAscent(step_size=step_size)
    rng = Rng.numbered(0, "climb", len(origin), device=origin.x.device)  # it draws nothing
    state = search.init(origin, rng)
    for _ in range(steps):
        if not bool(state["high"].isinf().any()):  # all rows fail
            break
        state = search.step(state, evaluate, rng)
    return box.project(state["z"], origin)


class _BatchEvaluator:
    """What a gradient search asks about the batch of a training step."""

    def __init__(self, logits: Logits, box: ConditionBox, origin: Seeds) -> None:
        self.logits = logits
        self.box = box
        self.origin = origin

    @property
    def live(self) -> Bool[Tensor, " n"]:
        return torch.ones_like(self.origin.y, dtype=torch.bool)

    def __call__(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> Feedback:
        return self.gradient(z, rows)[0]

    def gradient(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> tuple[Feedback, Tensor]:
        origin = self.origin.take(rows)
        with torch.enable_grad():
            code = self.box.project(z.detach(), origin).requires_grad_()
            lead = margin(self.logits(to_grid(self.box.decode(code, origin))), origin.y)
            (gradient,) = torch.autograd.grad(lead.sum(), code)
        lead = lead.detach()
        failed = ~(lead <= 0)  # answers that are no numbers fail, and lead nowhere
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        none = torch.zeros_like(lead)
        evaluated = torch.ones_like(failed)
        return Feedback(code.detach(), lead, failed, origin.y, none, evaluated), gradient

    def choose(self, rows: Int[Tensor, " m"], following: Targets | None = None) -> Targets:
        return {}  # no guide steers a training batch

    def surrogates(self, z: Tensor, rows: Int[Tensor, " r"]) -> tuple[Tensor, Tensor]:
        return z.new_zeros(len(z), 0), z.new_zeros(len(z), 0, z.shape[1])

    def retire(self, rows: Int[Tensor, " r"]) -> None:
        """Every row of a batch takes the same number of steps."""


# Folders, for those who train with another program.


def export_hardest(
    model: Model,
    images: Images,
    conditions: Conditions,
    out: Path,
    *,
    draws: int = 4,
    seed: int = 0,
) -> Path:
    """Write the draw of declared conditions that a model likes least, for each image.

    The folder holds a folder for each class, ``metadata.csv`` with what was done to each image,
    and ``card.json``. Draws follow from the original and the names of the images.
    """
    if model.offers == "label":
        raise HardcaseError(
            f"model {model.name} tells labels alone: no draw is harder than another.",
            fix="a model that offers scores",
        )
    refuse_occupied(out)
    folders = class_folders(images.classes)
    card = {
        "schema": 1,
        "kind": "hardest",
        "model": {"name": model.name, "hash": model.hash},
        "data": {"name": images.name, "split": images.split, "hash": images.hash},
        "conditions": conditions.to_record(),
        "draws": draws,
        "seed": seed,
        "images": len(images),
    }

    def fill(folder: Path) -> None:
        for name in folders:
            make_folder(folder / name)
        rows = list[dict[str, Any]]()
        for row, data in _worst_draws(model, images, conditions, draws, seed):
            row["file_name"] = f"{folders[row['expected']]}/{len(rows):06d}.png"
            (folder / row["file_name"]).write_bytes(data)
            rows.append(row)
        text = table_text(rows, ClassNames(images.classes))
        (folder / "metadata.csv").write_text(text, encoding="utf-8", newline="")
        (folder / "card.json").write_bytes(checked_json(card))

    return whole_folder(out, fill)


@torch.no_grad()
def _worst_draws(
    model: Model, images: Images, conditions: Conditions, draws: int, seed: int
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The figures of the worst draw of each image, and the draw as a PNG."""
    box = condition_box(conditions, images.shape)
    batch = max(1, NUMBERS // (draws * images.x[:1].numel()))
    for part in chunks(len(images), min(batch, 128)):
        x = from_bytes(images.x[part].to(model.device))
        y = images.y[part].to(model.device)
        made, drawn = render_draws(box, x, keys_of(images.id[part]), draws, seed=seed)
        rows = torch.arange(len(x), device=x.device)
        best = worst_rows(lambda x: model(x).logits, made, y)
        hard = made[rows, best]
        logits = model(hard).logits
        sure = logits.softmax(1).amax(1).tolist()
        words = box.words(drawn.z[rows, best])
        answers = zip(
            images.id[part], y.tolist(), logits.argmax(1).tolist(), sure, words, strict=True
        )
        for facts, data in zip(answers, encode_all(to_bytes(hard).cpu()), strict=True):
            names = ("id", "expected", "predicted", "confidence", "changed")
            yield dict(zip(names, facts, strict=True)), data
