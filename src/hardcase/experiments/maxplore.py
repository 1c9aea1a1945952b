"""MaXplore's claims, one by one.

Te Wei Lee, "MaXplore: Deep Learning Testing Inputs Generation Based on DeepXplore", report, 2020. LeNet-1 is the subject,
LeNet-4 and -5 are its peers. The report gives box plots without numbers, except that 244 units of the first convolution were
raised and more than 93 % of these walks raised later layers too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.beyond import Bounds, Made, distance, ends, spread
from hardcase.experiments.saying import delta, mean, share
from hardcase.experiments.searching import probabilities, search
from hardcase.experiments.trio import Trio, trio
from hardcase.methods.deepxplore import deepxplore_code
from hardcase.methods.maxplore import maxplore_code, maxplore_paper
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.types import Images

NETWORKS = ("zoo:lenet1", "zoo:lenet4", "zoo:lenet5")
STEPS, STRIDE, K = 10, 0.05, 6
SWEEP = (1, 3, 6, 12, 24)


def run(bench: Bench) -> Outcome:
    """``--set seeds=… units=… models=…`` choose other sizes and networks."""
    here = trio(bench, NETWORKS)
    bounds = Bounds.of(here)
    few = here.seeds(_count(bench, "one_seeds", 5, 20), bench.seed)
    many = here.seeds(_count(bench, "seeds", 50, 200), bench.seed)
    bench.say("One-MaXplore on the first convolution")
    one = ends_of(here, few, bench, form="one", walks=_count(bench, "units", 10**9, 10**9))
    bench.say("Topk-MaXplore")
    top = {per: ends_of(here, few, bench, form="topk", per=per) for per in ("filter", "layer")}
    bench.say("Multi-Topk-MaXplore and DeepXplore")
    multi = _third(here, many, bench)
    bench.say("k against validity")
    swept = {k: ends_of(here, few, bench, form="topk", per="filter", k=k) for k in SWEEP}
    tables = [
        _first_table(bounds, one, few),
        _second_table(
            bounds, {"One": one, **{f"Topk, per {per}": made for per, made in top.items()}}, few
        ),
        _third_table(bounds, multi, many, here),
        _sweep_table(bounds, swept, few, _independent(here, bench)),
    ]
    return Outcome("maxplore", tables, _pictures(bench, bounds, one, top, multi, few, many))


def _count(bench: Bench, name: str, quick: int, full: int) -> int:
    return int(bench.options.get(name, full if bench.full else quick))


def ends_of(
    here: Trio,
    seeds: Images,
    bench: Bench,
    *,
    form: str,
    per: str = "filter",
    k: int = K,
    walks: int = 16,
) -> Made:
    """Where One- or Topk-MaXplore's walks end, with the report's step and number of steps."""
    method = maxplore_paper(
        subject=here.subject,
        profile=here.profile,
        form=form,
        per=per,
        k=k,
        walks=walks,
        stride=STRIDE,
        steps=STEPS,
    )
    return ends(here, method, seeds, seed=bench.seed)


def _third(here: Trio, seeds: Images, bench: Bench) -> dict[str, Made]:
    """What Multi-Topk and DeepXplore find, the latter under the setting of the text and of the code."""
    subject, peers, profile = here.subject, here.peers, here.profile
    methods = {
        "Multi-Topk, per filter": maxplore_code(subject=subject, peers=peers, profile=profile, k=K),
        "Multi-Topk, per layer": maxplore_paper(subject=subject, peers=peers, profile=profile, k=K),
        "DeepXplore, text's setting": deepxplore_code(
            subject=subject, peers=peers, profile=profile, constraint="none", differ=1.5, cover=1.0, stride=0.15, gradients=25
        ),
        "DeepXplore, code's setting": deepxplore_code(
            subject=subject, peers=peers, profile=profile, constraint="blackout"
        ),
    }  # fmt: skip
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
    first, units = bounds.selection.widths[0], int(one.walk.max()) + 1
    target = torch.linspace(0, first - 1, units).round().long()[one.walk]
    own = raised.gather(1, target[:, None]).squeeze(1)
    later = raised[:, first:].any(1)
    shares = bounds.shares(raised[own])
    rows: list[list[Cell]] = [
        ["walks (seeds x units)", len(own)],
        ["walks that raised the unit they pushed", int(own.sum())],
        ["of these, walks that raised a unit of a later layer", share(later[own])],
    ]
    rows += [
        [f"mean Layer-SNAC of {name}, %", mean(value, scale=100)]
        for name, value in list(shares.items())[1:]
    ]
    notes = [f"{len(seeds)} seeds, {units} of {first} units of {bounds.selection.names[0]}, step {STRIDE}, {STEPS} steps", "report: 244 units raised, more than 93 % of them with later layers"]  # fmt: skip
    return Table("RQ1: One-MaXplore on the first convolution", ["measure", "value"], rows, notes)


def _second_table(bounds: Bounds, made: Mapping[str, Made], seeds: Images) -> Table:
    """RQ2: does Topk raise more units than One, and does its change spread wider?"""
    counts = {name: bounds.raised(some, seeds).sum(1).double() for name, some in made.items()}
    wide = {name: spread(some, seeds).double() for name, some in made.items()}
    rows = list[list[Cell]]()
    for name in made:
        more, wider = (delta(table[name], table["One"]) for table in (counts, wide))
        rows.append(
            [name, len(counts[name]), mean(counts[name]), more, mean(wide[name], scale=100), wider]
        )
    columns = [
        "form",
        "pictures",
        "units raised a picture",
        "delta to One",
        "values changed, %",
        "delta to One",
    ]
    return Table(
        "RQ2: units raised, and how widely the change spreads", columns, rows,
        [f"k = {K}; units of all layers; per filter is the code, per layer the text", "claim: Topk raises more, and more globally"],
    )  # fmt: skip


def _third_table(bounds: Bounds, made: Mapping[str, Made], seeds: Images, here: Trio) -> Table:
    """RQ3: Layer-SNAC of what is found."""
    names = bounds.selection.names[1:]
    base = next(name for name in made if "code's" in name)
    tables = {name: bounds.shares(bounds.raised(some, seeds)) for name, some in made.items()}
    rows = list[list[Cell]]()
    for name, shares in tables.items():
        found = made[name]
        cells = [f"{mean(shares[layer], scale=100)}; var {1e4 * float(shares[layer].var()):.3g}" if len(found.x) > 1 else None for layer in names]  # fmt: skip
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
        "RQ3: Layer-SNAC (mean over pictures in %, variance in squared percent)",
        ["method", "seeds", "pictures", *names, "delta to DeepXplore, code's setting"], rows,
        ["report: Multi-Topk has the higher mean and the larger variance; its code ran DeepXplore with other settings",
            "black squares of the code's setting can only darken what networks see here; its own pixels went down to -10", *here.notes],
    )  # fmt: skip


def _sweep_table(bounds: Bounds, swept: Mapping[int, Made], seeds: Images, judge: Subject) -> Table:
    rows = list[list[Cell]]()
    for k, made in swept.items():
        raised = bounds.raised(made, seeds).sum(1).double()
        kept = probabilities(judge, made.x).argmax(1) == seeds.y[made.seed]
        rows.append(
            [
                k,
                mean(raised),
                mean(spread(made, seeds), scale=100),
                mean(distance(made, seeds)),
                share(kept),
            ]
        )
    columns = ["k", "units raised a picture", "values changed, %", "L2", "label kept"]
    note = "label kept: a LeNet-5 trained from other initial weights, which no walk ever asked, still sees the seed's label"
    return Table("k against validity: Topk-MaXplore, per filter", columns, rows, [note])


def _independent(here: Trio, bench: Bench) -> Subject:
    net, _ = trained_classifier("lenet5", here.train, here.test, seed=1, device=bench.device)
    return Subject(net, classes=here.test.classes, name="independent", device=bench.device)


def _pictures(
    bench: Bench,
    bounds: Bounds,
    one: Made,
    top: Mapping[str, Made],
    multi: Mapping[str, Made],
    few: Images,
    many: Images,
) -> list[str]:
    def panel(made: Made, seeds: Images) -> dict[str, Sequence[float]]:
        shares = bounds.shares(bounds.raised(made, seeds))
        return {name: (100 * value).tolist() for name, value in list(shares.items())[1:]}

    def shown(made: Made, seeds: Images) -> dict[str, Tensor]:
        rows = torch.linspace(0, max(len(made.x) - 1, 0), min(8, len(made.x))).long()
        return {"seed": seeds.x[made.seed[rows]], "made": made.x[rows]}

    first = {
        "One": panel(one, few),
        **{f"Topk, per {per}": panel(made, few) for per, made in top.items()},
    }
    third = {name: panel(made, many) for name, made in multi.items() if len(made.x)}
    walks = {f"One: {key}": value for key, value in shown(one, few).items()}
    walks |= {f"Topk: {key}": value for key, value in shown(top["filter"], few).items()}
    walks |= {
        f"{n}: {key}": v
        for n, made in multi.items()
        if len(made.x)
        for key, v in shown(made, many).items()
    }
    return [
        figures.boxes(bench.out / "layers-one-topk.png", first, y="Layer-SNAC of a picture, %"),
        figures.boxes(bench.out / "layers-multi.png", third, y="Layer-SNAC of a picture, %"),
        figures.images(bench.out / "pictures.png", walks),
    ]
