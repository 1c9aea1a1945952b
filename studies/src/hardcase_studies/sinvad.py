"""SINVAD's RQ2, RQ4 and feasibility study: the boundary, the size of the VAE, and what changes when pixels give way to codes.

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase import statistics
from hardcase.campaign.in_memory import SearchResult, search, walk
from hardcase.errors import HardcaseError
from hardcase.methods.sinvad import sinvad, sinvad_surprise
from hardcase.models.health import probabilities, usable
from hardcase.models.subject import Subject
from hardcase.oracles import Surprising
from hardcase.randomness import Rng
from hardcase.registry import resolve
from hardcase.spaces.latent import collect
from hardcase.spaces.pixel import Pixels
from hardcase.statistics import median_interval, wilson_interval
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import flat, from_bytes, to_bytes
from hardcase.types import Budget, Images, Method, Seeds, Space
from hardcase_studies import figures, hierarchical_vae
from hardcase_studies.bench import Bench, finite_mean, mean, share
from hardcase_studies.lab import Lab, LatentModel, accuracy
from hardcase_studies.witness_world import ENLARGED, LPIPS, looks_apart
from hardcase_study.agreement import welch_p


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the paper's Table 3."""

    data: str
    found: float
    test: float
    delta: float


PAPER = {
    "mnist5k": Published("MNIST", 0.0638, 0.9957, -0.98),
    "mnist": Published("MNIST", 0.0638, 0.9957, -0.98),
    "fashion": Published("Fashion-MNIST", 0.1330, 0.9186, -0.92),
    "cifar10": Published("ImageNet-32", 0.0423, 0.1953, -0.56),
}
BUDGETS = {
    "sinvad": (8, 16, 24, 32, 48, 64, 123),
    "sinvad@code": (51, 111, 231, 471, 951, 1911, 3051),
}


def boundary(bench: Bench) -> Outcome:
    """RQ2: how close to the decision boundary found images lie (Table 3), and what that costs."""
    here = Lab(bench)
    drawn = here.test.sample(count=bench.size("seeds", 200, 1000), seed=bench.seed)
    seeds = usable(here.subject, drawn)
    bench.say(f"sinvad on {len(seeds)} seeds")
    done = {"sinvad": search(here.subject, _ours(here), seeds, seed=bench.seed)}
    ends = {}
    sizes = {
        "sinvad@code": bench.size("code_seeds", 48, 1000),
        "sinvad@paper": bench.size("paper_seeds", 12, 200),
    }
    for name, size in sizes.items():
        few = seeds.first(size)
        bench.say(f"{name} on {len(few)} seeds")
        done[name] = search(here.subject, _published(here, name), few, seed=bench.seed)
        ends[name] = final_gaps(here, _published(here, name), done[name], bench.seed)
    bench.say("the same with less to spend")
    few = seeds.first(bench.size("curve_seeds", 24, 200))
    budgets = _budgets(here, few, bench)
    tables = [_gaps(here, done, ends), _costs(here, done), _distances(here, done), budgets]
    return Outcome("sinvad-rq2", tables)


def _ours(here: Lab) -> Method:
    return sinvad(space=here.space, partners=here.codes)


def _published(here: Lab, name: str) -> Method:
    """The authors' code, or the text literally."""
    method: Method = resolve("method", name)(space=here.space)
    return method


def top_two_gap(p: Float[Tensor, "m k"]) -> Float[Tensor, " m"]:
    """U(x) of Eq. 3: the greatest probability minus the second greatest."""
    best = p.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def gaps(subject: Subject, done: SearchResult) -> Float[Tensor, " t"]:
    """U(x) of every finding."""
    if not len(done.findings):
        return torch.zeros(0)
    return top_two_gap(probabilities(subject, done.findings.x))


def final_gaps(here: Lab, method: Method, done: SearchResult, seed: int) -> Float[Tensor, " n"]:
    """U(x) of the image with which each attempted search ends, as the authors' code counts: also where nothing fails.

    A search without a failure ends with the first code of its population. Random numbers belong to an image, so that its walk
    is the same over again.
    """
    found = torch.isin(torch.arange(len(done.seeds)), done.findings.seed)
    failed = (done.attempted & ~found).nonzero().squeeze(1)
    ends = [gaps(here.subject, done)]
    if len(failed):
        state, _ = walk(here.subject, method, done.seeds.take(failed), seed=seed)
        z = state["z"][:, 0].reshape(-1, *state["shape"].tolist())
        x = to_bytes(decoded(method.space, z, here))
        ends.append(top_two_gap(probabilities(here.subject, x)))
    return torch.cat(ends)


def _gaps(here: Lab, done: dict[str, SearchResult], ends: Mapping[str, Tensor]) -> Table:
    test = top_two_gap(probabilities(here.subject, here.test.x))
    paper = PAPER.get(here.test.name)
    rows: list[list[Cell]] = []
    for name, some in done.items():
        gap = gaps(here.subject, some)
        if len(gap) < 2:
            rows.append([name, len(gap), *[None] * 9])
            continue
        p = welch_p(gap, test)
        delta = statistics.cliffs_delta(gap, test)
        rows.append(
            [name, len(gap), mean(gap), mean(ends[name]) if name in ends else "", paper.found if paper else None, _median(gap), float(test.mean()),
             paper.test if paper else None, f"{p:.1e}", delta, paper.delta if paper else None]
        )  # fmt: skip
    columns = ["method", "images", "mean gap", "mean gap, failed searches too", "paper", "median gap", "test set", "paper ", "Welch p", "Cliff's delta", "paper  "]  # fmt: skip
    notes = [
        *here.notes,
        "gap: greatest minus second greatest probability (Eq. 3); found images are 8-bit; 95 % intervals over seeds",
        "mean gap: of images that fail, as the text says; failed searches too: the authors' code averages the image that every "
        "search ends with; seeds that the network misreads, as they are or reconstructed, are set aside in both",
    ]
    if paper and paper.data == "ImageNet-32":
        notes.append(
            "stands in for ImageNet-32 with AlexNet and a very deep VAE; ten classes instead of a thousand"
        )
    return Table(
        f"Table 3: top-two gap, {here.test.name} (the paper's {paper.data if paper else 'data has none'})",
        columns,
        rows,
        notes,
    )


def _costs(here: Lab, done: dict[str, SearchResult]) -> Table:
    rows: list[list[Cell]] = []
    for name, some in done.items():
        attempted = int(some.attempted.sum())
        low, high = wilson_interval(some.succeeded, attempted)
        spent = int(some.queries[some.attempted].sum())
        rows.append(
            [name, f"{some.succeeded} of {attempted}", some.success, f"{low:.3f} to {high:.3f}", spent / max(some.succeeded, 1),
             1000 * some.seconds / max(some.succeeded, 1)]
        )  # fmt: skip
    columns = ["method", "found", "success", "95 % interval", "queries per image", "ms per image"]
    notes = [
        "one finding per seed, the nearest; times include everything but training and encoding the library",
        f"threads {torch.get_num_threads()}, device {here.subject.device}",
    ]
    return Table("Cost", columns, rows, notes)


def _distances(here: Lab, done: dict[str, SearchResult]) -> Table:
    """How near findings lie to their seeds, on seeds that every method succeeds on."""
    common = set.intersection(*(set(some.findings.seed.tolist()) for some in done.values()))
    rows: list[list[Cell]] = []
    for name, some in done.items():
        kept = [i for i, seed in enumerate(some.findings.seed.tolist()) if seed in common]
        found = some.findings.x[kept]
        seeds = some.seeds.x[some.findings.seed[kept]]
        change = from_bytes(found) - from_bytes(seeds)
        nobody = torch.zeros(len(kept), dtype=torch.int64)  # a VAE's mean code needs no label
        codes = [encoded(here.space, x, nobody, here) for x in (found, seeds)]
        coded = flat(codes[0] - codes[1]).abs().sum(1)
        looks = looks_apart(found, seeds, here.subject.device)
        lengths = (some.findings.distance[kept], coded, flat(change).norm(dim=1), looks)
        rows.append([name, *(_median(length) for length in lengths)])
    columns = [
        "method",
        "L1 of the code searched",
        "L1 of codes encoded again (Eq. 1)",
        "L2 of images",
        "LPIPS of images",
    ]
    notes = [
        f"medians over {len(common)} common seeds with 95 % intervals over seeds",
        "Eq. 1 compares the found image encoded again with the seed's code; the authors' code and ours compare the code that was"
        " searched, which says nothing of how near two images are",
        f"LPIPS on AlexNet, of images enlarged to {ENLARGED} pixels; not run where `hardcase fetch model {LPIPS}` was not",
    ]
    return Table("Distance from the seed", columns, rows, notes)


def _median(values: Tensor) -> str:
    """The median of what was measured with its interval over seeds."""
    known = values[values.isfinite()]
    if len(known) < 2:
        return "none"
    return median_interval(known.detach()).text(".3g")


def _budgets(here: Lab, seeds: Images, bench: Bench) -> Table:
    """Success, gap and distance of the nearest finding under growing budgets, over the seeds that succeed."""
    methods = {"sinvad": _ours(here), "sinvad@code": _published(here, "sinvad@code")}
    rows: list[list[Cell]] = []
    for name, method in methods.items():
        for queries in BUDGETS[name]:
            budget = Budget(queries=queries)
            done = search(here.subject, method, seeds, budget=budget, seed=bench.seed)
            spent = float(done.queries[done.attempted].float().mean())
            gap, far = _mean(gaps(here.subject, done)), _mean(done.findings.distance)
            rows.append([name, spent, done.success, gap, far])
    columns = ["method", "queries per seed", "success", "mean gap", "latent L1"]
    notes = ["same seeds for both methods; gap and L1 are means over the seeds that succeed"]
    return Table("Queries against gap and distance", columns, rows, notes)


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else float("nan")


QUICK_SIZES = (2, 10, 50, 400)
FULL_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 400, 800, 1600)
RECONSTRUCTIONS = (
    "paper: accuracy rises with the latent size and levels off; it falls again where the code is larger than the image; "
    "linear slightly better than convolutional on 28x28; ten ImageNet-32 classes 67.4 % originals, 59.5 % VDVAE, 32.6 % linear"
)


EACH = 10
"""Typical and odd images of each class whose reconstructions are counted (Figure 16)."""
MEASURES = ("accuracy", "agreement", "ssim", "typical", "odd")


@dataclass(frozen=True, slots=True)
class Tried:
    """One size of one kind of VAE: a row for each training, a column for each of `MEASURES`. `asked` is the size that was named;
    a hierarchical VAE has one of its own where none was."""

    kind: str
    asked: int | None
    trainings: Float[Tensor, "t 5"]

    @property
    def latent(self) -> int:
        return self.asked or 400

    @property
    def name(self) -> str:
        return f"{self.kind} {self.latent}"

    def column(self, measure: str) -> Float[Tensor, " t"]:
        return self.trainings[:, MEASURES.index(measure)]


def latent_sizes(bench: Bench) -> Outcome:
    """RQ4: what size and kind of VAE keeps the label of an image (Figures 16, 17 and 18).

    ``--repeats N`` trains each VAE N times from other weights; a study that was stopped goes on with what it lacks, and several
    processes fill one folder, each with ``fill=true`` and some trainings, ``only=[0,1]``; ``read=true`` makes the tables of what is
    in the folder, without networks and pictures.
    ``--set kinds=… latents=… vae_epochs=…`` choose which and how long.
    """
    here = Lab(bench)
    test = here.test
    reading = bool(bench.options.get("read"))
    few = None if reading else examples(here.subject, test, each=EACH)
    tried = []
    for kind in bench.names("kinds", _kinds(here.train)):
        sizes = FULL_SIZES if bench.full else QUICK_SIZES
        for latent in bench.options.get("latents", sizes if kind in STATED else (None,)):
            tried.append(_tried(here, kind, latent, few))
    if bench.options.get("fill"):
        return Outcome("sinvad-rq4", [])
    notes = [
        RECONSTRUCTIONS,
        f"typical: the {EACH} correctly classified images of each class with the highest confidence; odd: with the lowest",
        f"{len(tried[0].trainings)} training(s) of each VAE on {len(here.train)} images; 95 % intervals are over trainings",
    ]
    shown: list[str] = []
    if few is not None:
        right = f"{len(here.right) / len(test):.1%} of the {len(test)} originals of {test.name}"
        notes.insert(0, f"{here.subject.name} is right on {right}")
        shown = [
            figures.images(bench.out / f"{name}.png", _pictures(here, images, tried))
            for name, images in zip(("typical", "odd"), few, strict=True)
        ]
    tables = [
        _reconstructions(test, tried, notes),
        _differences(tried),
        _typical_and_odd(tried),
    ]
    return Outcome("sinvad-rq4", tables, shown)


def _reconstructions(test: Images, tried: Sequence[Tried], notes: Sequence[str]) -> Table:
    rows: list[list[Cell]] = [
        [one.name, *(_of_trainings(one.column(measure), 3) for measure in MEASURES[:3])]
        for one in tried
    ]
    columns = ["VAE", "accuracy on reconstructions", "same answer as on the original", "SSIM"]
    return Table(f"Figure 17: reconstructions of {test.name}", columns, rows, notes)


def _differences(tried: Sequence[Tried]) -> Table:
    """Every pair of kinds of one size, and of sizes of one kind."""
    rows: list[list[Cell]] = []
    for one in tried:
        for other in tried:
            alone = (one.kind == other.kind) != (one.latent == other.latent)
            if one is other or not (alone or {one.kind, other.kind} - set(STATED)):
                continue
            apart = 100 * (one.column("accuracy") - other.column("accuracy"))
            rows.append([f"{one.name} less {other.name}", _of_trainings(apart, 1, "+")])
    return Table("Figure 17: differences", ["difference", "points of accuracy"], rows)


def _typical_and_odd(tried: Sequence[Tried]) -> Table:
    rows: list[list[Cell]] = []
    for one in tried:
        typical, odd = (100 * one.column(name) for name in ("typical", "odd"))
        kept = (_of_trainings(values, 1) for values in (typical, odd))
        rows.append([one.name, *kept, _of_trainings(typical - odd, 1, "+")])
    columns = ["VAE", "typical kept, %", "odd kept, %", "typical above odd, points"]
    return Table("Figure 16: labels of typical and odd images kept", columns, rows)


def _of_trainings(values: Float[Tensor, " t"], digits: int, sign: str = "") -> str:
    return finite_mean(values, unit="trainings").text(f"{sign}.{digits}f")


STATED = ("linear", "conv")
"""Kinds whose latent size is chosen; a hierarchical VAE has its own."""


def _kinds(train: Images) -> list[str]:
    deep = [hierarchical_vae.KIND] if train.x.shape[1] > 1 else []
    return [*STATED, *deep]


def _generator(here: Lab, kind: str, latent: int | None, seed: int) -> LatentModel:
    quick = None if here.bench.full else {"linear": 8, "conv": 3}.get(kind)
    chosen = here.bench.options
    epochs = chosen.get("vae_epochs", chosen.get("epochs", quick))
    return here.generator("vae", kind=kind, latent=latent, epochs=epochs, seed=seed)


def _tried(here: Lab, kind: str, latent: int | None, few: tuple[Images, Images] | None) -> Tried:
    bench = here.bench

    def numbers(seed: int) -> list[float]:
        if few is None:
            raise HardcaseError(f"{bench.out} lacks training {seed} of the {kind} VAE {latent}.")
        bench.say(f"{kind} VAE, latent {latent or 'its own'}, training {seed}")
        made = _generator(here, kind, latent, seed)
        names = ("reconstruction_accuracy", "reconstruction_agreement", "ssim")
        kept = [accuracy(here.subject, _rebuilt(here, made, images)) for images in few]
        return [*(float(made.card[name]) for name in names), *kept]

    trainings = bench.options.get("only", range(bench.repeats or 1))
    seeds = [bench.seed + int(number) for number in trainings]
    cells = [bench.cell(f"{kind} {latent} {s}", partial(numbers, s), but=CHOOSE) for s in seeds]
    return Tried(kind, latent, torch.tensor(cells, dtype=torch.float64))


CHOOSE = ("kinds", "latents", "only", "fill", "read")
"""Options that only choose which VAEs are trained."""


@torch.no_grad()
def _rebuilt(here: Lab, made: LatentModel, images: Images) -> Images:
    x = made.net(from_bytes(images.x).to(here.bench.device)).cpu()
    return replace(images, x=to_bytes(x.clamp(0, 1)))


def examples(subject: Subject, test: Images, *, each: int = 1) -> tuple[Images, Images]:
    """Of every class the correctly classified images that the subject is surest of, and those it is least sure of."""
    given = probabilities(subject, test.x)
    right = given.argmax(1) == test.y
    sure = given.amax(1)
    typical = []
    odd = []
    for c in range(len(test.classes)):
        members = (right & (test.y == c)).nonzero().squeeze(1)
        order = members[sure[members].argsort(descending=True)]
        typical.append(order[:each])
        odd.append(order[-each:])
    return test.take(torch.cat(typical)), test.take(torch.cat(odd))


def _pictures(here: Lab, images: Images, tried: Sequence[Tried]) -> dict[str, Tensor]:
    """One image of each class, and what the first training of each VAE makes of it."""
    few = images.take(torch.arange(0, len(images), EACH))
    rows = {"original": few.x}
    for one in tried:
        made = _generator(here, one.kind, one.asked, here.bench.seed)
        rows[one.name] = _rebuilt(here, made, few).x
    return rows


def feasibility(bench: Bench) -> Outcome:
    """Interpolate, climb to a surprise, and find ambiguous images, in pixels and in codes (Figures 4, 5 and 6)."""
    here = Lab(bench)
    drawn = here.test.sample(count=bench.size("seeds", 40, 40), seed=bench.seed)
    seeds = usable(here.subject, drawn)
    bench.say("interpolating")
    shown = [figures.images(bench.out / "interpolation.png", interpolations(here, seeds.first(8)))]
    few = seeds.first(bench.size("climbers", 20, 100))
    climbs = [_climbed(bench, here, few, name, start) for name, start in CLIMBS]
    pictures = {climb.name: climb.images[:10] for climb in climbs} | {
        "real": seeds.x[: len(climbs[0].images[:10])]
    }
    shown.append(figures.images(bench.out / "surprise.png", pictures))
    rows, images = _ambiguous(bench, here, seeds)
    shown.append(figures.images(bench.out / "ambiguous.png", images))
    tables = [_climbing(bench, here, climbs), rows]
    return Outcome("sinvad-feasibility", tables, shown)


def interpolations(here: Lab, seeds: Images, steps: int = 9) -> dict[str, Tensor]:
    """Figure 4: between images of different classes, mixed pixel by pixel and in the latent space."""
    rows: dict[str, Tensor] = {}
    share = torch.linspace(0, 1, steps)[:, None]
    for one in range(0, len(seeds) - 1, 2):
        pair = seeds.take(torch.tensor([one, one + 1]))
        for name, space in (("pixels", Pixels()), ("latent", here.space)):
            z = encoded(space, pair.x, pair.y, here)
            mixed = (1 - share) * z[0].flatten() + share * z[1].flatten()
            rows[f"{name} {one // 2 + 1}"] = decoded(
                space, mixed.reshape(steps, *z.shape[1:]), here
            )
    return rows


CLOSE = 1.0
"""A climb has arrived that ends within so much of the surprise it is sent to, about 1 % of it."""
CLIMBS: tuple[tuple[str, Literal["seed", "prior"]], ...] = (
    ("pixels from noise", "prior"),
    ("pixels from images", "seed"),
    ("latent from the prior", "prior"),
)


@dataclass(frozen=True, slots=True)
class Climbed:
    """Final images of one kind of climb."""

    name: str
    images: Float[Tensor, "n c h w"]
    off: Float[Tensor, " n"]
    queries: float
    seconds: float


def _climbed(
    bench: Bench, here: Lab, seeds: Images, name: str, start: Literal["seed", "prior"]
) -> Climbed:
    """Figure 5: climb to the surprise that one training image in a hundred exceeds."""
    bench.say(f"climbing: {name}")
    space: Space = Pixels() if name.startswith("pixels") else here.space
    plain = sinvad_surprise(space=space, subject=here.subject, profile=here.profile)
    assert isinstance(plain.oracle, Surprising)
    goal = float(bench.options.get("goal", plain.oracle.least))
    step_size = 2.0 if space.name == "pixels" else 1.0
    method = sinvad_surprise(
        space=space, subject=here.subject, profile=here.profile, goal=goal, start=start, step_size=step_size,
        passes=bench.size("passes", 1, 3),
    )  # fmt: skip
    begun = perf_counter()
    state, queries = walk(here.subject, method, seeds, seed=bench.seed)
    spent = perf_counter() - begun
    z = state["z"].reshape(-1, *state["shape"].tolist())
    off = -state["score"].double().cpu()
    images = decoded(space, z, here)
    return Climbed(name, images, off, float(queries.float().mean()), spent / len(seeds))


def _climbing(bench: Bench, here: Lab, climbs: list[Climbed]) -> Table:
    rows: list[list[Cell]] = [
        [
            c.name,
            len(c.images),
            share(c.off <= CLOSE),
            finite_mean(c.off).text(".3g"),
            c.queries,
            c.seconds,
        ]
        for c in climbs
    ]
    notes = [
        *here.notes,
        "goal: a likelihood-based surprise as high as that of the most surprising training image (paper: 111 by its own density)",
        "published code: 10.6 s an image; one coordinate after the other, all images side by side",
    ]
    columns = [
        "climb",
        "images",
        f"within {CLOSE:g} of the goal",
        "mean |surprise − goal|",
        "queries per image",
        "seconds per image",
    ]
    return Table("Figure 5: climbing to a surprise", columns, rows, notes)


def _ambiguous(bench: Bench, here: Lab, seeds: Images) -> tuple[Table, dict[str, Tensor]]:
    """Figure 6: images that just leave their class, by our search in codes and in pixels, and by the text's genetic search on
    the first seeds (``--set paper_seeds=N``)."""
    bench.say("ambiguous images")
    pixels = collect(here.train, lambda x: x, device=torch.device(bench.device), limit=5000)
    done = {
        "latent": search(
            here.subject, sinvad(space=here.space, partners=here.codes), seeds, seed=bench.seed
        ),
        "pixels": search(
            here.subject, sinvad(space=Pixels(), partners=pixels), seeds, seed=bench.seed
        ),
    }
    few = seeds.first(bench.size("paper_seeds", 4, 40))
    for space in (here.space, Pixels()):
        literal: Method = resolve("method", "sinvad@paper")(space=space)
        done[f"{space.name}, genetic search"] = search(here.subject, literal, few, seed=bench.seed)
    rows: list[list[Cell]] = [
        [
            name,
            f"{some.succeeded} of {int(some.attempted.sum())}",
            _l2(some.findings.x, seeds.x[some.findings.seed]),
        ]
        for name, some in done.items()
    ]
    place = {
        name: {seed: i for i, seed in enumerate(some.findings.seed.tolist())}
        for name, some in done.items()
    }
    both = sorted(set.intersection(*(set(rows) for rows in place.values())))[:10]
    images = {
        f"{n}, found": some.findings.x[[place[n][seed] for seed in both]]
        for n, some in done.items()
    }
    shown = {"seeds": seeds.x[both], **images}
    return Table(
        "Figure 6: images that just leave their class",
        ["space", "found", "mean L2 to the seed"],
        rows,
    ), shown


def _l2(one: Tensor, two: Tensor) -> float:
    return float((from_bytes(one) - from_bytes(two)).flatten(1).norm(dim=1).mean())


@torch.no_grad()
def encoded(space: Space, x: Tensor, y: Tensor, here: Lab) -> Tensor:
    """Codes of 8-bit images."""
    device = here.subject.device
    rng = Rng.numbered(0, "shown", len(x), device=device)
    return space.encode(from_bytes(x.to(device)), y.to(device), rng)[0].cpu()


@torch.no_grad()
def decoded(space: Space, z: Tensor, here: Lab) -> Float[Tensor, "m c h w"]:
    z = z.to(here.subject.device)
    whom = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    origin = Seeds(z, torch.zeros(len(z), 1, 1, 1, device=z.device), whom, whom)
    return space.decode(z, origin).clamp(0, 1).cpu()
