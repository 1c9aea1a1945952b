"""The last screen of a run: the decision first, then the figures that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from hardcase.wording.numbers import difference, percent, points, rate, span

__all__ = [
    *("WIDTH", "Decision", "Word", "check_sentences", "conditions_name", "decide", "figures"),
    "generated_sentences",
    *("search_sentence", "short_name", "summary_lines"),
]

Word = Literal["PASS", "FAIL", "INCONCLUSIVE", "MEASURED", "FAILED"]
WIDTH = 100
"""Characters of a line, at most."""
COLUMN = 21
"""Characters of a column of the table of failure rates."""


class Decision(NamedTuple):
    """What a run comes to: its first word, and one sentence that says why."""

    word: Word
    sentence: str

    def __str__(self) -> str:
        return f"{self.word}  {self.sentence}"


def short_name(model: str) -> str:
    """Return what a summary calls a model.

    Example:
        >>> short_name("zoo:lenet5"), short_name("work/net.py:make"), short_name("w.pt@net.py:make")
        ('lenet5', 'net.py:make', 'w.pt')
        >>> short_name("http://localhost:8000/v2/models/digits/infer")
        'digits'
    """
    name = model.rpartition("@")[0] or model
    name = name.removesuffix("/infer").rpartition("/")[2]
    return name.removeprefix("zoo:")


def conditions_name(record: Mapping[str, Any]) -> str:
    """Return what a summary calls the conditions of a run: ``scanner conditions``."""
    declared = record.get("conditions")
    if not declared:
        return "unmodified images"
    name = declared.get("name", "declared")
    return f"{name} conditions"


def decide(record: Mapping[str, Any], checks: Sequence[LimitOutcome] = ()) -> Decision:
    """Return the decision of a run: by its limits and its baseline, where there are any.

    Args:
        record: Its run.json.
        checks: What each limit comes to, see `hardcase.suite.gate.Check`.
    """
    failed = failure_of(record)
    if failed is not None:
        return failed
    if not record.get("risk") and not checks:
        return Decision("INCONCLUSIVE", "the failure rate has not been measured yet")
    model = short_name(str(record.get("model", "the model")))
    if not checks:
        return _measured(record, model)
    order = ("fail", "inconclusive", "pass")
    first = min(checks, key=lambda check: order.index(check.outcome))
    sentence = _sentence(record, model, first)
    if first.outcome == "inconclusive" and first.decide:
        sentence += f". To decide: {first.decide}"
    return Decision(WORDS[first.outcome], sentence)


@runtime_checkable
class LimitOutcome(Protocol):
    """What a limit comes to."""

    @property
    def name(self) -> str: ...

    @property
    def outcome(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def decide(self) -> str: ...

    @property
    def value(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    @property
    def limit(self) -> float: ...


WORDS: Mapping[str, Word] = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE"}
"""The first word of each outcome of a limit."""
AGAINST = "failure rate against "
"""How the name of a check against a baseline begins."""


def _sentence(record: Mapping[str, Any], model: str, check: LimitOutcome) -> str:
    """What a limit says of the model."""
    if check.name == "failure rate":
        interval = f"{span(check.low, check.high)}; limit {_short(check.limit)}"
        return f"{model} fails in {percent(check.value)} of {_of(record)} ({interval})"
    if not check.name.startswith(AGAINST):
        return f"{model}: {check.text}"
    other = short_name(check.name.removeprefix(AGAINST))
    where = f"under {conditions_name(record)}" if record.get("conditions") else "on the images"
    stored = {"value": check.value, "low": check.low, "high": check.high}
    interval = f"{difference(stored)[:-1]}; limit {100 * check.limit:+.1f})"
    if check.outcome == "fail":
        return f"{model} fails more often than {other} {where}: {interval}"
    if check.outcome == "inconclusive":
        return f"{model} cannot be ranked against {other} {where}: {interval}"
    more = "less often" if check.high < 0 else "no more often"
    return f"{model} fails {more} than {other} {where}: {interval}"


def failure_of(record: Mapping[str, Any]) -> Decision | None:
    """Return that a phase of a run has failed, and why; None where none has."""
    names = {"measure": "the measurement", "search": "the search", "check": "the label check"}
    for name, phase in (record.get("phases") or {}).items():
        if phase.get("status") == "failed":
            why = str(phase.get("why", "unknown")).rstrip(".")
            return Decision("FAILED", f"{names.get(name, name)} did not finish: {why}")
    return None


def _of(record: Mapping[str, Any]) -> str:
    if not record.get("conditions"):
        return "the images"
    return f"samples of {conditions_name(record)}"


def _short(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".")


def _measured(record: Mapping[str, Any], model: str) -> Decision:
    risk = record["risk"]
    low, high = percent(risk["low"]), percent(risk["high"])
    interval = span(risk["low"], risk["high"])
    text = (
        f"{model} fails in {percent(risk['value'])} of {_of(record)} ({interval})."
        f" A limit up to {low} would fail, from {high} on pass."
    )
    return Decision("MEASURED", text)


def figures(record: Mapping[str, Any]) -> list[str]:
    """Return the table of failure rates of a measured run, line by line."""
    risk = record.get("risk")
    if not risk:
        return []
    baselines = list(risk.get("baselines", ()))[:1]
    names = [short_name(str(record.get("model", "")))]
    rows = [("unmodified images", [rate(risk["unmodified"])])]
    if record.get("conditions"):
        rows.append((conditions_name(record), [rate(risk)]))
    if baselines:
        baseline = baselines[0]
        names += [short_name(baseline["name"]), "difference"]
        unmodified = points(baseline["unmodified_difference"]["value"])
        rows[0][1].extend([percent(baseline["unmodified"]["value"]), unmodified])
        if record.get("conditions"):
            rows[1][1].extend([percent(baseline["value"]), points(baseline["difference"]["value"])])
    lines = [_row("failure rate", names)]
    lines += [_row(f"  {name}", cells) for name, cells in rows]
    if risk.get("settled") in ("time", "queries"):
        narrower = (risk["images"] / risk["of"]) ** 0.5
        ends = [risk["value"] + narrower * (risk[end] - risk["value"]) for end in ("low", "high")]
        count = f"  {risk['images']:,} of {risk['of']:,} images"
        lines.append(_row(count, [f"--measure all narrows the interval to about {span(*ends)}"]))
    region = risk.get("worst_region")
    if region:
        region_text = f"at least {100 * region['low']:.0f} %: {region['words']}"
        lines.append(_row("  worst region found", [region_text]))
    effects = risk.get("effects") or []
    if effects:
        largest = effects[0]
        effect_text = f"{largest['condition']}: {difference(largest)}".replace("+", "")
        lines.append(_row("  largest effect", [effect_text]))
    return [line[:WIDTH] for line in lines]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<24}{''.join(f'{cell:<{COLUMN}}' for cell in cells)}".rstrip()


def summary_lines(
    record: Mapping[str, Any],
    decision: Decision,
    *,
    search: Sequence[str] = (),
    checked: Sequence[str] = (),
    report: str = "",
) -> list[str]:
    """Return the last screen: the decision, the table, what the search and the check say.

    Args:
        record: The run's run.json.
        decision: What the run comes to.
        search: What the search says, in lines.
        checked: What the label check says, in lines.
        report: The command that opens the report.
    """
    table = figures(record)
    lines = [*wrapped(str(decision), indent=0), "", *table]
    parts = {"search": search, "label check": checked, "report": [report] if report else []}
    if table:
        lines.append("")
    for name, texts in parts.items():
        for i, text in enumerate(part for one in texts for part in wrapped(one, indent=13)):
            lines.append(f"{name if i == 0 else '':<13}{text}")
    return lines


def wrapped(text: str, *, indent: int) -> list[str]:
    """Return a sentence in lines that leave room for an indent."""
    from textwrap import wrap

    return wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False)


def generated_sentences(record: Mapping[str, Any]) -> list[str]:
    """Return how many images a generator made for a search, and who classified them as asked."""
    generated = record.get("generated_images")
    if not generated:
        return []
    others = "checked by nobody else"
    if generated["by"]:
        others = (
            f"{generated['verified']} of these verified by most of {len(generated['by'])} others"
        )
    return [
        f"generated images: {generated['generated']} samples,"
        f" {generated['correctly_classified']} correctly classified by the model, {others}"
    ]


def search_sentence(record: Mapping[str, Any], counts: Mapping[str, int | None]) -> str:
    """Return what a search found, and whether the conditions of the run bound it.

    Args:
        record: What run.json says.
        counts: How many images it searched and broke, as run.json has them under
            ``search_results``.
    """
    failing, searched = counts["failing"] or 0, counts["searched"] or 0
    clusters = counts["clusters"]
    grouped = f", {clusters} clusters" if clusters else ""
    method = record.get("method")
    beyond = ""
    if record.get("conditions") and "columns" not in (record.get("space") or {}):
        name = conditions_name(record)
        beyond = f" {name[0].upper()}{name[1:]} do not bound this search."
    if not failing:
        return (
            f"{method} found no failing variant of {searched:,} images. That is no proof that"
            f" there is none.{beyond}"
        )
    return (
        f"{method} found a failing variant of {failing:,} of {searched:,} images{grouped} (attack"
        f" success says how hard the search tries, not how good the model is).{beyond}"
    )


def check_sentences(
    record: Mapping[str, Any],
    counts: Mapping[str, int | None],
    *,
    findings: int,
    judged: bool,
    folder: str,
) -> list[str]:
    """Return what the label check says of the findings of a run, in sentences.

    Args:
        record: The run's run.json.
        counts: How many searched images have an accepted or an unsure failure.
        findings: How many findings there are.
        judged: Whether the label check has run.
        folder: The run folder, as a person types it.
    """
    check = (record.get("phases") or {}).get("check", {})
    if not findings:
        return []
    if not judged and check.get("status") == "skipped":
        return [str(check.get("why", "skipped"))]
    if record.get("claims"):
        return ["claims are not checked: declared conditions and witnesses speak for them"]
    if not judged:
        return [f"nobody has checked the labels: hardcase judge {folder}"]
    text = f"accepts {counts['accepted'] or 0:,}, unsure {counts['unsure'] or 0:,}."
    controls = (record.get("judge") or {}).get("controls") or {}
    if controls.get("planted"):
        text += f" It found {controls['found']} of {controls['planted']} planted label losses."
    return [f"{text} To confirm: hardcase judge {folder} --ask 20"]
