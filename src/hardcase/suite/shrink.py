"""The smallest change: each failing finding moved back toward its seed as far as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.conditions.worst import bisected
from hardcase.errors import Problem
from hardcase.oracles import MIN_MARGIN
from hardcase.randomness import Rng, keys_of
from hardcase.runs.folder import Packed, Store, pack_deltas, refuse_used
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.runs.tables import SPENT, findings_table, to_parquet
from hardcase.spaces.appearance import Appearance
from hardcase.statistics import count
from hardcase.suite.replay import column, failing_findings
from hardcase.tensors import chunks, from_bytes, margin, per_row, to_bytes, to_grid
from hardcase.types import Findings, Images, Model, Seeds, Space

STEPS = 12
"""Halvings of each way back: the last step is below a four-thousandth of it."""

Way = Callable[[Float[Tensor, " m"], Int[Tensor, " m"]], Float[Tensor, "m c h w"]]
"""The images at given shares (0: seed, 1: finding) of the ways of given rows."""


@dataclass(frozen=True, slots=True)
class FailingFindings:
    """The failing findings of a run beside their seeds."""

    table: pa.Table
    x: UInt8[Tensor, "t c h w"]
    seed_x: UInt8[Tensor, "t c h w"]
    expected: Int[Tensor, " t"]
    place: Int[Tensor, " t"]


def shrink(
    run: Run,
    subject: Model,
    out: Path,
    *,
    space: Space | None = None,
    seeds: Images | None = None,
    steps: int = STEPS,
    batch: int = 256,
) -> Run:
    """A new run in `out` whose findings are those of `run`, moved back: by bisection in `space`,
    then in pixels.

    Failing is not monotone along the way; what is kept at every halving is an image that does fail.
    `space` is used for findings that store their code, where that still gives the stored image. In
    a space of appearance, kinds of change that are not needed are taken away first, one after the
    other from the mildest on, and the way ends in the space: what is left can be said in words
    (`Run.changes`). `seeds` are the images that the run began with, if more is known of them than
    their pixels.

    Args:
        run: The run whose findings are moved back.
        subject: The network under test.
        out: The new run folder.
        space: Where the first bisection happens; pixels alone without it.
        seeds: The seeds, where the run cannot load them.
        steps: Bisection steps.
        batch: Images that the network is given in one call; changes no result.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> from pathlib import Path
        >>> small = hc.shrink(run, toy_subject(), Path(tempfile.mkdtemp()) / "small")
        >>> len(small.findings) == len(run.findings)
        True
    """
    refuse_used(out)
    if run.record.get("claims"):
        raise Problem(
            "shrink moves findings of classifiers back; this run tests claims.",
            "Its search has halved the way back already.",
        )
    kept, table = failing_findings(run, "shrink")
    place = [run.seed_rows[name] for name in table["seed"].to_pylist()]
    expected = column(table, "expected").long()
    tests = FailingFindings(
        table, run.images(kept), run.seed_images(place), expected, torch.tensor(place)
    )
    ask = _asker(subject, tests.expected, batch)
    x = from_bytes(tests.x)
    failing, _, _ = ask(x, torch.arange(len(x)))
    if not bool(failing.any()):
        raise Problem(
            f"{subject.name} fails none of the {len(x)} stored findings.",
            "There is nothing to move back.",
            fix=(
                "the model that the run was made with; hardcase replay shows what another one"
                " answers"
            ),
        )
    rows = failing.nonzero().squeeze(1)
    spent = len(x)
    code = None
    if space is not None and space.keeps_code:
        origin = _origin(tests, space, seeds, subject.device)
        x, code, used = _in_space(tests, x, rows, space, origin, ask, steps, batch)
        spent += used
    if code is None:
        seed = from_bytes(tests.seed_x)
        x, _, used = _bisect(
            lambda share, own: to_grid(seed[own] + per_row(share, x) * (x[own] - seed[own])),
            x,
            rows,
            ask,
            steps,
        )
        spent += used
    return _stored(run, tests, x, code, ask, out, spent=spent, failing=int(failing.sum()))


Ask = Callable[
    [Tensor, Int[Tensor, " m"]], tuple[Bool[Tensor, " m"], Int[Tensor, " m"], Float[Tensor, " m"]]
]


def _asker(subject: Model, expected: Int[Tensor, " t"], batch: int) -> Ask:
    """Where images fail (`rows` are their findings), what is answered, and how surely."""

    def ask(x: Tensor, rows: Int[Tensor, " m"]) -> tuple[Tensor, Tensor, Tensor]:
        with torch.inference_mode():
            parts = [
                subject(x[part].to(subject.device)).logits.cpu() for part in chunks(len(x), batch)
            ]
        p = torch.cat(parts).clone().softmax(1)
        return margin(p, expected[rows]) >= MIN_MARGIN, p.argmax(1), p.amax(1)

    return ask


def _bisect(
    way: Way, x: Tensor, rows: Int[Tensor, " r"], ask: Ask, steps: int
) -> tuple[Tensor, Float[Tensor, " r"], int]:
    """`x` with `rows` replaced by the failing image nearest to the start of their ways that halving
    finds, and at which share of its way each lies."""
    best = x[rows].clone()

    def fails(share: Float[Tensor, " r"]) -> Bool[Tensor, " r"]:
        made = way(share, rows)
        failing, _, _ = ask(made, rows)
        best.copy_(torch.where(per_row(failing, made), made, best))
        return failing

    _, high, _ = bisected(fails, torch.ones(len(rows)), steps)
    return x.index_copy(0, rows, best), high, steps * len(rows)


def _origin(
    tests: FailingFindings, space: Space, seeds: Images | None, device: torch.device
) -> Seeds:
    """Where the search of every finding began."""
    names = tests.table["seed"].to_pylist()
    x = from_bytes(tests.seed_x.to(device))
    y = tests.expected.to(device)
    z, context = space.encode(x, y, Rng(0, "space", keys_of(names).to(device)))
    known: dict[str, Tensor] = {}
    if seeds is not None and seeds.context:
        rows = {name: row for row, name in enumerate(seeds.id)}
        own = torch.tensor([rows[name] for name in names])
        known = {name: value[own].to(device) for name, value in seeds.context.items()}
    return Seeds(z, x, y, tests.place.to(device), {**known, **context})


def _in_space(
    tests: FailingFindings,
    x: Tensor,
    rows: Int[Tensor, " r"],
    space: Space,
    origin: Seeds,
    ask: Ask,
    steps: int,
    batch: int,
) -> tuple[Tensor, Tensor | None, int]:
    """Back along the straight line between the codes, for findings whose code still gives their
    image; and the codes, where all do and the space has words for them."""
    codes = tests.table["code"].to_pylist()
    coded = rows[torch.tensor([bool(codes[i]) for i in rows.tolist()], dtype=torch.bool)]
    if not len(coded):
        return x, None, 0
    end = origin.z.clone()
    end[coded] = torch.tensor([codes[i] for i in coded.tolist()], device=end.device).reshape(
        end[coded].shape
    )

    def way(share: Tensor, own: Int[Tensor, " m"]) -> Tensor:
        parts = []
        for part in chunks(len(own), batch):
            here = origin.take(own[part].to(end.device))
            moved = here.z + per_row(share[part].to(end.device), here.z) * (end[own[part]] - here.z)
            parts.append(to_grid(space.decode(space.project(moved, here), here)).detach().cpu())
        return torch.cat(parts)

    with torch.no_grad():
        same = (to_bytes(way(torch.ones(len(coded)), coded)) == tests.x[coded]).flatten(1).all(1)
        own = coded[same]
        if not len(own):
            return x, None, 0
        tried = 0
        said = False
        if isinstance(space, Appearance) and len(own) == len(x):
            tried = _take_away(space, way, end, own, ask)
            said = True
        x = x.index_copy(0, own, way(torch.ones(len(own)), own))
        moved, share, used = _bisect(way, x, own, ask, steps)
    end[own] = origin.z[own] + per_row(share.to(end.device), end) * (end[own] - origin.z[own])
    return moved, end.flatten(1).cpu() if said else None, tried + used


def _take_away(
    space: Appearance, way: Way, end: Float[Tensor, "t d"], own: Int[Tensor, " r"], ask: Ask
) -> int:
    """Groups of coordinates without which a finding still fails, set to 0 in `end`; returns the
    queries it took."""
    place = own.to(end.device)
    order = space.severity(end[place]).argsort(1)  # r g, the mildest first
    whole = torch.ones(len(own))
    for turn in range(order.shape[1]):
        before = end[place]
        mask = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, turn, None], True)
        end[place] = space.removed(before, mask)
        fails, _, _ = ask(way(whole, own), own)
        end[place] = torch.where(per_row(fails.to(end.device), before), end[place], before)
    return order.shape[1] * len(own)


def _stored(
    run: Run,
    tests: FailingFindings,
    x: Tensor,
    code: Tensor | None,
    ask: Ask,
    out: Path,
    *,
    spent: int,
    failing: int,
) -> Run:
    """The moved findings as a run of its own: the same seeds, one part, nothing judged yet."""
    _, predicted, confidence = ask(x, torch.arange(len(x)))
    image = to_bytes(x)
    change = (from_bytes(image) - from_bytes(tests.seed_x)).flatten(1)
    whole = torch.zeros(len(x), dtype=torch.int64)
    nothing = torch.zeros(len(x), 0)
    findings = Findings(
        seed=tests.place,
        x=image,
        kind=whole,
        expected=tests.expected,
        predicted=predicted,
        peer_predicted=nothing.long(),
        confidence=confidence,
        score=column(tests.table, "score"),
        distance=change.square().sum(1).sqrt(),
        queries=column(tests.table, "queries"),
        code=nothing if code is None else code,
        witnessed=whole.bool(),
        witness_margin=whole.float(),
    )
    ids = tests.table["seed"].to_pylist()
    method = f"{run.record['method']}+shrink"
    table = findings_table(findings, tests.seed_x, ids, method=method, oracle="label")
    needed = None
    if code is not None:  # how many findings still need each kind of change
        space = Appearance.from_record(run.record["space"])
        left = (space.severity(code) > 0).sum(0).tolist()
        needed = {group.name: count for group, count in zip(space.groups, left, strict=True)}
    record: Mapping[str, Any] = {
        **run.record,
        **count(run.seeds.to_pylist(), table.select(["id", "seed", "kind"]).to_pylist(), None),
        **dict.fromkeys(("judge", "witnesses", "verdicts")),
        "method": method,
        "shards": 1,
        "shrink": {
            "from": str(run.folder),
            "tests": len(x),
            "failing": failing,
            "queries": spent + len(x),
            "l2_before": float(column(tests.table, "l2").median()),
            "l2_after": float(column(table, "l2").median()),
            "needed": needed,
        },
    }
    then = Identity.from_json(run.record.get("identity"))
    if then is not None:
        moved = Identity({**then.parts, "shrunk from": then.digest})
        record = {**record, "identity": moved.to_json()}
    store = Store.create(out, record, run.store.config(), run.store.seed_groups())
    spent_on = run.seeds.select([*SPENT])
    store.put(0, Packed(to_parquet(table), to_parquet(spent_on), pack_deltas({})))
    return Run(out)
