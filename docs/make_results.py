"""Draw the figures of docs/results from the stored results, write these as tables, and fill what the pages say of them. It measures nothing.

A stored result is ``results/NAME.json``: name, command, commit, seeds, data (its hash), device, versions, notes, columns and rows (a
mapping from column to value) and the checksum of all that; ``results/tables/NAME.md`` shows all of it. A page has marks, each closed by
``<!-- end -->``, between which this program writes: ``<!-- figure: NAME -->`` the picture with its caption, ``<!-- sources: NAME NAME -->``
what else a page's numbers come from, ``<!-- table: NAME | TITLE | COLUMN; COLUMN | ROW / ROW -->`` cells (rows may be left out: all), and
``<!-- goals: NAME NAME | ROW / ROW -->`` speeds beside what was asked for (rows may be left out: all that have a goal),
``<!-- papers: DOCUMENT -->`` every table, figure and question of a document with its verdict (``hardcase_studies.verdicts``; ``errors``: what
audits found wrong, with what holds it now). A result that is not there was not run at this version, and the page says so.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hardcase_studies.stored import in_todays_words

Estimate = tuple[float, float, float]
"""A value with the two ends of its interval (both the value itself where there is none)."""
Point = tuple[str, Estimate, str]
"""One row of a dot plot: its name, its estimate and its colour."""

KEYS = ("name", "command", "commit", "seeds", "data", "device", "versions", "notes", "columns", "rows", "checksum")
CELLS = ["table", "row", "column", "value"]
"""Columns of a result that keeps several tables cell by cell, as ``hardcase reproduce --keep`` does."""
MARKS = re.compile(r"<!-- (figure|sources|table|goals|papers): ([^\n]+?) -->\n.*?<!-- end -->", re.DOTALL)
OURS, THEIRS, CONTROL, WARN = "#1f6f8b", "#c8553d", "#7a7a7a", "#b8860b"
NOT_RUN = "not run at this version"


def stored(path: Path) -> dict[str, Any]:
    """Return one result; what its schema lacks is an error that names it."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in KEYS if key not in record]
    wrong = [row for row in record.get("rows", []) if set(row) != set(record.get("columns", []))]
    if missing or wrong or record["name"] != path.stem:
        raise SystemExit(f"{path}: missing {missing}, {len(wrong)} rows with other columns, named {record.get('name')}")
    if record["columns"] == CELLS:
        places = [tuple(row[key] for key in CELLS[:3]) for row in record["rows"]]
        if len(set(places)) < len(places):
            raise SystemExit(f"{path}: {len(places) - len(set(places))} cells would hide others of the same place")
    return in_todays_words(record)


class Tables:
    """The tables of stored results, looked up by a part of their title."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def rows(self, name: str, title: str = "") -> dict[str, dict[str, Any]]:
        """Return the rows of the first table whose title begins with `title`."""
        record = stored(self.results / f"{name}.json")
        if record["columns"] != CELLS:
            first = record["columns"][0]
            return {str(row[first]): row for row in record["rows"]}
        titles = [row["table"] for row in record["rows"] if row["table"].startswith(title)]
        rows: dict[str, dict[str, Any]] = {}
        for row in record["rows"]:
            if row["table"] == titles[0]:
                rows.setdefault(row["row"], {})[row["column"]] = row["value"]
        return rows


NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"


def estimate(text: object) -> Estimate:
    """Read ``93.7 % [90.9 %, 96.1 %]`` or ``25 of 30 = 83.3% [66, 93]``; without an interval all three numbers are the value."""
    words = str(text).rpartition("= ")[2].replace("**detected** ", "").replace("not detected ", "")
    numbers = [float(found.replace(",", "")) for found in re.findall(NUMBER, words)]
    if "[" in words:
        return numbers[0], numbers[1], numbers[2]
    return numbers[0], numbers[0], numbers[0]


def dots(axis: Any, points: Sequence[Point], label: str) -> None:
    """Draw one row per point, the first on top, with its interval as a line."""
    for place, (_, (value, low, high), colour) in enumerate(points):
        axis.plot([low, high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
        axis.plot([value], [place], "o", color=colour, markersize=4.5)
    axis.set_yticks(range(len(points)), [name for name, _, _ in points])
    axis.set_ylim(len(points) - 0.4, -0.6)
    axis.set_xlabel(label)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)


def sinvad_gap(tables: Tables, figure: Any) -> None:
    rows = tables.rows("sinvad-rq2", "Table 3")
    points = [(f"{name}, images that fail", estimate(row["mean gap"]), OURS) for name, row in rows.items()]
    every = "mean gap, failed searches too"
    points += [(f"{name}, failed searches too", estimate(row[every]), CONTROL) for name, row in rows.items() if row[every]]
    axis = figure.subplots()
    dots(axis, sorted(points), "mean top-two gap, MNIST")
    axis.axvline(float(rows["sinvad"]["paper"]), color=THEIRS, linestyle="--", label="published")
    axis.legend(frameon=False)


def sinvad_labels(tables: Tables, figure: Any) -> None:
    names = {"ways out (ours)": "transitions (ours)", "floor (ours, scores)": "median probability (ours)", "genetic search (paper)": "genetic search"}
    rows = tables.rows("sinvad-rq3-mnist", "Detection rates")
    pairs = list(dict.fromkeys(name.partition(" (")[0] for name in rows))
    for axis, pair in zip(figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0], pairs, strict=True):
        for name, row in rows.items():
            if name.partition(" (")[0] == pair:
                shares = [key for key in row if key != "measure"]
                axis.plot([float(key) for key in shares], [float(row[key]) for key in shares], "o-", markersize=3, label=names.get(row["measure"], row["measure"]))
        axis.set_title(f"classes {pair} mixed")
        axis.set_xlabel("share of mixed labels")
    figure.axes[0].set_ylabel("rate above the unmixed network")
    figure.axes[0].legend(frameon=False)


def argus_errors(tables: Tables, figure: Any) -> None:
    axis = figure.subplots()
    wanted = {f"ARGUS 0.{tenth}": tenth / 10 for tenth in (1, 2, 3)}
    rows = tables.rows("argus-table1-mnist", "ARGUS, Tables").values()
    for column, colour, shape, label in (("ER", OURS, "o", "all originals"), ("ER, kept", CONTROL, "s", "correct originals")):
        found = {wanted[row["method"]]: estimate(row[column]) for row in rows if row["method"] in wanted}
        ends = [[value - low for value, low, _ in found.values()], [high - value for value, _, high in found.values()]]
        axis.errorbar(list(found), [value for value, _, _ in found.values()], ends, fmt=shape, color=colour, markersize=4, label=label)
    published = {row["method"]: estimate(row["ER"])[0] for row in tables.rows("argus-table1-mnist", "the same, as published").values()}
    axis.plot(list(wanted.values()), [published[method] for method in wanted], "x--", color=THEIRS, label="published")
    axis.set_xlabel("mix")
    axis.set_ylabel("error rate, %")
    axis.legend(frameon=False)


def argus_curves(tables: Tables, figure: Any) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for name, row in tables.rows("argus-curve", "ARGUS along").items():
        generator, network, mix = name.split("; ")
        if network == "lenet5":
            alike = float(row["MSE, SSIM: all, original"].split(", ")[1])
            lines.setdefault(generator, []).append((float(mix.removeprefix("mix ")), alike, estimate(row["ER, %"])[0]))
    for generator, points in lines.items():
        mixes, alike, rates = zip(*points, strict=True)
        left.plot(mixes, rates, "o-", markersize=3, label=generator)
        right.plot(alike, rates, "o-", markersize=3)
    published = [(0.9902, 20.94), (0.9094, 31.34), (0.8768, 43.75)]
    for _, rate in published:
        left.axhline(rate, color=THEIRS, linestyle="--", linewidth=0.8)
    right.plot([x for x, _ in published], [y for _, y in published], "x", color=THEIRS, label="published")
    left.set_xlabel("mix")
    right.set_xlabel("SSIM to the original")
    left.set_ylabel("error rate of LeNet-5, %")
    figure.legend(loc="outside right center", frameon=False)


def argus_retraining(tables: Tables, figure: Any) -> None:
    rows = tables.rows("argus-table2-mnist", "Table 2")
    points = [(name, estimate(row["points above images again"]), OURS) for name, row in rows.items() if row.get("points above images again")]
    axis = figure.subplots()
    dots(axis, points, "points of accuracy above training images again")
    axis.axvline(0, color=CONTROL, linewidth=0.8)


def features_faults(tables: Tables, figure: Any) -> None:
    rows = tables.rows("features-rq1-gpu")
    faults = [name for name in rows if name != "faults detected"]
    methods = [name for name in rows[faults[0]] if name not in ("seeds", "placebo rejections")]
    axis = figure.subplots()
    shares = [[estimate(rows[fault][method])[0] for method in methods] for fault in faults]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, fault in enumerate(faults):
        for column, method in enumerate(methods):
            detected = str(rows[fault][method]).startswith("**")
            style = {"weight": "bold"} if detected else {"alpha": 0.55}
            tone = "white" if shares[row][column] > 0.5 else "black"
            axis.text(column, row, f"{shares[row][column]:+.2f}", ha="center", va="center", color=tone, **style)
    axis.set_xticks(range(len(methods)), methods, rotation=25, ha="right")
    axis.set_yticks(range(len(faults)), faults)


def features_transfer(tables: Tables, figure: Any) -> None:
    points: list[Point] = []
    for name, row in tables.rows("features-rq3", "Transfer").items():
        network = name.removesuffix(" (2)")
        points.append((f"{network}, {row['method']}", estimate(row["l2:1.5"]), OURS))
        points.append(("… of those whose label others keep", estimate(row["l2:1.5, of these"]), CONTROL))
    dots(figure.subplots(), points, "networks robust in L2 keep the label, %")


def maxplore_units(tables: Tables, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    dots(left, [(name, estimate(row["units raised an image"]), OURS) for name, row in tables.rows("maxplore", "RQ2").items()], "units raised per image")
    rows = tables.rows("maxplore", "k against")
    right.plot([float(k) for k in rows], [estimate(row["label kept, %"])[0] for row in rows.values()], "o-", color=OURS)
    right.set_xlabel("k (Topk, per filter)")
    right.set_ylabel("label kept, %")


def coverage_kept(tables: Tables, figure: Any) -> None:
    column = "kept: more than a random neuron"
    for axis, loop in zip(figure.subplots(1, 2), ("deepxplore", "dlfuzz"), strict=True):
        rows = tables.rows(f"coverage-matrix-{loop}", f"{loop}: adversarial inputs")
        points: list[Point] = []
        for name, row in rows.items():
            if row[column]:
                value, low, high = estimate(row[column])
                points.append((name, (value, low, high), OURS if low > 0 else WARN if high < 0 else CONTROL))
        dots(axis, sorted(points, key=lambda point: -point[1][0]), "seeds of 30 more than with a random neuron")
        axis.axvline(0, color=CONTROL, linewidth=0.8)
        axis.set_title(loop)


SEARCHES = {"natural": OURS, "natural, filter": CONTROL, "sinvad-gradient": "#6a4c93", "pgd 0.2": THEIRS, "flow of every pixel (after stAdv)": WARN}


def natural_test(tables: Tables, figure: Any) -> None:
    _at_size(tables.rows("witness-test", "Accepted at matched size"), figure)


def natural_size(tables: Tables, figure: Any) -> None:
    _at_size(tables.rows("witness-controls", "Rates at matched size"), figure)


def _at_size(rows: dict[str, dict[str, Any]], figure: Any) -> None:
    axis = figure.subplots()
    for name, colour in SEARCHES.items():
        if name not in rows:
            continue
        rates = [estimate(rows[name][f"accepted with L2 ≤ {size}"]) for size in (3, 4, 5)]
        ends = [[value - low for value, low, _ in rates], [high - value for value, _, high in rates]]
        axis.errorbar([3, 4, 5], [value for value, _, _ in rates], ends, fmt="o-", color=colour, markersize=4, label=name)
    axis.set_xticks([3, 4, 5])
    axis.set_xlabel("largest L2 distance from the seed")
    axis.set_ylabel("accepted, % of seeds")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def natural_rates(tables: Tables, figure: Any) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    rows = tables.rows("witness-controls", "e. Rivals")
    for axis, column, title in ((left, "accepted", "usual judge"), (right, "untaught", "held-out judge")):
        dots(axis, [(name, estimate(row[column]), OURS) for name, row in rows.items()], "accepted, % of seeds")
        axis.set_title(title)


def repair_arms(tables: Tables, figure: Any) -> None:
    wanted = {"repair": ["excess risk", "optdigits error"], "repair-mnist5k": ["worst case"]}
    titles = {"repair": "MNIST", "repair-mnist5k": "mnist5k, with gradient steps"}
    panels = [(name, column) for name, columns in wanted.items() for column in columns]
    for place, (axis, (name, column)) in enumerate(zip(figure.subplots(1, len(panels)), panels, strict=True)):
        ours = ("worst of four", "gradient steps")
        rows = tables.rows(name, "Arms")
        dots(axis, [(arm, estimate(row[column]), OURS if arm.startswith(ours) else CONTROL) for arm, row in rows.items()], f"{column}, %")
        axis.set_title(titles[name])
        if 0 < place < len(panels) - 1:
            axis.set_yticklabels([])


def decides_risk(tables: Tables, figure: Any) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    rows = {name: row for name, row in tables.rows("decides", "What the figure adds").items() if row["ratio"] != "not had"}
    left.barh(list(rows), [float(row["ratio"]) for row in rows.values()], color=OURS, height=0.5)
    left.axvline(0.9, color=THEIRS, linestyle="--", label="asked for")
    left.axvline(1, color=CONTROL, linewidth=0.8)
    left.set_xlabel("error with risk, of that without")
    left.legend(frameon=False)
    recipes = tables.rows("decides", "Every recipe").values()
    for good, colour in ((True, OURS), (False, CONTROL)):
        chosen = [row for row in recipes if (float(row["test accuracy"]) > 0.99) == good]
        right.scatter([float(row["risk"]) for row in chosen], [float(row["optdigits"]) for row in chosen], s=9, color=colour, label="above 99 % on test" if good else "below")
    right.set_xscale("log")
    right.set_xlabel("risk")
    right.set_ylabel("right on other writers' digits")
    right.legend(frameon=False)


def yardstick(tables: Tables, figure: Any) -> None:
    wanted = {"digits, 100 passes, 8 trainings": ("yardstick-trainings", "100 passes"), "CIFAR-10, 100 passes": ("yardstick-cifar10", "100 passes")}
    colour = {"random conditions": CONTROL, "natural": OURS, "natural-blackbox": OURS}
    for axis, (title, place) in zip(figure.subplots(1, 2), wanted.items(), strict=True):
        rows = tables.rows(*place)
        order = sorted(rows, key=lambda name: -estimate(rows[name]["accepted"])[0])
        dots(axis, [(name, estimate(rows[name]["accepted"]), colour.get(name, THEIRS)) for name in order], "accepted, % of seeds")
        axis.set_title(title)


def speed_cpu(tables: Tables, figure: Any) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    rows = tables.rows("bench-cpu")
    shares = [(name.replace("campaign-", "").replace("model-share-", "").replace("-model-share", "").replace("-throughput", ""), estimate(row["value"]), OURS) for name, row in rows.items() if "model-share" in name or name == "argus-throughput"]
    dots(left, sorted(shares, key=lambda point: -point[1][0]), "bare networks, share of a campaign's time")
    left.set_xlim(0, 1)
    parts = {name: row for name, row in tables.rows("start-up").items() if not name.startswith("whole")}
    names = sorted(parts, key=lambda name: -float(parts[name]["value"]))
    right.barh(names, [float(parts[name]["value"]) for name in names], color=OURS, height=0.6)
    right.invert_yaxis()
    right.set_xlabel("s of processor time")


def speed_gpu(tables: Tables, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    every = tables.rows("bench-gpu")
    rows = [row for row in every.values() if str(row["unit"]).startswith("of bare networks")]
    dots(left, [(row["name"].removeprefix("gpu-"), estimate(row["value"]), OURS) for row in rows], "rate, of the bare networks'")
    for place, row in enumerate(rows):
        goal = float(row["against"].rpartition(" ")[2])
        left.plot([goal, goal], [place - 0.3, place + 0.3], color=THEIRS)
    stages: dict[str, dict[str, float]] = {}
    for name in (name for name in every if name.startswith("gpu-whole-") and ": " in name):
        command, _, stage = name.removeprefix("gpu-whole-").partition(": ")
        stages.setdefault(stage, {})[command] = float(every[name]["value"])
    commands = list(dict.fromkeys(command for row in stages.values() for command in row))
    total = sum(sum(row.values()) for row in stages.values())
    ends = dict.fromkeys(commands, 0.0)
    for stage, row in sorted(stages.items(), key=lambda entry: -sum(entry[1].values())):
        spent = [row.get(command, 0.0) for command in commands]
        right.barh(commands, spent, left=list(ends.values()), height=0.6, label=stage if sum(spent) > 0.03 * total else None)
        ends = {command: ends[command] + one for command, one in zip(commands, spent, strict=True)}
    right.set_xlabel("s on the clock, without the search")
    if commands:
        figure.legend(loc="outside right center", frameon=False)


def peers_attacks(tables: Tables, figure: Any) -> None:
    record = stored(tables.results / "peers-attacks.json")
    curves = [row["table"] for row in record["rows"] if row["column"] == "optimality" and not row["value"].startswith("none")]
    titles = list(dict.fromkeys(curves))  # where images fail at one distance alone there is no curve
    for axis, title in zip(figure.subplots(1, len(titles), sharex=True), titles, strict=True):
        rows = tables.rows("peers-attacks", title)
        dots(axis, [(name, estimate(row["optimality"]), OURS if name == "ours" else THEIRS) for name, row in rows.items()], "optimality")
        axis.set_title(title.removesuffix(" by AttackBench"))
        axis.set_xlim(0, 1.05)


Drawing = Callable[[Tables, Any], None]
FIGURES: dict[str, tuple[Drawing, tuple[float, float], list[str], str]] = {
    "sinvad-gap": (sinvad_gap, (6.5, 2.0), ["sinvad-rq2"], "Gap between the two greatest probabilities on MNIST, by search and by counting."),
    "sinvad-labels": (sinvad_labels, (9, 3), ["sinvad-rq3-mnist"], "Mixed labels: how far each measure rises, mean of the trainings."),
    "argus-errors": (argus_errors, (5.5, 2.8), ["argus-table1-mnist"], "Error rates of LeNet-5 on MNIST by mix: all originals, correctly classified originals, and the paper's."),
    "argus-curves": (argus_curves, (9, 3.2), ["argus-curve"], "Error rate of LeNet-5 against the mix and against likeness; red: published."),
    "argus-retraining": (argus_retraining, (6, 2.2), ["argus-table2-mnist"], "Retraining LeNet-5 on full MNIST, beside as many training images again."),
    "features-faults": (features_faults, (5.5, 3.2), ["features-rq1-gpu"], "Seeds whose planted trait moved, faulty minus clean network; bold: detected."),
    "features-transfer": (features_transfer, (6.5, 2.6), ["features-rq3"], "Findings that networks robust in L2 still read as the seed's class."),
    "maxplore-units": (maxplore_units, (7.5, 2.2), ["maxplore"], "Units raised per image, and labels kept as k grows."),
    "coverage-kept": (coverage_kept, (9, 4.6), ["coverage-matrix-deepxplore", "coverage-matrix-dlfuzz"], "Seeds per run whose label another network keeps, more than with a random neuron: intervals that hold together."),
    "natural-test": (natural_test, (6.5, 2.4), ["witness-test"], "Accepted at matched size, on the test set that was opened once."),
    "natural-size": (natural_size, (6.5, 2.8), ["witness-controls"], "Accepted findings at matched size, full MNIST."),
    "natural-rates": (natural_rates, (8.5, 2.8), ["witness-controls"], "Accepted by the usual judge, and by one that never saw the space of `natural` (held out)."),
    "decides-risk": (decides_risk, (8, 2.6), ["decides"], "What risk adds to accuracy, loss and corruption error, and risk beside accuracy on digits of other writers, one point per recipe."),
    "repair-arms": (repair_arms, (10, 2.6), ["repair", "repair-mnist5k"], "Eight trainings of each arm. Excess risk, error on digits of other writers, worst case: less is better. Blue: the search in the loop."),
    "yardstick": (yardstick, (8.5, 4.6), ["yardstick-trainings", "yardstick-cifar10"], "Seeds whose nearest failing image is accepted; grey: random conditions, blue: ours."),
    "peers-attacks": (peers_attacks, (10, 1.9), ["peers-attacks"], "How close the distances of each library come to the nearest that any of them found, counted by AttackBench; blue: ours, whose images have 8 bits."),
    "speed-cpu": (speed_cpu, (9, 2.8), ["bench-cpu", "start-up"], "On two cores. Left: what the bare networks need of a campaign's time, the rest is ours. Right: where the time of the smallest run goes."),
    "speed-gpu": (speed_gpu, (10, 2.6), ["bench-gpu"], "On one H200. Left: rates as a share of the bare networks at their best batch; red: what was asked for. Right: what a whole command needs besides its search."),
}  # fmt: skip


def draw(root: Path) -> None:
    """Write every figure as an SVG whose bytes depend on the stored results alone."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "hardcase", "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7})
    matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    from matplotlib.figure import Figure

    folder = root / "docs/pictures/results"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (drawing, size, sources, _) in FIGURES.items():
        if not all((root / "results" / f"{one}.json").is_file() for one in sources):
            (folder / f"{name}.svg").unlink(missing_ok=True)
            continue
        figure = Figure(figsize=size, layout="constrained")
        drawing(Tables(root / "results"), figure)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def source(name: str, results: Path) -> str:
    """Return a link to a stored result."""
    there = (results / f"{name}.json").is_file()
    return f"[{name}](../../results/tables/{name}.md)" if there else f"{name} ({NOT_RUN})"


def raw_table(path: Path) -> str:
    """Return everything in a stored result as a page: how it was made, what is known of it, and all of its cells."""
    record = stored(path)
    lines = [f"# {record['name']}", "", f"Written by `make results` from [{path.name}](../{path.name}).", "", f"- command: `{record['command']}`"]
    lines += [f"- {key}: {_plain(record[key])}" for key in ("commit", "seeds", "data", "device")]
    lines += [f"- versions: {', '.join(f'{name} {value}' for name, value in record['versions'].items())}"] if isinstance(record["versions"], dict) else []
    lines += [f"- {_plain(note)}" for note in record["notes"]]
    if record["columns"] != CELLS:
        columns = [column for column in record["columns"] if column not in ("code", "commit")]
        return "\n".join([*lines, "", *_grid(columns, [[row[column] for column in columns] for row in record["rows"]])]) + "\n"
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for row in record["rows"]:
        tables.setdefault(row["table"], {}).setdefault(row["row"], {})[row["column"]] = row["value"]
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        lines += ["", f"## {title}", "", *_grid(["", *columns], [[name, *(row.get(column, "") for column in columns)] for name, row in rows.items()])]
    return "\n".join(lines) + "\n"


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(map(_plain, columns))} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(map(_plain, row))} |" for row in rows]


def raw_tables(root: Path) -> dict[Path, str]:
    """Return what each file of results/tables is to hold."""
    return {root / "results/tables" / f"{path.stem}.md": raw_table(path) for path in sorted((root / "results").glob("*.json"))}


def left_over(root: Path) -> list[Path]:
    """Return tables whose result is gone."""
    return sorted(set((root / "results/tables").glob("*")) - set(raw_tables(root)))


def rendered(text: str, results: Path, home: str = "../../") -> str:
    """Return `text` with every mark filled as the stored results say; `home` leads from the page to the checkout."""
    fill = {"figure": _figure, "sources": _sources, "table": _table, "goals": _goals, "papers": _papers}

    def filled(found: re.Match[str]) -> str:
        content = fill[found[1]](found[2], results).replace("](../../results/", f"]({home}results/")
        return f"<!-- {found[1]}: {found[2]} -->\n\n{content}\n\n<!-- end -->"

    return MARKS.sub(filled, text)


def _figure(name: str, results: Path) -> str:
    _, _, sources, caption = FIGURES[name]
    said = ", ".join(source(one, results) for one in sources)
    if NOT_RUN in said:
        return f"*Not drawn: {said}.*"
    return f"![{re.split('[,:;.]', caption)[0]}](../pictures/results/{name}.svg)\n\n*{caption} Data: {said}.*"


def _sources(names: str, results: Path) -> str:
    return f"Also from {', '.join(source(name, results) for name in names.split())}."


def _table(asked: str, results: Path) -> str:
    """Some columns, and all rows or those named, of the first table whose title begins so."""
    name, title, columns, *chosen = (part.strip() for part in asked.split("|"))
    if not (results / f"{name}.json").is_file():
        return f"*{name}: {NOT_RUN}.*"
    wanted = [column.strip() for column in columns.split(";")]
    rows = Tables(results).rows(name, title)
    if "against" in next(iter(rows.values()), {}):
        rows = {one: {**row, "against": str(row["against"]).partition("; ")[0]} for one, row in rows.items()}
    names = [one.strip() for one in chosen[0].split(" / ")] if chosen else list(rows)
    cells = [[one, *(rows[one].get(column, "") for column in wanted)] for one in names if one in rows]
    return "\n".join(_grid(["", *wanted], cells)) + f"\n\n*From {source(name, results)}.*"


AFTERWARDS = "*"
"""Marks a verdict whose rule was written when the result was known."""


STALE = "†"
"""Marks a verdict on a result whose code puts out something else today."""


def _is_stale(name: str, results: Path) -> bool:
    from hardcase_studies.fresh import Digests, study_of

    command = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["command"]
    return Digests.of(results).is_stale(study_of(command), name)


def _papers(document: str, results: Path) -> str:
    """The matrix of one document: what it says, what was found, the computed verdict."""
    from hardcase_studies.verdicts import Store, judge, matrix

    known = matrix()
    if document == "errors":
        rows = [[row["key"], row["wrong"], row["holds"]] for row in known.errors]
        return "\n".join(_grid(["error", "what was wrong", "what holds it now"], rows))
    store = Store(results)
    chosen = [judge(item, store) for item in known.of(document)]
    cells = []
    for one in chosen:
        item = one.item
        mark = AFTERWARDS if known.was_known(one, store) else ""
        mark += STALE if any(_is_stale(name, results) for name in one.files) else ""
        links = [f"[{name}](../../results/tables/{name}.md)" for name in one.files]
        shown = item.absent or (f"`{item.built}`" if item.built else one.shown)
        if one.verdict == "tried":
            shown = item.tried
        cells.append([item.item, item.claim, " ".join([shown, *links]), f"{one.verdict}{mark}", item.scope])
    commands = [f"- {one.item.item}: `{one.item.command}`" for one in chosen]
    details = ["<details><summary>Commands</summary>", "", *commands, "", "</details>"]
    return "\n".join([*_grid(["item", "the document says", "found here", "verdict", "scope"], cells), "", *details])


GOAL = re.compile(r"goal (at least|at most) ([\d.e+]+)")
GOALS: dict[str, tuple[str, float]] = {
    "pgd-step-rate-torchattacks": ("≥", 0.97),
    "fgsm-step-rate-torchattacks": ("≥", 0.95),
    "adapt-model-share": ("≥", 0.8),
    "deepxplore-model-share": ("≥", 0.9),
    "dlfuzz-model-share": ("≥", 0.75),
    "pgd-speedup-torchattacks": ("≥", 6),
    "pgd-speedup-foolbox": ("≥", 6),
    "coverage-six-units-lenet5": ("≤", 2),
    "coverage-six-units-resnet18-memory": ("≤", 2),
    "ray-2-speedup": ("≥", 1.7),
    "conditions-risk": ("≤", 20),
    "conditions-worst": ("≤", 90),
    "conditions-inside": ("≥", 0.85),
    "resume-start-million": ("≤", 1.5),
    "memory-sinvad-1000": ("≤", 4),
    "whole command, usual threads": ("≤", 2.5),
    "million-shard-overhead": ("≤", 5),
    "million-status": ("≤", 0.1),
    "gpu-adapt": ("≥", 0.85),
    "gpu-argus": ("≥", 0.85),
    "gpu-deepxplore": ("≥", 0.9),
    "gpu-coverage-six-resnet18": ("≤", 1.12),
    "gpu-coverage-six-resnet50": ("≤", 1.12),
    "gpu-whole-pgd": ("≤", 2.5),
    "gpu-whole-sinvad": ("≤", 2.5),
    "group-20000": ("≤", 10),
}
"""What is asked for, where `against` does not say it as GPU rows do ("goal at least 0.8") or more is asked since."""


def _goal(name: str, row: dict[str, Any]) -> tuple[str, float] | None:
    if name in GOALS:
        return GOALS[name]
    found = GOAL.search(str(row["against"]))
    return ("≥" if found[1] == "at least" else "≤", float(found[2])) if found else None


def _goals(asked: str, results: Path) -> str:
    """Rows of benchmarks beside what was asked for; what was missed is bold."""
    names, *chosen = (part.strip() for part in asked.split("|"))
    there = [name for name in names.split() if (results / f"{name}.json").is_file()]
    rows = {row: cells for name in there for row, cells in Tables(results).rows(name).items()}
    wanted = chosen[0].split(" / ") if chosen else [name for name in rows if _goal(name, rows[name])]
    last = {row: stored(results / f"{name}.json")["commit"] for name in there for row in Tables(results).rows(name)}
    older = {name for name in wanted if name in rows and rows[name].get("commit", last[name]) != last[name]}
    cells = []
    for name in (one for one in wanted if one in rows):
        value, goal = float(rows[name]["value"]), _goal(name, rows[name])
        missed = goal and (value < goal[1] if goal[0] == "≥" else value > goal[1])
        said = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        unit = re.split(r" \(|, (?!less)|: ", str(rows[name]["unit"]))[0]
        cells.append([f"{name} †" if name in older else name, f"{f'**{said}**' if missed else said} {unit}", f"{goal[0]} {goal[1]:,g}" if goal else "–"])
    lines = [*_grid(["figure", "reached", "goal"], cells), ""] if there else []
    mark = " †: measured at an earlier commit than the newest rows." if older else ""
    return "\n".join([*lines, f"*Bold: missed.{mark} From {', '.join(source(name, results) for name in names.split())}.*"])


def _plain(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell).replace("|", "/").replace("\n", " ")


SAID = re.compile(r"(?<![\w.,-])[+-]?\d[\d,]*(?:\.\d+|(?= ?%)|(?= of \d))")
"""Numbers that were measured, as pages write them: with decimals, before a percent sign, or counts of a whole."""


def unbacked(text: str, results: Path) -> list[str]:
    """Return numbers of a page that no stored result it links has, rounded as there or as a percentage of it."""
    links = re.findall(r"results/tables/([\w-]+)\.md|results/([\w-]+)\.json", text)
    names = {table or record for table, record in links} or {path.stem for path in results.glob("*.json")}
    kept: set[float] = set()
    for name in names:
        record = stored(results / f"{name}.json")
        words = json.dumps([record["rows"], record["notes"]], ensure_ascii=False)
        kept |= {float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+", words)}
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", MARKS.sub("", text), flags=re.DOTALL)
    return [number for number in SAID.findall(prose) if not _known(number, kept)]


def _known(said: str, kept: set[float]) -> bool:
    value = abs(float(said.replace(",", "")))
    half = 0.5001 * 10.0 ** -len(said.partition(".")[2])
    return any(abs(value - scale * number) <= half for number in kept for scale in (1, 100))


def pages(root: Path) -> dict[Path, str]:
    """Return the pages that report measurements, and the way from each to the checkout."""
    found = {root / "RESULTS.md": "", root / "docs/research/scale.md": "../../"}
    return {**found, **dict.fromkeys(sorted((root / "docs/results").glob("*.md")), "../../")}


def check(root: Path) -> int:
    """Say which pages do not show what is stored, and which stored speeds are older than the code that they measured; 1 if there are any."""
    sys.path.insert(0, str(root))
    from benchmarks.figures import stale_rows

    old = [f"{path.stem}: {name}" for path in sorted((root / "results").glob("bench-*.json")) for name in stale_rows(stored(path))]
    print("\n".join(["measured before the code was changed:", *old] if old else ["every stored speed is of this code"]))
    texts = {page: page.read_text(encoding="utf-8") for page in pages(root)}
    other = [str(page.relative_to(root)) for page, home in pages(root).items() if rendered(texts[page], root / "results", home) != texts[page]]
    other += [str(path.relative_to(root)) for path, text in raw_tables(root).items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    other += [str(path.relative_to(root)) for path in left_over(root)]
    if other:
        print(f"not as stored: {', '.join(other)}; make results")
    return int(bool(old or other))


def main() -> int | None:
    root = Path(__file__).parent.parent
    if "--check" in sys.argv:
        return check(root)
    draw(root)
    (root / "results/tables").mkdir(exist_ok=True)
    for path in left_over(root):
        path.unlink()
    for path, text in raw_tables(root).items():
        path.write_text(text, encoding="utf-8")
    for page, home in pages(root).items():
        text = page.read_text(encoding="utf-8")
        page.write_text(rendered(text, root / "results", home), encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
