"""What a run shows of a model, for those who meet the model elsewhere: a section of Markdown with
a picture, used by the model card of a hub, by a comment on a pull request and by release records.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Any

from hardcase.analysis.conditions import shown_samples
from hardcase.analysis.references import rate_difference
from hardcase.cache import write_atomically
from hardcase.environment import VERSION, one_line
from hardcase.errors import HardcaseError
from hardcase.runs.results import Run
from hardcase.suite.gate import Check, GateLimits, gate, limit_checks, outcome
from hardcase.tensors import decode
from hardcase.wording.checks import lost_in_words
from hardcase.wording.numbers import difference, percent, span
from hardcase.wording.summary import decide

PICTURE = "hardcase.png"
PAIRS = 4
"""Seeds that are shown beside what fails."""
EMPTY = "---\ntags:\n- hardcase\n---\n"
BEGIN, END = "<!-- hardcase -->", "<!-- /hardcase -->"
"""Between these a card is ours and is written anew; all else in it stays."""


def escaped(text: object) -> str:
    """Text that a run folder holds, as plain words on one line of Markdown."""
    return re.sub(r"([\\|`*_\[\]<>#])", r"\\\1", one_line(str(text)))


@dataclass(frozen=True, slots=True)
class CardContent:
    """What is told of a run."""

    run: Run
    limits: GateLimits | None = None
    baseline: Run | None = None

    def __post_init__(self) -> None:
        if not self.run.record.get("risk") or not self.run.record.get("conditions"):
            raise HardcaseError(
                f"{self.run.folder} has no failure rate under conditions; a card begins with it.",
                fix="hardcase run ... --conditions NAME",
            )

    @property
    def weights(self) -> str:
        """The digest of the model's weights; of a black box, that of what it is asked by."""
        hashes = self.run.record.get("hashes") or {}
        return str((hashes.get("parameters") or {}).get("model") or hashes.get("model"))

    def figures(self) -> Iterator[tuple[str, str, str, str]]:
        """Each figure as its name, its value, its 95 % interval and that of the baseline."""
        record = self.run.record
        before = self.baseline.record if self.baseline is not None else {}
        names = {
            "risk": "failure rate",
            "gap": "robustness gap",
            "unmodified": "error on unmodified images",
            "worst_case": "worst case, at least",
        }
        for key, name in names.items():
            known = _known(record, key)
            if known:
                bounds = _bounds(known)
                interval = f"{span(*bounds)} %" if bounds else "not known"
                yield name, percent(known["value"]), interval, _before(before, key)

    def conditions(self) -> Iterator[tuple[str, str, str]]:
        """Each declared condition with its range and what it adds to the failure rate."""
        record = self.run.record
        effects = {row["condition"]: row for row in record["risk"].get("effects") or ()}
        for name, declared in record["conditions"].items():
            if name in ("name", "table", "sampler"):
                continue
            effect = "no effect was seen"
            if name in effects:
                effect = difference(effects[name])
            yield name, str(declared), effect

    def difference(self) -> str:
        """How the failure rate compares with the baseline's, image by image; nothing without
        one.
        """
        if self.baseline is None:
            return ""
        seen = rate_difference(self.run, self.baseline)
        return (
            f"Failure rate minus the baseline's, image by image: {difference(seen)} over"
            f" {seen['images']:,} common images."
        )

    def statements(self) -> Iterator[str]:
        """What the figures do not say."""
        record = self.run.record
        risk = record["risk"]
        yield (
            f"Measured on {risk['images']:,} images of {record.get('data')}"
            f" ({record.get('split')}), {risk['samples']} random conditions each; intervals are for"
            " images like these."
        )
        yield "Nothing is said of conditions that were not declared, nor of other data."
        yield f"Labels: {lost_in_words(risk)}."
        if record.get("worst_case"):
            yield "The worst case is what a search found: another search may find more."
        for note in record.get("notes") or ():
            yield str(note)

    def outcome(self) -> tuple[str, list[Check]]:
        """What the limits come to, or the comparison with the baseline."""
        if self.baseline is None:
            found = limit_checks(self.run, self.limits)
            return decide(self.run.record, found).word.lower(), found
        found = gate(self.run, self.limits or GateLimits(), self.baseline)
        return outcome(found), found

    def section(self, *, heading: str, picture: str = "") -> str:
        """The whole as Markdown."""
        record = self.run.record
        said, found = self.outcome()
        lines = [heading, "", escaped(str(decide(record))), ""]
        if self.baseline is not None:
            lines += [escaped(self.difference()), ""]
        columns = ["figure", "value", "95 %"] + ["baseline"] * (self.baseline is not None)
        lines += markdown_table(columns, [row[: len(columns)] for row in self.figures()])
        if picture:
            lines += ["", f"![Images that the model gets wrong beside their originals]({picture})"]
        columns = ["condition", "declared", "adds to the failure rate"]
        lines += ["", *markdown_table(columns, list(self.conditions())), ""]
        lines += [f"**Limits: {said}.**", ""] if found else []
        lines += [f"- {check.outcome}: {escaped(check.text)}" for check in found]
        wanted = dict.fromkeys(check.decide for check in found if check.decide)
        lines += [f"- to decide: {escaped(one)}" for one in wanted]
        lines += ["", "How far this reaches:", ""]
        lines += [f"- {escaped(text)}" for text in self.statements()]
        lines += ["", f"hardcase {VERSION}; weights `{escaped(self.weights)}`."]
        return "\n".join(lines) + "\n"

    def picture(self) -> bytes:
        """Seeds above what the model gets wrong, as PNG; nothing where nothing failed."""
        pairs = list(self._pairs())
        if not pairs:
            return b""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2.0 * len(pairs), 4.6), layout="constrained")
        axes = figure.subplots(2, len(pairs), squeeze=False)
        for column, (seed, failing, above, below) in enumerate(pairs):
            for row, (image, text) in enumerate(((seed, above), (failing, below))):
                place = axes[row][column]
                pixels = decode(image).permute(1, 2, 0).numpy()
                flat = pixels[..., 0] if pixels.shape[2] == 1 else pixels
                place.imshow(flat, cmap="gray", vmin=0, vmax=255)
                place.set_title(fill(text, 24), fontsize=8, parse_math=False)
                place.axis("off")
        made = io.BytesIO()
        figure.savefig(made, format="png", dpi=80, metadata={"Software": None})
        return made.getvalue()

    def _pairs(self) -> Iterator[tuple[bytes, bytes, str, str]]:
        """Random failing samples of different images, those first that the model reads unchanged;
        then failures of the search."""
        run = self.run
        right = dict(zip(run.seeds["id"].to_pylist(), run.seeds["predicted"].to_pylist()))
        draws = shown_samples(run)
        draws.sort(key=lambda row: right.get(row["original"]) != row["label"])
        seen = set[str]()
        for row in [*draws, *(finding.row for finding in islice(run, PAIRS))]:
            if row["original"] in seen or len(seen) == PAIRS:
                continue
            seen.add(row["original"])
            drawn = "words" in row
            seed = row["unmodified"] if drawn else row_image(run, row["original"])
            image = row["image"] if drawn else row["image"]["bytes"]
            how = row["words"] if drawn else f"found by {row['method']}"
            label = row["label"] if drawn else row["expected"]
            answer = f"taken for {run.classes[row['predicted']]}: {how}"
            yield seed, image, str(run.classes[label]), answer


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; what is in its cells is escaped."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(map(escaped, row))} |" for row in rows]


def _known(record: Any, key: str) -> dict[str, Any]:
    """A figure of a record, with its value; nothing where it was not measured."""
    risk = record.get("risk") or {}
    known = risk.get(key) if key in ("gap", "unmodified") else record.get(key)
    return dict(known or {})


def _bounds(known: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of a figure, if it has one."""
    if "low" in known:
        return known["low"], known["high"]
    pair = known.get("images_like_these")
    return (pair[0], pair[1]) if pair else None


def row_image(run: Run, name: str) -> bytes:
    """Return the image that a search began from, as it is stored."""
    [image] = run.stored_seed_images([run.seed_rows[name]])
    return image


def _before(record: Any, key: str) -> str:
    known = _known(record, key)
    return percent(known["value"]) if known.get("value") is not None else "not known"


def write_comment(content: CardContent, folder: Path, *, picture: str = PICTURE) -> Path:
    """Write ``comment.md`` and the picture, for a pull request or a job's summary."""
    said, _ = content.outcome()
    image = content.picture()
    if image:
        write_atomically(folder / PICTURE, image)
    text = content.section(heading=f"### hardcase: {said}", picture=picture if image else "")
    return write_atomically(folder / "comment.md", text.encode())


def write_hub_card(content: CardContent, folder: Path, *, benchmark: str = "") -> Path:
    """Write or update ``README.md`` of a model's repository: metadata, section, picture.

    What others wrote there stays. The figures are in ``model-index`` as the Hub reads it, and in
    ``.eval_results`` where the data is a benchmark there."""
    try:
        hub: Any = import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise HardcaseError(
            "a model card needs huggingface_hub, which is not installed.",
            fix="pip install 'hardcase[huggingface]'",
        ) from error
    path = folder / "README.md"
    card = hub.ModelCard(path.read_text(encoding="utf-8") if path.is_file() else EMPTY)
    image = content.picture()
    if image:
        write_atomically(folder / PICTURE, image)
    heading = "## Robustness under declared conditions"
    own = content.section(heading=heading, picture=PICTURE if image else "")
    own = f"{BEGIN}\n{own}{END}"
    head, begun, rest = card.text.partition(BEGIN)
    tail = rest.partition(END)[2] if begun else ""
    card.text = f"{head.rstrip()}\n\n{own}{tail}".lstrip() + ("" if tail else "\n")
    model = str(content.run.record.get("model") or "model")
    model = re.sub(r"[^\w.@-]+", "-", model).strip("-")[:96]
    results = list(_results(content, hub.EvalResult, benchmark))
    others = [
        one
        for one in card.data.eval_results or ()
        if not str(one.source_name or "").startswith("hardcase")
    ]
    card.data.model_name = card.data.model_name or model
    card.data.eval_results = [*others, *results]
    card.data.pipeline_tag = card.data.pipeline_tag or "image-classification"
    write_atomically(path, str(card).encode())
    if benchmark:
        _write_eval_results(content, hub, folder, benchmark)
    return path


def _results(content: CardContent, kind: Any, benchmark: str) -> Iterator[Any]:
    """The figures as rows of ``model-index``, with their intervals."""
    record = content.run.record
    declared = record["conditions"].get("name", "declared")
    names = {
        "risk": f"failure rate under {declared} conditions",
        "worst_case": f"worst case in {declared}",
        "accuracy": "accuracy on unmodified images",
    }
    data = benchmark.rpartition(":")[0] or str(record.get("data"))
    for metric, name in names.items():
        if not record.get(metric):
            continue
        bounds = _bounds(record[metric])
        yield kind(
            task_type="image-classification",
            dataset_type=data,
            dataset_name=str(record.get("data")),
            dataset_split=record.get("split"),
            metric_type=metric,
            metric_name=name,
            metric_value=record[metric]["value"],
            metric_args=bounds and dict(zip(("low", "high"), bounds)),
            source_name=f"hardcase {VERSION}",
            source_url="https://hardcase.readthedocs.io",
        )


def _write_eval_results(content: CardContent, hub: Any, folder: Path, benchmark: str) -> None:
    yaml: Any = import_module("yaml")  # comes with huggingface_hub

    dataset, _, task = benchmark.rpartition(":")
    if not dataset or not task:
        raise HardcaseError(
            f"benchmark {benchmark!r} is no DATASET:TASK.", fix="uoft-cs/cifar10:risk"
        )
    record = content.run.record
    entry = hub.EvalResultEntry(
        dataset_id=dataset,
        task_id=task,
        value=record["risk"]["value"],
        date=str(record.get("finished") or date.today())[:10],
        notes=f"failure rate under {record['conditions'].get('name', 'declared')} conditions,"
        f" hardcase {VERSION}",
    )
    text = yaml.safe_dump(hub.eval_result_entries_to_yaml([entry]), sort_keys=False)
    write_atomically(folder / ".eval_results" / "hardcase.yaml", text.encode())
