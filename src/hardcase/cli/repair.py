"""``hardcase repair``: train a network on under declared conditions, and prove what it did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.insight import ASKED, MaybeRun, named_context
from hardcase.cli.options import as_json, note, opened, print_line, shown
from hardcase.cli.results import config_of, declared_conditions
from hardcase.errors import FAILED, INCONCLUSIVE, HardcaseError

if TYPE_CHECKING:
    from hardcase.context import Context
    from hardcase.data.files import ImageSet
    from hardcase.repair import RepairResult
    from hardcase.runs.results import Run

__all__ = ["print_repair", "repair", "unseen_images"]

USES = ("model", "data", "conditions")
"""Settings of a run that its repair uses."""
EXIT_CODES = {"repaired": 0, "inconclusive": INCONCLUSIVE}
"""Of the verdicts; all others are failures."""


@o.takes(
    *("model", "data", "conditions", *ASKED, *o.FOREIGN, "out", *o.SAYS),
    epochs=o.Row("Epochs, at most.", "N", least=1),
    batch=o.Row("Images in each step.", "N", least=1),
    rate=o.Row("Learning rate; chosen if not given.", "R"),
    draws=o.Row("Learn from the worst of K samples; 0: plain training on.", "K", least=0),
    steps=o.Row("Gradient steps from that sample.", "N", least=0),
    findings=o.Row("Also train with the failures that RUN found.", names=("--findings",)),
    outside=o.Row("Other data to prove it on; repeatable.", "DATA"),
    margin=o.Row("By how much nothing may be worse; by default what the images can show.", "SHARE"),
    proof=o.Row("quick, usual, full (for a GPU), or usual:images=200,attack.restarts=10.", "SIZE"),
)
def repair(
    flags: o.Flags,
    folder: MaybeRun = None,
    epochs: int = 12,
    batch: int = 64,
    rate: float | None = None,
    draws: int = 4,
    steps: int = 0,
    findings: bool = False,
    outside: list[str] | None = None,
    margin: float | None = None,
    proof: str = "usual",
) -> None:
    """Train a network on under declared conditions and prove the repair on unseen images.

    Writes weights, card, repair.json and a page. 0: repaired; 1: not repaired, or regressed
    elsewhere; 4: inconclusive.
    """
    from hardcase.repair.front import repair_network, stored_failures
    from hardcase.repair.loop import RepairRecipe
    from hardcase.repair.measures import proof_size

    size = proof_size(proof)
    context, run = _ingredients(folder, flags)
    train = context.labelled("train").held()
    stored = None if run is None or not len(run.findings) else stored_failures(run, train)
    if findings and not context.task.classifies:
        raise HardcaseError("--findings are images of classifiers.", fix="leave out --findings")
    if findings and stored is None:
        raise HardcaseError(
            "there are no failures to train with.", fix="hardcase repair RUN --findings"
        )
    done = repair_network(
        context.subject,
        train,
        unseen_images(context, run),
        flags.out or free(Path("runs") / "repair" if folder is None else folder / "repair"),
        conditions=declared_conditions(context, run),
        recipe=RepairRecipe(
            epochs=epochs,
            batch=batch,
            rate=rate,
            draws=draws,
            steps=steps,
            seed=context.config.seed,
        ),
        proof=size,
        margin=margin,
        outside={name: context.named_images(name, "all") for name in outside or []},
        added=stored if findings else None,
        carried=None if findings else stored,
        about={"findings": findings, "run": None if folder is None else str(folder)},
        log=flags.log,
    )
    print_repair(done, flags)
    if done.verdict != "repaired":
        raise typer.Exit(EXIT_CODES.get(done.verdict, FAILED))


def _ingredients(folder: Path | None, flags: o.Flags) -> tuple[Context, Run | None]:
    """The context of the network that a run or flags name."""
    from hardcase.context import Context

    if folder is None:
        return named_context(flags, "repair"), None
    if flags.model is not None or flags.data is not None:
        raise HardcaseError(
            f"{folder} has a model and data of its own.",
            fix="hardcase repair RUN, or --model ... --data ...",
        )
    run = opened(folder)
    # baselines take no part, and what a run compares with need not be at hand any more
    config = config_of(run, flags, uses=USES, conditions=flags.conditions)
    context = Context(config.model_copy(update={"baseline": ()}))
    _require_same_network(run, context, flags)
    return context, run


def _require_same_network(run: Run, context: Context, flags: o.Flags) -> None:
    """Refuse another network, or other images, than those that the run measured.

    The network is prepared as the run prepared it, so that the same network gives the same answers.
    """
    from hardcase.runs.identity import Identity, parts_of, require_same
    from hardcase.runs.plan import measure_plan
    from hardcase.runs.verify import require_behaviour

    then = Identity.from_json(run.record.get("identity"))
    if then is None:
        note("note: this run was stored before ingredients were recorded: it is unverified")
        return
    plan = measure_plan(context)
    measure = (run.record.get("phases") or {}).get("measure") or {}
    measurement = replace(plan.measurement, tile=measure.get("tile"))
    names = [*parts_of(measurement.model), "measured images"]
    device = Identity(parts_of(device=measurement.model.device.type))
    try:
        require_same(then.only(names), plan.identity.only(names))
        if not then.only(device.parts).differences(device):
            with measurement.arithmetic():
                require_behaviour(run.record, {"model": measurement.model}, plan.images)
    except HardcaseError as problem:
        if not flags.allow_changes:
            raise HardcaseError(problem.what, *problem.why, fix="--allow-changes") from problem
        note(f"note: {problem.what}")


def unseen_images(context: Context, run: Run | None) -> ImageSet:
    """Return the images that prove a repair: those that a run has reserved.

    Of a run that reserved none, those that no search started from; without a run all of the test
    split, since nothing was searched or shown.
    """
    import torch

    from hardcase.campaign.claims import image_of
    from hardcase.runs.phases import measured_rows

    test = context.labelled("test")
    if run is None or context.config.split == "train":
        return test
    names = list(test.id)
    measured = measured_rows(run.store)
    held = {name for name, reserved in zip(measured.id, measured.reserved.tolist()) if reserved}
    if held:
        rows = [i for i, name in enumerate(names) if name in held]
        return test.take(torch.tensor(rows, dtype=torch.int64))
    searched = set(run.seeds.column("id").to_pylist())
    if run.record.get("claims"):  # claims about one image belong together
        searched = set(map(image_of, searched))
        names = list(map(image_of, names))
    rows = [i for i, name in enumerate(names) if name not in searched]
    return test.take(torch.tensor(rows, dtype=torch.int64))


def print_repair(done: RepairResult, flags: o.Flags) -> None:
    """Print the decision of a repair, and the figures that it rests on."""
    from hardcase.wording.repair import headline, repair_lines

    if flags.json:
        as_json({"folder": str(done.folder), **done.record})
    elif flags.quiet:
        print_line(headline(done.record))
    else:
        print_line("\n".join(repair_lines(done.record, folder=shown(done.folder))))
