"""Names from all of Unicode, through a run, its report and its exports."""

import json
import os
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from hypothesis import given, settings, strategies as st
from PIL import Image

import hardcase as hc
from hardcase.data.sources import load
from hardcase.models.subject import Subject
from hardcase.report.page import write
from hardcase.runs.results import Run
from hardcase.suite.export import export
from hardcase.testing.toys import Quarters, toy_images

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
SEEDS = 4
ODD = [
    "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}", "soft\u00adhyphen", "\ufeffbom", "\u200frtl", "nel\x85",
    "del\x7f", "line\u2028separator", "unassigned\U0003fffe", "e\u0301", "\u00e9", "=1+1", "<b>&amp;",
    "not utf-8 \udcff", " ", ".", "..", "-", "%s", "{x}", "a\nb", "a\tb", "\u202eabc", "CON", "𝒜",
    "<script>alert(1)<∕script>", '"><img src=x onerror=alert(2)>', "'; alert(3); ∕∕", "{{ 7 * 7 }}",
]  # fmt: skip

signs = st.characters(exclude_characters="/\0", exclude_categories=("Cs",))
odd = st.sampled_from([name for name in ODD if "\udcff" not in name])
names = st.text(signs, min_size=1, max_size=12) | odd
lists = st.lists(names, min_size=SEEDS, max_size=SEEDS, unique=True)


class Tags(HTMLParser):
    """What a page makes its reader's browser do."""

    def __init__(self, page):
        super().__init__()
        self.wrong = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if given.get("src") == "x" or any(name.startswith("on") for name in given):
            self.wrong.append((tag, given))

    def handle_data(self, data):
        if self.cdata_elem == "script" and data.startswith("alert(1)"):
            self.wrong.append(data)


def through(ids, classes, folder):
    """A run from images of these names; its report and every export that is a file."""
    images = replace(toy_images(SEEDS), id=tuple(ids), classes=tuple(classes))
    run = hc.run(Subject(Quarters()), images, method="pgd", out=folder / "run", judge=False)
    page = write([run], folder / "report")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    for form in ("npz", "csv", "junit", "imagefolder"):
        export(run, form, folder / form)
    return Run(folder / "run")


@settings(max_examples=60 if LONG else 4, deadline=None, derandomize=True)
@given(lists, lists)
def test_any_names_run_report_and_export(ids, classes):
    with tempfile.TemporaryDirectory() as place:
        run = through(ids, classes, Path(place))
        assert len(set(run.seeds["id"].to_pylist())) == SEEDS
        assert len(list((Path(place) / "imagefolder").rglob("*.png"))) == len(run)


def test_any_names_of_a_file_system_run_from_the_command_line(tmp_path, monkeypatch, command):
    """Class folders and files of odd names, as far as the file system takes them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    taken = 0
    for name in ODD:
        level = 10 * taken + 3
        try:
            os.makedirs(Path("photos") / name)
            for i in range(2):
                pixels = rng.integers(level, level + 4, (8, 8)).astype(np.uint8)
                Image.fromarray(pixels).save(Path("photos") / name / f"{name}{i}.png")
        except (OSError, UnicodeError):  # ".", "..", or a file system of another mind
            continue
        taken += 1
    assert taken > len(ODD) / 2
    data = "folder:photos?split=all"
    images = load(data).images()
    light = [images.x[images.y == label].float().mean() for label in range(taken)]
    levels = [round((float(mean) - 5) / 10) for mean in light]
    (tmp_path / "net.py").write_text(NET.replace("LEVELS", repr(levels)))
    run = f"run --model net.py:make --data {data} --method pgd --images {taken} --gradients 3"
    for out in ("<i>one", "two"):
        assert command(f"{run} --out {out} -q")[0] == 0
    assert command("report <i>one --out report -q")[0] == 0
    assert command("compare <i>one two --out compare.html -q")[0] == 0
    for page in ("report/index.html", "compare.html"):
        assert Tags(Path(page)).wrong == [], page
    assert "{{ 7 * 7 }}" in Path("report/index.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" in Path("report/report.json").read_text(encoding="utf-8")
    for form in ("csv", "imagefolder"):
        assert command(f"export two --to {form} --out {form} -q")[0] == 0


NET = """
import torch
from torch import nn
class Net(nn.Module):
    def forward(self, x):
        light = 255 * x.mean((1, 2, 3))[:, None]
        return -((light - 10 * torch.tensor(LEVELS) - 5) / 3) ** 2
def make():
    return Net()
"""
