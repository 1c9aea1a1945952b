"""The smallest change: each failing finding moved back toward its seed as far as it still fails."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.conditions.worst import bisected
from hardcase.errors import HardcaseError
from hardcase.oracles import MIN_MARGIN
from hardcase.randomness import Rng, keys_of
from hardcase.runs.folder import Packed, Store, pack_deltas, refuse_used
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.runs.tables import FINDINGS, SPENT, findings_table, read_groups, to_parquet
from hardcase.spaces.appearance import Appearance
from hardcase.statistics import count
from hardcase.suite.replay import column, failing_findings
from hardcase.tensors import chunks, from_bytes, margin, per_row, to_bytes, to_grid
from hardcase.types import Findings, Images, Model, Seeds, Space

STEPS = 12
"""Halvings of each way back: the last step is below a four-thousandth of it."""
TOGETHER = 2**22
"""Numbers of the images that are moved back at a time: 27 photographs of 224 pixels."""

Way = Callable[[Float[Tensor, " m"], Int[Tensor, " m"]], Float[Tensor, "m c h w"]]
"""The images at shares (0: seed, 1: finding) of the ways of these rows."""
Ask = Callable[
    [Tensor, Int[Tensor, " m"]], tuple[Bool[Tensor, " m"], Int[Tensor, " m"], Float[Tensor, " m"]]
]
"""Where images fail (rows are their failures), what is answered, and how surely."""


@dataclass(frozen=True, slots=True)
class FailingFindings:
    """Failures of a run with their seeds."""

    table: pa.Table
    x: UInt8[Tensor, "t c h w"]
    seed_x: UInt8[Tensor, "t c h w"]
    expected: Int[Tensor, " t"]
    place: Int[Tensor, " t"]

    @staticmethod
    def read(run: Run, kept: Sequence[int], table: pa.Table) -> FailingFindings:
        """Those of the rows `kept`, which are `table`."""
        place = [run.seed_rows[name] for name in table["original"].to_pylist()]
        expected = column(table, "expected").long()
        images = (run.images(kept), run.seed_images(place))
        return FailingFindings(table, *images, expected, torch.tensor(place))


@dataclass(frozen=True, slots=True)
class CodeWay:
    """The straight lines in a space from where the search began to the codes of failures.

    `given` are the failures whose code still gives the stored image."""

    space: Space
    origin: Seeds
    end: Tensor
    given: Bool[Tensor, " t"]
    batch: int

    @staticmethod
    def of(tests: FailingFindings, space: Space, origin: Seeds, batch: int) -> CodeWay:
        codes = tests.table["code"].to_pylist()
        has_code = torch.tensor([bool(code) for code in codes], dtype=torch.bool)
        end = origin.z.clone()
        codes_present = [code for code in codes if code]
        if codes_present:
            end[has_code] = torch.tensor(codes_present, device=end.device).reshape(
                end[has_code].shape
            )
        way = CodeWay(space, origin, end, has_code, batch)
        coded = has_code.nonzero().squeeze(1)
        if len(coded):
            same = to_bytes(way(torch.ones(len(coded)), coded)) == tests.x[coded]
            has_code[coded] = same.flatten(1).all(1)
        return way

    def at(self, share: Tensor, own: Int[Tensor, " m"]) -> Tensor:
        """The codes at these shares."""
        begin, end = self.origin.z[own], self.end[own]
        return begin + per_row(share.to(end.device), end) * (end - begin)

    def __call__(self, share: Tensor, own: Int[Tensor, " m"]) -> Tensor:
        images = []
        for part in chunks(len(own), self.batch):
            here = self.origin.take(own[part].to(self.end.device))
            z = self.space.project(self.at(share[part], own[part]), here)
            images.append(to_grid(self.space.decode(z, here)).detach().cpu())
        return torch.cat(images)


@dataclass(frozen=True, slots=True)
class MovedBack:
    """Findings after they were moved; `worded`: those whose `code` says in words what is left."""

    x: Float[Tensor, "t c h w"]
    code: Tensor | None
    worded: Bool[Tensor, " t"]
    failing: Bool[Tensor, " t"]
    queries: int


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
    """A new run in `out` whose failures are those of `run`, moved back: by bisection in `space`,
    then in pixels.

    Failing is not monotone along the way; every halving keeps an image that does fail.
    `space` is used for failures that store their code, where that still gives the stored image. In
    a space of appearance, kinds of change that are not needed are removed first, in order from the
    mildest on, and the way ends in the space: words can describe the rest (`Run.changes`). `seeds`
    are the run's images, if they have more context than their pixels.

    Args:
        run: The run whose failures are moved back.
        subject: The network under test.
        out: The new run folder.
        space: Where the first bisection happens; pixels alone without it.
        seeds: The originals, where the run cannot load them.
        steps: Bisection steps.
        batch: Images per call of the network; changes no result.

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
        raise HardcaseError(
            "shrink moves failures of classifiers back; this run tests claims.",
            "Its search has halved the way back already.",
        )
    rows, table = failing_findings(run, "shrink")
    size = max(1, TOGETHER // run.images(rows[:1]).numel())
    failing = queries = 0
    with tempfile.TemporaryDirectory(prefix="hardcase-shrink-") as place:
        files = list[Path]()
        for part in chunks(len(rows), size):
            tests = FailingFindings.read(run, rows[part], table[part])
            ask = _asker(subject, tests.expected, batch)
            way = None
            if space is not None and space.keeps_code:
                way = CodeWay.of(tests, space, _origin(tests, space, seeds, subject.device), batch)
            moved = _moved_back(tests, way, ask, steps)
            table_of_moved = _table(run, tests, moved, ask)
            files.append(Path(place) / f"{len(files)}.parquet")
            files[-1].write_bytes(to_parquet(table_of_moved))
            failing += int(moved.failing.sum())
            queries += moved.queries + len(table_of_moved)
        if not failing:
            raise HardcaseError(
                f"{subject.name} fails none of the {len(rows)} stored failures.",
                "There is nothing to move back.",
                fix=(
                    "the model that the run was made with; hardcase replay shows what another one"
                    " answers"
                ),
            )
        return _stored(run, table, files, out, queries, failing)


def _asker(subject: Model, expected: Int[Tensor, " t"], batch: int) -> Ask:
    def ask(x: Tensor, rows: Int[Tensor, " m"]) -> tuple[Tensor, Tensor, Tensor]:
        with torch.inference_mode():
            parts = [
                subject(x[part].to(subject.device)).logits.cpu() for part in chunks(len(x), batch)
            ]
        p = torch.cat(parts).clone().softmax(1)
        return margin(p, expected[rows]) >= MIN_MARGIN, p.argmax(1), p.amax(1)

    return ask


def _moved_back(tests: FailingFindings, way: CodeWay | None, ask: Ask, steps: int) -> MovedBack:
    """Findings that fail, moved along the ways of their codes, then in pixels unless words say
    where they are."""
    x = from_bytes(tests.x)
    failing, _, _ = ask(x, torch.arange(len(x)))
    queries = len(x)
    worded = torch.zeros(len(x), dtype=torch.bool)
    code = None
    if way is not None and bool(way.given.any()):
        with torch.no_grad():
            x, used = _along_codes(x, way, (failing & way.given).nonzero().squeeze(1), ask, steps)
        queries += used
        if isinstance(way.space, Appearance):
            worded = way.given
            code = way.end.flatten(1).cpu()
    # In a space of appearance the way ends there: a further step in pixels would leave the space,
    # and words would describe another image.
    rows = (failing & ~worded).nonzero().squeeze(1)
    seed = from_bytes(tests.seed_x)

    def straight(share: Tensor, own: Int[Tensor, " m"]) -> Tensor:
        return to_grid(seed[own] + per_row(share, x) * (x[own] - seed[own]))

    if len(rows):
        x, _, used = _bisect(straight, x, rows, ask, steps)
        queries += used
    return MovedBack(x, code, worded, failing, queries)


def _along_codes(
    x: Tensor, way: CodeWay, own: Int[Tensor, " r"], ask: Ask, steps: int
) -> tuple[Tensor, int]:
    """`x` with the failures `own` moved along their ways, which end there from then on; and the
    queries it took."""
    if not len(own):
        return x, 0
    tried = 0
    if isinstance(way.space, Appearance):
        tried = _take_away(way.space, way, own, ask)
    x = x.index_copy(0, own, way(torch.ones(len(own)), own))
    x, share, used = _bisect(way, x, own, ask, steps)
    way.end[own] = way.at(share, own)
    return x, tried + used


def _bisect(
    way: Way, x: Tensor, rows: Int[Tensor, " r"], ask: Ask, steps: int
) -> tuple[Tensor, Float[Tensor, " r"], int]:
    """`x` with `rows` replaced by the failing image nearest to the start of their ways that halving
    finds, and at which share of its way each lies."""
    best = x[rows].clone()

    def fails(share: Float[Tensor, " r"]) -> Bool[Tensor, " r"]:
        images = way(share, rows)
        failing, _, _ = ask(images, rows)
        # Failing need not be monotone along the way, so the last failing image is stored, not the
        # image at the final share.
        best.copy_(torch.where(per_row(failing, images), images, best))
        return failing

    _, high, _ = bisected(fails, torch.ones(len(rows)), steps)
    return x.index_copy(0, rows, best), high, steps * len(rows)


def _origin(
    tests: FailingFindings, space: Space, seeds: Images | None, device: torch.device
) -> Seeds:
    """Where the search of every failure began."""
    names = tests.table["original"].to_pylist()
    x = from_bytes(tests.seed_x.to(device))
    y = tests.expected.to(device)
    z, context = space.encode(x, y, Rng(0, "space", keys_of(names).to(device)))
    known: dict[str, Tensor] = {}
    if seeds is not None and seeds.context:
        rows = {name: row for row, name in enumerate(seeds.id)}
        positions = torch.tensor([rows[name] for name in names])
        known = {name: value[positions].to(device) for name, value in seeds.context.items()}
    return Seeds(z, x, y, tests.place.to(device), {**known, **context})


def _take_away(space: Appearance, way: CodeWay, own: Int[Tensor, " r"], ask: Ask) -> int:
    """Groups of coordinates without which a failure still fails, set to 0 where its way ends;
    returns the queries it took."""
    end = way.end
    place = own.to(end.device)
    order = space.severity(end[place]).argsort(1)  # r g, the mildest first
    share = torch.ones(len(own))
    for turn in range(order.shape[1]):
        before = end[place]
        mask = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, turn, None], True)
        # Each group is tried on what the earlier turns left: a single pass, so the result need not
        # be the smallest set.
        end[place] = space.removed(before, mask)
        fails, _, _ = ask(way(share, own), own)
        end[place] = torch.where(per_row(fails.to(end.device), before), end[place], before)
    return order.shape[1] * len(own)


def _table(run: Run, tests: FailingFindings, moved: MovedBack, ask: Ask) -> pa.Table:
    """The moved failures as a run stores them."""
    x = moved.x
    _, predicted, confidence = ask(x, torch.arange(len(x)))
    image = to_bytes(x)
    zeros = torch.zeros(len(x), dtype=torch.int64)
    nothing = torch.zeros(len(x), 0)
    findings = Findings(
        seed=tests.place,
        x=image,
        kind=zeros,
        expected=tests.expected,
        predicted=predicted,
        peer_predicted=nothing.long(),
        confidence=confidence,
        score=column(tests.table, "score"),
        distance=(from_bytes(image) - from_bytes(tests.seed_x)).flatten(1).square().sum(1).sqrt(),
        queries=column(tests.table, "queries"),
        code=nothing if moved.code is None else moved.code,
        witnessed=zeros.bool(),
        witness_margin=zeros.float(),
    )
    ids = tests.table["original"].to_pylist()
    method = f"{run.record['method']}+shrink"
    table = findings_table(findings, tests.seed_x, ids, method=method, oracle="label")
    said = zip(table["code"].to_pylist(), moved.worded.tolist())
    codes = pa.array([code if worded else None for code, worded in said], table["code"].type)
    return table.set_column(table.column_names.index("code"), table.field("code"), codes)


def _stored(
    run: Run,
    before: pa.Table,
    parts: Sequence[Path],
    out: Path,
    queries: int,
    failing: int,
) -> Run:
    """The moved failures, which lie in `parts`, as a new run: the same seeds, nothing judged
    yet."""
    facts = [name for name in FINDINGS if name != "image"]
    # kept while images came and went, they would leave gaps in memory that nothing fits into
    table = pa.concat_tables(one for part in parts for one in read_groups(part, FINDINGS, facts))
    needed = None
    codes = [code for code in table["code"].to_pylist() if code]
    if codes:  # how many failures still need each kind of change
        space = Appearance.from_record(run.record["space"])
        left = (space.severity(torch.tensor(codes)) > 0).sum(0).tolist()
        needed = {group.name: count for group, count in zip(space.groups, left, strict=True)}
    record: Mapping[str, Any] = {
        **run.record,
        **count(run.seeds.to_pylist(), table.select(["id", "original", "kind"]).to_pylist(), None),
        **dict.fromkeys(("judge", "witnesses", "verdicts")),
        "method": table["method"][0].as_py(),
        "shards": len(parts),
        "shrink": {
            "from": str(run.folder),
            "tests": len(table),
            "failing": failing,
            "queries": queries,
            "l2_before": float(column(before, "l2").median()),
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
    for number, part in enumerate(parts):
        spent = to_parquet(spent_on if number == 0 else spent_on.slice(0, 0))
        store.put(number, Packed(part.read_bytes(), spent, pack_deltas({})))
    return Run(out)
