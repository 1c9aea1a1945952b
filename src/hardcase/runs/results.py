"""A run that was stored, as a value: its record, its findings, its summary; the claims on its seeds
at their original positions, on its findings at their new positions.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hardcase import statistics, tensors
from hardcase.campaign.claims import CLAIM_KINDS, Claims, image_of
from hardcase.data.files import ImageSet
from hardcase.environment import one_line
from hardcase.errors import HardcaseError
from hardcase.runs.files import file_size_and_crc
from hardcase.runs.folder import Store
from hardcase.runs.identity import Identity, run_digest
from hardcase.runs.tables import VERDICTS, read
from hardcase.runs.verify import CLAIMS, Verification, read_side_file, verify, write_side_file
from hardcase.spaces.appearance import Appearance
from hardcase.statistics import Rate
from hardcase.tensors import decode, encode_all
from hardcase.types import KINDS, ClassNames
from hardcase.wording.checks import accepted_between, against_people_in_words, people_said
from hardcase.wording.search import kinds_in_words, settings_in_words

if TYPE_CHECKING:
    import pandas as pd

BATCH = 2**16
"""Seeds that are counted at a time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A stored finding with its seed."""

    row: dict[str, Any]
    seed: dict[str, Any]
    classes: ClassNames

    def __str__(self) -> str:
        names = self.classes.pair(self.row["expected"], self.row["predicted"])
        size = f"L2 {self.row['l2']:.2f}"
        return f"{self.row['id']}: {names} ({self.row['confidence']:.2f}), {size}"

    def __repr__(self) -> str:
        return f"Finding({self}, {self.row['kind']}, from seed {self.row['original']!r})"

    def show(self) -> Any:
        """Seed, finding and difference as a figure (matplotlib)."""
        from matplotlib.figure import Figure

        seed, changed = (
            tensors.decode(row["image"]["bytes"]).float() / 255 for row in (self.seed, self.row)
        )
        figure = Figure(figsize=(6, 2.3))
        images = (seed, changed, (changed - seed) / 2 + 0.5)
        titles = (
            self.classes[self.row["expected"]],
            self.classes[self.row["predicted"]],
            "difference",
        )
        for axis, image, title in zip(figure.subplots(1, 3), images, titles):
            axis.imshow(image.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
            axis.set(title=title, xticks=[], yticks=[])
        return figure


class Run:
    """A run folder, readable also while it is unfinished.

    Args:
        folder: The run folder, or what has it open.
    """

    def __init__(self, folder: str | Path | Store) -> None:
        self.store = folder if isinstance(folder, Store) else Store.open(Path(folder))
        self.folder = self.store.folder
        self.record = self.store.record()
        self.store.run = run_digest(self.record)
        self.store.ledger.read()

    def __repr__(self) -> str:
        about = "{method} on {model}, {data}".format_map(defaultdict(lambda: "?", self.record))
        state = "complete" if self.record.get("complete") else "unfinished"
        return f"Run({str(self.folder)!r}: {about}; {len(self):,} findings, {state})"

    def __str__(self) -> str:
        return f"{self!r}\n{self.summary()}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the funnel; ``run[0].show()`` draws a finding."""
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    @cached_property
    def verification(self) -> Verification:
        """The checks of the folder: against its checksums and its beginning."""
        return verify(self.store)

    @cached_property
    def findings(self) -> pa.Table:
        """All findings without their images (`images`), in the order of their seeds' shards."""
        findings = self.store.findings()
        ids = self.seeds["id"].combine_chunks()
        lost = findings.filter(pc.invert(pc.is_in(findings["original"], value_set=ids)))
        if len(lost):
            raise self._damaged(f"its table of images lacks {lost['original'][0].as_py()[:80]!r}")
        self._check_labels(findings["expected"])
        if not {*findings["kind"].unique().to_pylist()} <= {*KINDS}:
            raise self._damaged("its failures are of unknown kinds")
        for name in ("code", "peer_predicted"):
            if len(pc.unique(pc.list_value_length(findings[name]).drop_null())) > 1:
                raise self._damaged(f"column {name} of its failures has rows of different lengths")
        return findings

    def _damaged(self, why: str) -> HardcaseError:
        return HardcaseError(f"{self.folder} is damaged: {why}.")

    @cached_property
    def seeds(self) -> pa.Table:
        """Every seed with what became of it, without its image (`seed_images`)."""
        rows = self.store.seeds()
        self._check_labels(rows["label"])
        return rows

    def images(self, rows: Sequence[int] | None = None) -> UInt8[Tensor, "r c h w"]:
        """The images of findings, by their rows in `findings`; of all if None."""
        return tensors.decode_all(self.store.finding_images(_rows(rows, len(self.findings))))

    def stored_images(self, rows: Sequence[int] | None = None) -> list[bytes]:
        """The same as they are stored: PNG."""
        return self.store.finding_images(_rows(rows, len(self.findings)))

    def seed_images(self, rows: Sequence[int] | None = None) -> UInt8[Tensor, "r c h w"]:
        """The images of seeds, by their rows in `seeds`; of all if None."""
        return tensors.decode_all(self.store.seed_images(_rows(rows, len(self.seeds))))

    def stored_seed_images(self, rows: Sequence[int] | None = None) -> list[bytes]:
        """The same as they are stored: PNG."""
        return self.store.seed_images(_rows(rows, len(self.seeds)))

    @cached_property
    def seed_rows(self) -> dict[str, int]:
        """Which row of `seeds` a seed is, by its name."""
        return {name: row for row, name in enumerate(self.seeds["id"].to_pylist())}

    def _check_labels(self, labels: pa.ChunkedArray) -> None:
        """Refuse numbers that no class of the data has; what a network answers may lie beyond."""
        classes = len(self.record.get("classes") or ()) or math.inf
        if len(labels) and not 0 <= pc.min(labels).as_py() <= pc.max(labels).as_py() < classes:
            raise self._damaged("it has labels of classes that its data lacks")

    @cached_property
    def verdicts(self) -> dict[str, dict[str, Any]] | None:
        """The judge's verdicts, by finding; None if the run is not judged, or the file does not
        match the verdicts' checksum."""
        parts = sorted((self.folder / "verdicts").glob("part-*.parquet"))
        if not parts:
            return None
        checksums = self.record.get("verdicts") or {}
        if any(file_size_and_crc(part) != checksums.get(part.name) for part in parts):
            return None
        tables = [read(part, VERDICTS).to_pylist() for part in parts]
        return {row["id"]: row for rows in tables for row in rows}

    @cached_property
    def judged_by(self) -> Identity | None:
        """The identity of the judge whose verdicts these are; None if nobody judged."""
        return Identity.from_json((self.record.get("judge") or {}).get("identity"))

    @cached_property
    def classes(self) -> ClassNames:
        """Names of the data's classes, which name any other output of the network by its number."""
        if "classes" not in self.record:
            raise self._damaged("run.json names no classes")
        return ClassNames(map(one_line, map(str, self.record["classes"])))

    def rate(self, hits: int | None, total: int | None) -> Rate | None:
        """A share of seeds, its interval by the images behind them; None if it was not counted."""
        if hits is None or total is None:
            return None
        if not self.record.get("claims"):
            return Rate(hits, total)
        names = self.seeds["id"].to_pylist()  # claims about one image stand and fall together
        images = len({image_of(name) for name in names}) / max(len(names), 1)
        return Rate(hits, total, max(1, round(total * images)))

    def counts(self) -> dict[str, dict[str, int | None]]:
        """`funnel`, `skipped` and `findings` as they stand now."""
        return self.counted([self.seeds], self.findings)

    def counted(
        self, seeds: Iterable[pa.Table], findings: pa.Table
    ) -> dict[str, dict[str, int | None]]:
        """The same of seeds in parts; only the current part is in memory."""
        rows = (
            row
            for part in seeds
            for batch in part.select(["status", "evaluated", "failing"]).to_batches(BATCH)
            for row in batch.to_pylist()
        )
        return statistics.count(
            rows,
            findings.select(["id", "original", "kind", "witnessed"]).to_pylist(),
            self.verdicts,
            witnesses=bool(self.record.get("witnesses")),
            generated=self.record.get("generated_images"),
        )

    def changes(self) -> list[str | None]:
        """What was done to the seed of each finding, in words; None where the space has none."""
        codes = self.findings["code"].to_pylist()
        whole = self.codes()
        if whole is None:
            return [None] * len(codes)
        from hardcase.spaces.appearance import Appearance

        space = Appearance.from_record(self.record["space"])
        return [
            words if code else None
            for code, words in zip(codes, space.words(whole) if len(codes) else [])
        ]

    def codes(self) -> Float[Tensor, "t d"] | None:
        """The codes of all findings in the run's space of appearance; None in any other space."""
        record = self.record.get("space") or {}
        codes = self.findings["code"].to_pylist()
        if not {"text", "shape"} <= record.keys() or not any(codes):
            return None
        from hardcase.spaces.appearance import Appearance

        space = Appearance.from_record(record)
        columns = record.get("columns", range(space.size))  # those of declared conditions
        strange = max(columns, default=0) >= space.size
        if strange or any(code and len(code) != len(columns) for code in codes):
            raise self._damaged(f"its failures have codes of another space than {record['text']}")
        full = torch.zeros(len(codes), space.size)
        for row, code in enumerate(codes):
            full[row, list(columns)] = torch.tensor(code or [0.0] * len(columns))
        return full

    def summary(self) -> str:
        """The funnel in words, each count with its denominator and 95 % interval."""
        counts = self.counts()["search_results"]
        attempted = counts["searched"] or 0
        images = f"{counts['images']} image{'s' * (counts['images'] != 1)}"
        claims = self.record.get("claims")
        usable = f"{counts['correctly_classified']} correctly classified"
        if claims:
            images = f"{counts['images']} claims about {claims['images']} images"
            usable = f"{counts['correctly_classified']} that the model makes"
        kinds = Counter(self.findings["kind"].to_pylist())
        settings = settings_in_words(self.record.get("options") or {})
        lines = [
            *(f"{self.record.get('method')}: {words}" for words in [settings] if words),
            f"{images}, {usable}, {attempted} searched; 95 % intervals in brackets",
            kinds_in_words(kinds),
        ]
        judged = self.verdicts is not None or not claims
        for step in ("failing", "witnessed"):
            if counts[step] is not None:
                lines.append(f"{step:>11}: {self.rate(counts[step], attempted)}")
        if not judged:
            return "\n".join(lines)
        lines.append(f"{'accepted':>11}: {accepted_between(counts) or 'not judged'}")
        if self.verdicts is not None:
            lines.append(
                f"{'':>13}by networks that took no part; {against_people_in_words(self.record)}"
            )
        small = sum(verdict.get("by") == "norm" for verdict in (self.verdicts or {}).values())
        if small:
            lines.append(
                f"    by norm: {small} of {len(self)} failures changed by at most 8/255, "
                "too little to change what they show"
            )
        clusters = counts["clusters"]
        lines.append(f"   clusters: {'not judged' if clusters is None else clusters}")
        people = self.record.get("people")
        if people:
            lines.append(f"     people: {people_said(people)}")
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """The findings without their images as a pandas frame."""
        try:
            return self.findings.to_pandas()
        except ModuleNotFoundError as error:
            raise HardcaseError(
                "a frame needs pandas, which is not installed.", fix="pip install 'hardcase[frame]'"
            ) from error

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: int) -> Finding:
        if not -len(self) <= index < len(self):
            raise IndexError(f"finding {index} of {len(self)}")
        index = index % len(self)
        row = self.findings.slice(index, 1).to_pylist()[0]
        place = self.seed_rows[row["original"]]
        seed = self.seeds.slice(place, 1).to_pylist()[0]
        [image], [start] = self.stored_images([index]), self.stored_seed_images([place])
        return Finding(
            row | {"image": {"bytes": image, "path": None}},
            seed | {"image": {"bytes": start, "path": None}},
            self.classes,
        )

    def __iter__(self) -> Iterator[Finding]:
        return (self[i] for i in range(len(self)))


def _rows(rows: Sequence[int] | None, count: int) -> Sequence[int]:
    return range(count) if rows is None else rows


def keep_claims(store: Store, images: ImageSet) -> None:
    """Store what is claimed of the seeds of a run, unless it is there."""
    claimed = images.images()
    claims = Claims.of(claimed)
    if claims is None or read_side_file(store, CLAIMS) is not None:
        return
    stored: dict[str, Any] = {}
    boxes = zip(claimed.id, claims.kind.tolist(), claims.box.tolist())
    stored["claims"] = {
        name: " ".join([CLAIM_KINDS[kind], *(f"{side:.9g}" for side in box)])
        for name, kind, box in boxes
    }
    if claims.mask.shape[1]:
        masks = encode_all(claims.mask[:, None] * 255)
        stored["masks"] = {
            name: base64.b64encode(mask).decode() for name, mask in zip(claimed.id, masks)
        }
    write_side_file(store, CLAIMS, stored)


def seed_claims(run: Run) -> Claims | None:
    """What is claimed of every seed of a run, in their order; None where they are classified."""
    if not run.record.get("claims"):
        return None
    stored = read_side_file(run.store, CLAIMS) or {}
    names = run.seeds["id"].to_pylist()
    try:
        rows = [_claim(stored["claims"][name]) for name in names]
        masks = torch.zeros(len(names), 0, 0, dtype=torch.uint8)
        if stored.get("masks"):
            masks = torch.stack([_mask(stored["masks"], name) for name in names])
    except (LookupError, TypeError, ValueError, RuntimeError, HardcaseError) as error:
        raise HardcaseError(
            f"{run.folder} does not say what its images claim: {CLAIMS} is damaged or missing.",
            fix=f"hardcase resume {run.folder}, which writes it anew",
        ) from error
    kind = torch.tensor([row[0] for row in rows])
    label = torch.from_numpy(run.seeds["label"].to_numpy().copy()).long()
    box = torch.tensor([row[1] for row in rows])
    return Claims(kind, label, box, masks, torch.ones_like(kind, dtype=torch.bool))


def _claim(text: str) -> tuple[int, list[float]]:
    kind, *sides = text.split(" ")
    box = [float(side) for side in sides]
    if len(box) != 4:
        raise ValueError(text)
    return CLAIM_KINDS.index(kind), box


def _mask(masks: Mapping[str, str], name: str) -> Tensor:
    return (decode(base64.b64decode(masks[name]))[0] > 0).byte()


def finding_claims(run: Run) -> Claims | None:
    """What is claimed of every finding: the claim of its seed, where the image moved it."""
    claims = seed_claims(run)
    if claims is None:
        return None
    rows = torch.tensor(
        [run.seed_rows[name] for name in run.findings["original"].to_pylist()]
    ).long()
    unmoved = claims.take(rows)
    code = run.codes()
    if code is None or not len(rows):
        return unmoved
    space = Appearance.from_record(run.record["space"])
    places = space.places(code)
    if places is None:
        return unmoved
    return unmoved.moved(places)
