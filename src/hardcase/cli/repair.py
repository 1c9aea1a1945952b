"""``hardcase repair``: train on with the search inside the loop, keep the weights, prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.insight import ASKED, MaybeRun, named_context
from hardcase.cli.options import as_json, grid, opened, show, shown
from hardcase.cli.results import context_of, declared_conditions
from hardcase.errors import CANNOT_TELL, FAILED, Problem

if TYPE_CHECKING:
    from hardcase.context import Context
    from hardcase.repair import RepairResult
    from hardcase.runs.results import Run
    from hardcase.types import Images


@o.takes(
    *("model", "data", "conditions", *ASKED, *o.FOREIGN, "out", *o.SAYS),
    epochs=o.Row("Epochs, at most.", "N", least=1),
    batch=o.Row("Images in each step.", "N", least=1),
    rate=o.Row("Learning rate; chosen if not given.", "R"),
    draws=o.Row("Learn from the worst of K draws; 0: plain training on.", "K", least=0),
    steps=o.Row("Gradient steps from that draw.", "N", least=0),
    findings=o.Row("Also train with the findings of RUN.", names=("--findings",)),
    outside=o.Row("Other data to prove it on; repeatable.", "DATA"),
    margin=o.Row("By how much no figure may be worse.", "SHARE"),
    proof=o.Row("quick, usual, full (for a GPU), or usual:seeds=200,attack.restarts=10.", "SIZE"),
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
    margin: float = 0.01,
    proof: str = "usual",
) -> None:
    """Train a network on under declared conditions and prove the repair on unseen images.

    Writes weights, card, repair.json and a page. 0: repaired; 1: worse, or moved elsewhere; 4:
    cannot tell.
    """
    from hardcase.repair.front import repair_network, stored_failures
    from hardcase.repair.loop import RepairRecipe
    from hardcase.repair.proof import proof_size

    size = proof_size(proof)
    context, run = _ingredients(folder, flags)
    train = context.train
    stored = None if run is None or not len(run.findings) else stored_failures(run, train)
    if findings and context.task != "classes":
        raise Problem("--findings are images of classifiers.", fix="leave out --findings")
    if findings and stored is None:
        raise Problem("there are no findings to train with.", fix="hardcase repair RUN --findings")
    done = repair_network(
        context.subject,
        train,
        _unseen(context, run),
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
        say=flags.say,
    )
    if flags.json:
        as_json({"folder": str(done.folder), **done.record})
    else:
        tell_repair(done, quiet=flags.quiet)
    if done.verdict != "repaired":
        raise typer.Exit(CANNOT_TELL if done.verdict == "cannot tell" else FAILED)


def _ingredients(folder: Path | None, flags: o.Flags) -> tuple[Context, Run | None]:
    """The context of the network that a run or flags name."""
    if folder is not None:
        if flags.model is not None or flags.data is not None:
            raise Problem(
                f"{folder} has a model and data of its own.",
                fix="hardcase repair RUN, or --model ... --data ...",
            )
        run = opened(folder)
        return context_of(run, flags), run
    return named_context(flags, "repair"), None


def _unseen(context: Context, run: Run | None) -> Images:
    """Test images that no search started from."""
    import torch

    from hardcase.campaign.claims import image_of

    if run is None or context.config.split == "train":
        return context.test
    seeds = set(run.seeds.column("id").to_pylist())
    names = list(context.test.id)
    if run.record.get("claims"):  # claims about one image belong together
        seeds = set(map(image_of, seeds))
        names = list(map(image_of, names))
    rows = [i for i, name in enumerate(names) if name not in seeds]
    return context.test.take(torch.tensor(rows, dtype=torch.int64))


def demonstrate(context: Context, run: Run, folder: Path, flags: o.Flags) -> RepairResult:
    """A repair of a run's network in seconds: few epochs, a quick proof."""
    from hardcase.repair.front import repair_network
    from hardcase.repair.loop import RepairRecipe

    return repair_network(
        context.subject,
        context.train,
        _unseen(context, run),
        folder,
        conditions=None,
        recipe=RepairRecipe(epochs=3, rate=1e-3, seed=context.config.seed),
        proof="quick",
        margin=0.01,
        outside={},
        about={"findings": False, "run": str(run.folder)},
        say=flags.say,
    )


def tell_repair(done: RepairResult, *, quiet: bool) -> None:
    """Print the verdict first, then the figures that decide."""
    reasons = (f"  {reason}" for reason in done.proof.reasons)
    show(f"{done.verdict}: {done.record['parents']['model']}", *reasons)
    if not quiet:
        wanted = [r for r in done.proof.rows if r.decides or r.group in ("declared", "stored")]
        wanted += [row for row in done.proof.rows if row.outcome == "worse" and row not in wanted]
        columns = ("figure", "group", "before", "after", "95 % of the change", "it is")
        rows = [
            (
                row.name,
                row.group,
                f"{row.before:.2%}",
                f"{row.after:.2%}",
                f"{row.low:+.2%} to {row.high:+.2%}",
                row.outcome,
            )
            for row in wanted
        ]
        show(grid("", columns, rows))
    show(f"weights  {shown(done.model)}", f"page     {shown(done.folder / 'report.html')}")
