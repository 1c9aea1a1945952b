"""The records that travel through a run, and the protocols of the parts that handle them.

Axes: `n` originals, `m` candidates, `k` classes, `t` failures. Images are float32 NCHW in [0, 1].
Scores: higher is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, SupportsIndex, overload, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, balanced_order

__all__ = [
    *("KINDS", "OFFERS", "Answer", "Budget", "ClassNames", "Criterion", "Encoded", "Evaluator"),
    *("Feedback", "Findings", "Following", "Guide", "Images", "Judge", "Kind", "Method", "Model"),
    *("Objective", "Offer", "Oracle", "ImagePairs", "Probe", "Scores", "Search", "Seeds", "Space"),
    *("State", "Tap", "Targets", "VERDICT_WORDS", "WAYS", "Verdicts", "is_photographic"),
]

Encoded = tuple[Tensor, Mapping[str, Tensor]]
"""Codes, and the tensors that a space needs per image besides its code (`Seeds.context`)."""

Scores = Float[Tensor, " m"]
"""A number for each candidate."""

State = dict[str, Tensor]
"""What a search remembers between steps: plain tensors, so that it can be saved and loaded at any
step.
"""

Targets = Mapping[str, Tensor]
"""What guides ask a candidate to do (which units to push, which way): row-aligned tensors by name.
"""

Tap = Callable[[Tensor], Tensor]
"""What to keep of a layer's output, applied while the layer runs (it must not return its argument).
"""

Offer = Literal["label", "scores", "activations", "gradients"]
OFFERS: tuple[Offer, ...] = ("label", "scores", "activations", "gradients")
"""What a model can answer, from least to most; a method needs one of these levels."""

Kind = Literal["label", "disagreement", "non_finite", "surprise"]
KINDS: tuple[Kind, ...] = ("label", "disagreement", "non_finite", "surprise")
"""What a failure shows. Only "label" failures (the model leaves its original's label) enter the
funnel.
"""


WAYS = ("lost", "mislocated", "false alarm")
"""What a network that no longer makes a claim says instead, where it says no other class; stored as
-1, -2 and -3.
"""


class ClassNames(tuple[str, ...]):
    """The names of the data's classes, by number; any other output of a network is named by its
    number, and a way to lose a claim by its word.

    A network may have more outputs than the data has classes (an ImageNet network on a folder of
    three), so every predicted label is named through this type. A negative number never names the
    last class. Length and iteration are those of the data's classes.

    Example:
        >>> names = ClassNames(["cat", "dog"])
        >>> names[1], names[17], names[-1], len(names)
        ('dog', 'class 17', 'lost', 2)
    """

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[str, ...]: ...
    def __getitem__(self, key: SupportsIndex | slice) -> str | tuple[str, ...]:
        if isinstance(key, slice):
            return super().__getitem__(key)
        number = key.__index__()
        if 0 <= number < len(self):
            return super().__getitem__(number)
        return WAYS[-1 - number] if -len(WAYS) <= number < 0 else f"class {number}"

    def pair(self, expected: int, predicted: int) -> str:
        """``cat → dog``."""
        return f"{self[expected]} → {self[predicted]}"


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise HardcaseError(
            f"{name} is {value}; at least 1 image is needed.", fix=f"{name}=1 or more"
        )
    return value


@dataclass(frozen=True, slots=True)
class Images:
    """A labelled image set as it is stored: 8-bit, with a name for every image.

    `context` holds further tensors of each image, row by row (the latent code of a generated
    image).

    Args:
        x: Images, 8-bit, batch first.
        y: Labels: positions in `classes`.
        id: A name for every image.
        classes: Names of the classes.
        name: What loads the set again, or any name.
        split: ``train`` or ``test``.
        context: Further tensors, a row per image.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> x = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> images = hc.Images(x, torch.tensor([0, 1]), ("a", "b"), ("cat", "dog"))
        >>> images.sample(per_class=1, seed=0).y.tolist()
        [0, 1]
    """

    x: UInt8[Tensor, "n c h w"]
    y: Int[Tensor, " n"]
    id: tuple[str, ...]
    classes: tuple[str, ...]
    name: str = "images"
    split: str = "test"
    context: Mapping[str, Tensor] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.x.shape[1:]))
        about = f"{len(self):,} of {shape}, {len(self.classes)} classes"
        return f"Images({self.name!r}, {self.split}: {about})"

    def take(self, rows: Int[Tensor, " r"]) -> Images:
        names = tuple(self.id[i] for i in rows.tolist())
        context = {key: value[rows] for key, value in self.context.items()}
        return replace(self, x=self.x[rows], y=self.y[rows], id=names, context=context)

    def first(self, count: int) -> Images:
        """The first `count` images, or all if there are fewer."""
        return self.take(torch.arange(len(self))[: _positive("count", count)])

    def sample(
        self, *, per_class: int | None = None, count: int | None = None, seed: int = 0
    ) -> Images:
        """A random choice of `per_class` images of every class, or of `count` images with the
        classes taking turns.

        Where there are not enough images, all there are. The images come in random order, the
        classes mixed; the choice follows from ids, labels and seed alone, and a smaller one is the
        beginning of a larger one.
        """
        if (per_class is None) == (count is None):
            raise HardcaseError(
                "sample takes either per_class or count.", fix="images.sample(per_class=20, seed=0)"
            )
        rows, turn = balanced_order(self.y, self.id, seed=seed)
        if per_class is not None:
            return self.take(rows[turn < _positive("per_class", per_class)])
        return self.take(rows[: _positive("count", count or 0)])

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.x.shape[1:])

    def images(self) -> Images:
        """All of it in memory: itself."""
        return self

    def held(self) -> Images:
        """Itself: it is in memory already."""
        return self

    def shards(self, size: int) -> Iterator[Images]:
        """All images, `size` at a time."""
        rows = torch.arange(len(self))
        return (self.take(rows[i : i + size]) for i in range(0, max(len(self), 1), size))

    @property
    def hash(self) -> str:
        """A digest of images and labels, computed once."""
        if "hash" not in self._known:
            from hardcase.tensors import digest_tensors

            claims = {
                name: column for name, column in self.context.items() if name.startswith("claim_")
            }
            self._known["hash"] = digest_tensors({"x": self.x, "y": self.y, **claims})
        return self._known["hash"]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Where a search starts: codes in a space, the images and labels they stand for,
    and what the space needs to know.

    Args:
        z: Codes in the space.
        x: The images, in [0, 1].
        y: Their labels.
        id: Positions of the originals in the campaign.
        context: Further tensors that the space needs, a row per seed.
    """

    z: Float[Tensor, "n *code"]
    x: Float[Tensor, "n c h w"]
    y: Int[Tensor, " n"]
    id: Int[Tensor, " n"]
    context: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)

    def copy(self) -> Seeds:
        """A deep copy: edits in place change no other seeds."""
        context = {name: value.clone() for name, value in self.context.items()}
        return Seeds(self.z.clone(), self.x.clone(), self.y.clone(), self.id.clone(), context)

    def take(self, rows: Int[Tensor, " m"]) -> Seeds:
        context = {name: value[rows] for name, value in self.context.items()}
        z = self.z.index_select(0, rows)
        x = self.x.index_select(0, rows)
        return Seeds(z, x, self.y[rows], self.id[rows], context)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says about images: logits, and the outputs of the layers that were tapped."""

    logits: Float[Tensor, "m k"]
    activations: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probe:
    """The networks' answers to one batch of candidates.

    Args:
        z: Codes of the candidates.
        x: Their images, 8-bit values in [0, 1].
        logits: What the model answers.
        origin: The seed of each row.
        peers: What each peer answers.
        activations: Outputs of the tapped layers by name.
        targets: The targets that guides set for each row.
        guides: Guides of the shard by name, as they were before the evaluation.
        witnesses: What each witness answers.
    """

    z: Float[Tensor, "m *code"]
    x: Float[Tensor, "m c h w"]
    logits: Float[Tensor, "m k"]
    origin: Seeds
    peers: tuple[Float[Tensor, "m k"], ...] = ()
    activations: Mapping[str, Tensor] = field(default_factory=dict)
    targets: Targets = field(default_factory=dict)
    guides: Mapping[str, Guide] = field(default_factory=dict)
    witnesses: tuple[Float[Tensor, "m k"], ...] = ()


@dataclass(frozen=True, slots=True)
class Feedback:
    """All that a search may know. Rows that were not evaluated (finished images, spent budgets)
    score -inf.

    Args:
        z: The projected candidates.
        score: The objective's value; higher is better.
        failed: Whether the oracle calls a row a failure.
        predicted: The label that the model answers.
        gain: What a row adds to the guides as they were before this evaluation.
        evaluated: Whether the networks evaluated a row.
        margin: Logit margin by which the model leaves the original's label.
    """

    z: Float[Tensor, "m *code"]
    score: Float[Tensor, " m"]
    failed: Bool[Tensor, " m"]
    predicted: Int[Tensor, " m"]
    gain: Float[Tensor, " m"]
    evaluated: Bool[Tensor, " m"]
    margin: Float[Tensor, " l"] = field(default_factory=lambda: torch.zeros(0))


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run keeps. `seed` is the original's position in the run, `kind` the position in
    `KINDS`, `distance` is measured in the method's space, `code` is the candidate's code (no
    columns where the space does not keep it).

    Args:
        seed: Position of each failure's seed in the campaign.
        x: The images, 8-bit.
        kind: Position in `KINDS`.
        expected: The original's label.
        predicted: What the model answers.
        peer_predicted: What each peer answers.
        confidence: The model's probability of its answer.
        score: The objective's value.
        distance: Distance from the original in the method's space.
        queries: Queries spent on the original until this failure.
        code: The candidate's code; no columns where the space keeps none.
        witnessed: Whether every witness keeps the label; empty without witnesses.
        witness_margin: Least logit margin of a witness; empty without witnesses.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> failures = hc.search(toy_subject(), toy_images(4), method="pgd")
        >>> failures.x.dtype, len(failures) == len(failures.seed)
        (torch.uint8, True)
    """

    seed: Int[Tensor, " t"]
    x: UInt8[Tensor, "t c h w"]
    kind: Int[Tensor, " t"]
    expected: Int[Tensor, " t"]
    predicted: Int[Tensor, " t"]
    peer_predicted: Int[Tensor, "t p"]
    confidence: Float[Tensor, " t"]
    score: Float[Tensor, " t"]
    distance: Float[Tensor, " t"]
    queries: Int[Tensor, " t"]
    code: Float[Tensor, "t d"]
    witnessed: Bool[Tensor, " v"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    witness_margin: Float[Tensor, " v"] = field(default_factory=lambda: torch.zeros(0))

    def __post_init__(self) -> None:
        if len(self.witnessed) != len(self.seed):  # nobody was asked
            object.__setattr__(self, "witnessed", torch.zeros_like(self.seed, dtype=torch.bool))
            object.__setattr__(self, "witness_margin", torch.full_like(self.confidence, torch.inf))

    def __len__(self) -> int:
        return len(self.seed)

    def __repr__(self) -> str:
        times = self.kind.bincount(minlength=len(KINDS)).tolist()
        kinds = [f"{count} {kind}" for count, kind in zip(times, KINDS) if count]
        seeds = len(set(self.seed.tolist()))
        return f"Findings({len(self):,} of {seeds:,} images: {', '.join(kinds) or 'none'})"

    def take(self, rows: Int[Tensor, " r"]) -> Findings:
        return Findings(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def reseeded(self, place: Int[Tensor, " n"]) -> Findings:
        """The same failures, with `place[i]` as the position of image `i`."""
        return replace(self, seed=place[self.seed])

    @staticmethod
    def join(parts: Sequence[Findings]) -> Findings:
        return Findings(
            **{f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Findings)}
        )


@dataclass(frozen=True, slots=True)
class ImagePairs:
    """The input of a judge: changed images, their originals, and the class that each should still
    show. Nothing else of a run is in it, so nothing else can enter a
    verdict.

    Args:
        x: The changed images, 8-bit.
        original: The original of each changed image, 8-bit.
        expected: The class of that image.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> len(hc.ImagePairs(images, images, torch.tensor([0, 1])))
        2
    """

    x: UInt8[Tensor, "t c h w"]
    original: UInt8[Tensor, "t c h w"]
    expected: Int[Tensor, " t"]

    def __len__(self) -> int:
        return len(self.expected)

    def __getitem__(self, rows: Tensor | slice) -> ImagePairs:
        return ImagePairs(self.x[rows], self.original[rows], self.expected[rows])

    @staticmethod
    def join(parts: Sequence[ImagePairs]) -> ImagePairs:
        """Concatenate parts."""
        return ImagePairs(
            torch.cat([part.x for part in parts]),
            torch.cat([part.original for part in parts]),
            torch.cat([part.expected for part in parts]),
        )


VERDICT_WORDS = ("kept", "lost", "unsure", "foreign")
"""What a judge may say of an image: it still shows the class of the original, it does not, the
judge is not sure, or it is no image of this domain at all (noise, blank, inverted).
"""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts of a judge on images, row by row.

    Args:
        verdict: One of `VERDICT_WORDS` for each image.
        p_kept: The probability that each image keeps its label, if the judge estimates it.
        columns: What else is stored of each image, by name: lists of numbers or words.
        features: What images are compared by when likely duplicates are grouped.

    Example:
        >>> import hardcase as hc
        >>> hc.Verdicts(["kept", "unsure"], p_kept=[0.99, 0.6]).verdict
        ['kept', 'unsure']
    """

    verdict: Sequence[str]
    p_kept: Sequence[float] | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    features: Float[Tensor, "t d"] | None = None

    @staticmethod
    def join(parts: Sequence[Verdicts]) -> Verdicts:
        """Concatenate the verdicts on parts of the images."""
        features = [part.features for part in parts if part.features is not None]
        chances = [part.p_kept for part in parts if part.p_kept is not None]
        return Verdicts(
            [value for part in parts for value in part.verdict],
            [value for part in chances for value in part] if len(chances) == len(parts) else None,
            {
                name: [value for part in parts for value in part.columns[name]]
                for name in parts[0].columns
            },
            torch.cat(features) if len(features) == len(parts) else None,
        )


@runtime_checkable
class Judge(Protocol):
    """Decides whether changed images keep the label of their originals.

    Any callable will do. A verdict follows from an image, its original and the judge alone:
    `hardcase.testing.check_judge` tests that. Where a judge has a method ``about()``, that is what
    run.json and the report say of it; ``check(run)`` may refuse a run.

    Example:
        >>> import hardcase as hc
        >>> def trusting(pairs):
        ...     return hc.Verdicts(["kept"] * len(pairs))
        >>> isinstance(trusting, hc.Judge)
        True
    """

    def __call__(self, pairs: ImagePairs) -> Verdicts: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a run. Queries and gradients are per image;
    totals are divided over the images before the start.

    Args:
        queries: Query budget per seed.
        gradients: Gradient budget per seed.
        total_queries: Queries of all images together, divided over the seeds.
        total_gradients: Gradients of all images together, divided over the seeds.
        findings: Stop at the end of the round that reaches so many failures.
        time: Stop after so many seconds, or after ``30m``, ``2h``.
    """

    queries: int | None = None
    gradients: int | None = None
    total_queries: int | None = None
    total_gradients: int | None = None
    findings: int | None = None
    time: float | str | None = None

    def __repr__(self) -> str:
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return f"Budget({', '.join(f'{name}={v!r}' for name, v in values if v is not None)})"


@runtime_checkable
class Objective(Protocol):
    def __call__(self, probe: Probe) -> Float[Tensor, " m"]: ...


@runtime_checkable
class Oracle(Protocol):
    """Says which candidates fail, and what kind of failure that is."""

    @property
    def kind(self) -> Kind: ...

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]: ...


@runtime_checkable
class Model(Protocol):
    """A network under test, or a peer of one: images in, answers out."""

    name: str
    hash: str

    @property
    def offers(self) -> Offer: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer: ...


@runtime_checkable
class Space(Protocol):
    """Where candidates live. `keeps_code`: failures store their code because the image alone does
    not give it back. In `encode`, row i of the images draws from seed i of `rng`.
    """

    @property
    def name(self) -> str: ...

    @property
    def keeps_code(self) -> bool: ...

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded: ...

    def decode(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m c h w"]: ...

    def project(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m *code"]: ...

    def distance(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, " m"]: ...


@runtime_checkable
class Evaluator(Protocol):
    """The one way from a search to the networks: it meters, stops finished images,
    records and feeds guides.

    `rows` are positions of images, one for each candidate, in any number and order; images that a
    search may still evaluate are ``evaluate.live.nonzero().squeeze(1)``.
    """

    @property
    def live(self) -> Bool[Tensor, " n"]:
        """Which images are neither finished nor out of budget: a mask over the shard's seeds."""
        ...

    def __call__(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> Feedback:
        """Evaluate candidates: a query each. Codes come back projected, in `Feedback.z`."""
        ...

    def gradient(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> tuple[Feedback, Tensor]:
        """Evaluate, with the gradient of each score by its code, along which the score rises: a
        query and a gradient each.
        """
        ...

    def choose(self, rows: Int[Tensor, " m"], following: Targets | None = None) -> Targets:
        """What guides ask of these rows.

        `following`: the targets they follow now, where a walk goes on rather than starts.
        """
        ...

    def surrogates(
        self, z: Float[Tensor, "r *code"], rows: Int[Tensor, " r"]
    ) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r s d"]]:
        """Each surrogate's margin and its gradient, for a model that gives none."""
        ...

    def retire(self, rows: Int[Tensor, " r"]) -> None:
        """End these images, whatever of their budget is left."""
        ...


@runtime_checkable
class Search(Protocol):
    """How candidates move. A search draws as ``rng.normal(rows, shape)``, `rows` being images'
    positions: each image has its random stream, so that its walk depends on no neighbour.
    """

    def init(self, seeds: Seeds, rng: Rng) -> State:
        """What is remembered at the start: tensors by name; ``seeds.z`` are the images' codes."""
        ...

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        """Ask once or more about images that are live, and return the next state as a new
        dictionary. The run calls it until no seed is live.
        """
        ...


@runtime_checkable
class Guide(Protocol):
    """A memory that steers: it chooses targets, says what a candidate adds,
    and learns. Deltas of shards merge in order.
    """

    @property
    def name(self) -> str: ...

    @property
    def taps(self) -> Mapping[str, Tap]: ...

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets: ...

    def gain(self, probe: Probe) -> Float[Tensor, " m"]: ...

    def update(self, probe: Probe) -> None: ...

    def fork(self) -> Guide: ...

    def delta(self) -> State: ...

    def merge(self, deltas: Sequence[State]) -> None: ...


@runtime_checkable
class Following(Protocol):
    """A guide whose targets differ between the start and a later step of a walk: return the targets
    of walks that go on.
    """

    def follow(self, rows: Int[Tensor, " m"], targets: Targets, rng: Rng) -> Targets: ...


@runtime_checkable
class Criterion(Guide, Protocol):
    """A guide that is also a measure."""

    def value(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a paper contributes: the parts, and when an image is finished.

    A recipe leaves `name` out: the registry writes there what it is registered as.

    Args:
        name: What it is registered as.
        space: Where candidates live.
        search: How candidates move.
        objective: Which way is better.
        oracle: What counts as a failure.
        guides: Memories that steer, e.g. coverage or a corpus.
        until: A seed is finished at its ``first`` failure, or when its ``budget`` is spent.
        needs: What the model must offer: ``label``, ``scores``, ``activations`` or ``gradients``.
        keep: Which failures per image are stored.
        budget: The default limits of the method.
        target_margin: Logits by which witnesses should keep the label where the budget allows, if
            that is more than the run's margin.
        closed: The search gets gradients of witnesses only, even if the model has gradients.
        surrogates: Networks whose gradients stand for those of a closed model.
        taps: Layers whose activations are read.
        details: What run.json says of it besides.

    Example:
        >>> import hardcase as hc
        >>> mine = hc.Method(
        ...     space=hc.spaces.Pixels(hc.spaces.Linf(0.2)),
        ...     search=hc.searches.GradientAscent(step_size=0.02),
        ...     objective=hc.objectives.Margin(),
        ...     oracle=hc.oracles.LeavesLabel(),
        ...     budget=hc.Budget(gradients=10),
        ...     needs="gradients",
        ... )
        >>> mine.until
        'first'
    """

    name: str = "unnamed"
    space: Space
    search: Search
    objective: Objective
    oracle: Oracle
    guides: tuple[Guide, ...] = ()
    until: Literal["first", "budget"] = "first"
    needs: Offer = "scores"
    keep: str = "best"
    budget: Budget = Budget()
    target_margin: float = 0.0
    closed: bool = False
    surrogates: tuple[Model, ...] = ()
    taps: Mapping[str, Tap] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = [
            f"{role}={_kind(getattr(self, role))}"
            for role in ("space", "search", "objective", "oracle")
        ]
        guides = f"guides=[{', '.join(map(_kind, self.guides))}]" if self.guides else ""
        return f"Method({', '.join(filter(None, [repr(self.name), *parts, guides]))})"


def _kind(part: object) -> str:
    return part.__name__ if callable(part) and hasattr(part, "__name__") else type(part).__name__


PHOTOGRAPH = 64
"""Side from which on colour images are photographs: no small network is trained to judge them."""


def is_photographic(shape: Sequence[int]) -> bool:
    """Whether images of this shape (channels, height, width) have photographs' size and colour."""
    return shape[0] == 3 and min(shape[1:]) >= PHOTOGRAPH
