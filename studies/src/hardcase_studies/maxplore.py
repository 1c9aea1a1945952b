"""MaXplore's claims, one by one.

Te Wei Lee, "MaXplore: Deep Learning Testing Inputs Generation Based on DeepXplore", report, 2020. LeNet-1 is the subject,
LeNet-4 and -5 are its peers. The report gives box plots without numbers, except that 244 units of the first convolution were
raised and more than 93 % of these walks raised later layers too. Walks of one seed are averaged first, as the report averages
its filters; intervals resample seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.campaign.in_memory import search
from hardcase.criteria.network import Selection, select
from hardcase.models.health import probabilities
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.registry import resolve
from hardcase.searches.gradient import MultiStartAscent
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, flat, from_bytes
from hardcase.types import Images, Kind, Method, Probe
from hardcase_studies import figures
from hardcase_studies.bench import Bench, delta, mean, table_of
from hardcase_studies.inference import cluster_means
from hardcase_studies.lab import PHOTOGRAPH, Lab

NETWORKS = ("zoo:lenet1", "zoo:lenet4", "zoo:lenet5")
STEPS = 10
STEP_SIZE = 0.05
K = 6
SWEEP = (1, 3, 6, 12, 24)
VALUES = 2**25
"""Activations that are kept at once."""


def run(bench: Bench) -> Outcome:
    """``--set seeds=… units=… models=…`` choose other sizes and networks; of photographs RQ1 and RQ2 alone are asked."""
    here = Lab(bench, bench.names("models", NETWORKS))
    bounds = Bounds.of(here)
    few = here.seeds(bench.size("one_seeds", 10, 50), bench.seed)
    bench.say("One-MaXplore on the first convolution")
    one = ends_of(here, few, bench, form="one", walks=bench.size("units", 10**9, 10**9))
    bench.say("Topk-MaXplore")
    top = {per: ends_of(here, few, bench, form="topk", per=per) for per in ("filter", "layer")}
    forms = {"One": one, **{f"Topk, per {per}": made for per, made in top.items()}}
    first = [_first_table(bounds, one, few), _second_table(bounds, forms, few)]
    if max(here.train.x.shape[2:]) > PHOTOGRAPH:
        return Outcome("maxplore", first)
    many = here.seeds(bench.size("seeds", 50, 200), bench.seed)
    bench.say("Multi-Topk-MaXplore and DeepXplore")
    multi = _third(here, many, bench)
    bench.say("k against validity")
    swept = {k: ends_of(here, few, bench, form="topk", per="filter", k=k) for k in SWEEP}
    tables = [
        *first,
        _third_table(bounds, multi, many, here),
        _against_table(bounds, multi, many),
        _sweep_table(bounds, swept, few, _independent(here)),
    ]
    return Outcome("maxplore", tables, _pictures(bench, bounds, one, top, multi, few, many))


def ends_of(
    here: Lab,
    seeds: Images,
    bench: Bench,
    *,
    form: str,
    per: str = "filter",
    k: int = K,
    walks: int = 16,
) -> Made:
    """Where One- or Topk-MaXplore's walks end, with the report's step and number of steps."""
    method = resolve("method", "maxplore@paper")(
        subject=here.subject,
        profile=here.profile,
        form=form,
        per=per,
        k=k,
        walks=walks,
        step_size=STEP_SIZE,
        steps=STEPS,
    )
    return ends(here, method, seeds, seed=bench.seed)


def _third(here: Lab, seeds: Images, bench: Bench) -> dict[str, Made]:
    """What Multi-Topk and DeepXplore find, the latter under the setting of the text and of the code."""
    given = {"subject": here.subject, "peers": here.peers, "profile": here.profile}
    deepxplore = resolve("method", "deepxplore@code")
    methods = {
        "Multi-Topk, per filter": resolve("method", "maxplore@code")(**given, k=K),
        "Multi-Topk, per layer": resolve("method", "maxplore@paper")(**given, k=K),
        "DeepXplore, text's setting": deepxplore(
            **given, constraint="none", differ=1.5, cover=1.0, step_size=0.15, gradients=25
        ),
        "DeepXplore, code's setting": deepxplore(**given, constraint="blackout"),
    }
    found = {
        name: search(here.subject, m, seeds, peers=here.peers, seed=bench.seed)
        for name, m in methods.items()
    }
    return {
        name: Made(f.findings.x, f.findings.seed, 0 * f.findings.seed) for name, f in found.items()
    }


def _first_table(bounds: Bounds, one: Made, seeds: Images) -> Table:
    """RQ1: does pushing a unit of the first convolution raise later layers?"""
    raised = bounds.raised(one, seeds)
    first = bounds.selection.widths[0]
    units = int(one.walk.max()) + 1
    target = torch.linspace(0, first - 1, units).round().long()[one.walk]
    own = raised.gather(1, target[:, None]).squeeze(1)
    later = raised[:, first:].any(1)
    pushed = Made(one.x[own], one.seed[own], one.walk[own])
    shares = bounds.shares(raised[own])
    rows: list[list[Cell]] = [
        ["walks (seeds x units)", len(own)],
        ["walks that raised the unit they pushed", int(own.sum())],
        ["of these, walks that raised a unit of a later layer", int(later[own].sum())],
        ["the same per seed, %", mean(per_seed(later[own], pushed), scale=100)],
    ]
    rows += [
        [f"mean Layer-SNAC of {name}, %", mean(per_seed(value, pushed), scale=100)]
        for name, value in list(shares.items())[1:]
    ]
    notes = [f"{len(seeds)} seeds, {units} of {first} units of {bounds.selection.names[0]}, step {STEP_SIZE}, {STEPS} steps", "report: 244 units raised, more than 93 % of them with later layers"]  # fmt: skip
    return Table("RQ1: One-MaXplore on the first convolution", ["measure", "value"], rows, notes)


def _second_table(bounds: Bounds, made: Mapping[str, Made], seeds: Images) -> Table:
    """RQ2: does Topk raise more units than One, and does its change spread wider?"""
    counts = {
        name: per_seed(bounds.raised(some, seeds).sum(1), some) for name, some in made.items()
    }
    wide = {name: per_seed(spread(some, seeds), some) for name, some in made.items()}
    rows: list[dict[str, Cell]] = [
        {
            "form": name,
            "images": len(some.x),
            "units raised an image": mean(counts[name]),
            "delta to One, units": delta(counts[name], counts["One"]),
            "values changed, %": mean(wide[name], scale=100),
            "delta to One, values": delta(wide[name], wide["One"]),
        }
        for name, some in made.items()
    ]
    return table_of(
        "RQ2: units raised, and how widely the change spreads", rows,
        [f"k = {K}; units of all layers; per filter is the code, per layer the text", "claim: Topk raises more, and more globally"],
    )  # fmt: skip


def _third_table(bounds: Bounds, made: Mapping[str, Made], seeds: Images, here: Lab) -> Table:
    """RQ3: Layer-SNAC of what is found."""
    names = bounds.selection.names[1:]
    base = next(name for name in made if "code's" in name)
    tables = {
        name: {
            layer: per_seed(value, some)
            for layer, value in bounds.shares(bounds.raised(some, seeds)).items()
        }
        for name, some in made.items()
    }
    rows = list[list[Cell]]()
    for name, shares in tables.items():
        found = made[name]
        cells = [f"{mean(shares[layer], scale=100)}; var {1e4 * float(shares[layer].var()):.3g}" if len(shares[layer]) > 1 else None for layer in names]  # fmt: skip
        own, other = (
            torch.stack([t[layer] for layer in names]).mean(0) for t in (shares, tables[base])
        )
        rows.append(
            [
                name,
                f"{len(set(found.seed.tolist()))} of {len(seeds)}",
                len(found.x),
                *cells,
                delta(own, other),
            ]
        )
    return Table(
        "RQ3: Layer-SNAC (mean over seeds in %, variance between seeds in squared percent)",
        ["method", "seeds", "images", *names, "delta to DeepXplore, code's setting"], rows,
        ["report: Multi-Topk has the higher mean and the larger variance; its code ran DeepXplore with other settings",
            "a seed's number is the mean over its images: averaging many walks makes the variance between seeds smaller by itself",
            "black squares of the code's setting can only darken what networks see here; its own pixels went down to -10", *here.notes],
    )  # fmt: skip


AGAINST = {
    "Multi-Topk, per layer": "text's setting",
    "Multi-Topk, per filter": "code's setting",
}
"""The text's form is held against DeepXplore as the text sets it up, and the code's against the code's."""
RESAMPLES = 2000


def _against_table(bounds: Bounds, made: Mapping[str, Made], seeds: Images) -> Table:
    """RQ3's two claims: a higher mean, a larger variance. Seeds of both are resampled."""
    layers = bounds.selection.names[1:3]
    each = {}
    for name, some in made.items():
        shares = bounds.shares(bounds.raised(some, seeds))
        each[name] = 100 * per_seed(torch.stack([shares[layer] for layer in layers]).mean(0), some)
    rng = stream(0, "MaXplore against DeepXplore")
    rows: list[list[Cell]] = []
    for name, setting in AGAINST.items():
        pair = (each[name], each[f"DeepXplore, {setting}"])
        if min(map(len, pair)) < 2:
            rows.append([f"{name}, {setting}", None, None, *map(len, pair)])
            continue
        drawn = [
            values[torch.randint(len(values), (RESAMPLES, len(values)), generator=rng)]
            for values in pair
        ]
        higher = drawn[0].mean(1) - drawn[1].mean(1)
        wider = drawn[0].var(1) / drawn[1].var(1).clamp_min(1e-12)
        own, other = pair
        cells = [
            _resampled(float(own.mean() - other.mean()), higher, "+.3g"),
            _resampled(float(own.var() / other.var().clamp_min(1e-12)), wider, ".3g"),
        ]
        rows.append([f"{name}, {setting}", *cells, *map(len, pair)])
    notes = [
        f"Layer-SNAC in % of {' and '.join(layers)} together, a number a seed; 95 % bootstrap intervals over the seeds of both",
        "report: the mean is higher and the variance larger",
    ]
    columns = [
        "form, DeepXplore's setting",
        "mean above",
        "ratio of variances",
        "seeds",
        "its seeds",
    ]
    return Table("RQ3, against DeepXplore", columns, rows, notes)


def _resampled(value: float, draws: Float[Tensor, " b"], form: str) -> str:
    low, high = draws.quantile(torch.tensor([0.025, 0.975], dtype=draws.dtype)).tolist()
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def _sweep_table(bounds: Bounds, swept: Mapping[int, Made], seeds: Images, judge: Subject) -> Table:
    rows: list[dict[str, Cell]] = []
    for k, made in swept.items():
        kept = probabilities(judge, made.x).argmax(1) == seeds.y[made.seed]
        rows.append(
            {
                "k": k,
                "units raised an image": mean(per_seed(bounds.raised(made, seeds).sum(1), made)),
                "values changed, %": mean(per_seed(spread(made, seeds), made), scale=100),
                "L2": mean(per_seed(distance(made, seeds), made)),
                "label kept, %": mean(per_seed(kept, made), scale=100),
            }
        )
    note = "label kept: a LeNet-5 trained from other initial weights, which no walk ever asked, still sees the seed's label"
    return table_of("k against validity: Topk-MaXplore, per filter", rows, [note])


def _independent(here: Lab) -> Subject:
    return here.network("lenet5", seed=1)[0]


def _pictures(
    bench: Bench,
    bounds: Bounds,
    one: Made,
    top: Mapping[str, Made],
    multi: Mapping[str, Made],
    few: Images,
    many: Images,
) -> list[str]:
    def shown(made: Made, seeds: Images) -> dict[str, Tensor]:
        rows = torch.linspace(0, max(len(made.x) - 1, 0), min(8, len(made.x))).long()
        return {"seed": seeds.x[made.seed[rows]], "made": made.x[rows]}

    walks = {f"One: {key}": value for key, value in shown(one, few).items()}
    walks |= {f"Topk: {key}": value for key, value in shown(top["filter"], few).items()}
    walks |= {
        f"{n}: {key}": v
        for n, made in multi.items()
        if len(made.x)
        for key, v in shown(made, many).items()
    }
    return [figures.images(bench.out / "pictures.png", walks)]


@dataclass(frozen=True, slots=True)
class Everything:
    """An oracle that keeps every look, so that an experiment sees where walks ended."""

    kind: Kind = "surprise"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return torch.ones_like(probe.origin.y, dtype=torch.bool)


@dataclass(frozen=True, slots=True)
class Made:
    """Pictures, the seed each came from and the number of the walk that made it."""

    x: UInt8[Tensor, "t c h w"]
    seed: Int[Tensor, " t"]
    walk: Int[Tensor, " t"]


@dataclass(frozen=True)
class Bounds:
    """Every unit of the layers as frameworks with built-in activations count them, and the most that training data made of it.

    As in MaXplore's table a bound is at least 0 and at least what the seed itself shows.
    """

    lab: Lab
    selection: Selection
    most: Float[Tensor, " u"]

    @staticmethod
    def of(lab: Lab) -> Bounds:
        selection = select(lab.profile.graph(lab.subject), "activated", "unit")
        most = torch.zeros(selection.units)
        for part in chunks(len(lab.train), _at_once(selection)):
            most = torch.maximum(most, _values(lab, selection, lab.train.x[part]).amax(0))
        return Bounds(lab, selection, most)

    def raised(self, made: Made, seeds: Images) -> Bool[Tensor, "t u"]:
        """Which units each picture drives above its bound."""
        own = torch.maximum(_values(self.lab, self.selection, seeds.x), self.most)
        parts = []
        for part in chunks(len(made.x), _at_once(self.selection)):
            parts.append(_values(self.lab, self.selection, made.x[part]) > own[made.seed[part]])
        return torch.cat(parts) if parts else torch.zeros(0, self.selection.units, dtype=torch.bool)

    def shares(self, raised: Bool[Tensor, "t u"]) -> dict[str, Float[Tensor, " t"]]:
        """Layer-SNAC of each picture, layer by layer."""
        layers = zip(
            self.selection.names, self.selection.starts, self.selection.widths, strict=True
        )
        return {
            name: raised[:, start : start + width].float().mean(1) for name, start, width in layers
        }


def per_seed(values: Tensor, made: Made) -> Float[Tensor, " s"]:
    """The mean of each seed's images: those of one seed are not independent."""
    return cluster_means(values.double(), made.seed)


def ends(lab: Lab, method: Method, seeds: Images, *, seed: int) -> Made:
    """The last picture of every walk of a method that walks in a fan and never stops early."""
    assert isinstance(method.search, MultiStartAscent)
    walks = method.search.walks
    steps = method.search.steps
    whole = replace(
        method, search=replace(method.search, width=walks), oracle=Everything(), until="budget"
    )
    found = search(lab.subject, whole, seeds, keep="all", seed=seed, shard=4).findings
    number = found.queries - 2  # the first query of a seed shows the seed itself
    last = number >= steps * walks
    return Made(found.x[last], found.seed[last], number[last] - steps * walks)


def spread(made: Made, seeds: Images) -> Float[Tensor, " t"]:
    """The share of values that differ from the seed's."""
    return (made.x != seeds.x[made.seed]).flatten(1).float().mean(1)


def distance(made: Made, seeds: Images) -> Float[Tensor, " t"]:
    return flat(from_bytes(made.x) - from_bytes(seeds.x[made.seed])).square().sum(1).sqrt()


def _at_once(selection: Selection) -> int:
    """Images whose units fit into memory together: all of LeNet-1's 256, a dozen of VGG16's."""
    return max(1, min(256, VALUES // selection.units))


@torch.no_grad()
def _values(lab: Lab, selection: Selection, x: UInt8[Tensor, "m c h w"]) -> Float[Tensor, "m u"]:
    answer = lab.subject(from_bytes(x.to(lab.subject.device)), selection.taps)
    return torch.cat(selection.read(answer.activations), 1).cpu()
