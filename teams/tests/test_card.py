"""What a run says elsewhere: the section, the picture, the comment, and the card as the Hub's own parser reads it."""

import io

import pytest
from PIL import Image

import hardcase as hc
from hardcase.errors import HardcaseError
from hardcase.suite.gate import GateLimits
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_teams.card import (
    BEGIN,
    END,
    PICTURE,
    CardContent,
    escaped,
    write_comment,
    write_hub_card,
)


@pytest.fixture
def run(measured):
    return measured[0]


def test_the_section_has_every_figure_with_its_interval(run):
    content = CardContent(run, GateLimits(risk=1.0))
    rows = {name: (value, span) for name, value, span, _ in content.figures()}
    risk = run.record["risk"]
    assert rows["failure rate"] == (
        f"{100 * risk['value']:.1f} %",
        f"{100 * risk['low']:.1f} to {100 * risk['high']:.1f} %",
    )
    assert {name for name, _, _ in content.conditions()} == {"shift", "exposure"}
    text = content.section(heading="# It", picture="p.png")
    assert all(value in text for value, _ in rows.values())
    assert "](p.png)" in text
    assert content.outcome()[0] == "pass"
    assert CardContent(run, GateLimits(risk=0.0)).outcome()[0] == "fail"


def test_figures_of_the_baseline_stand_beside_and_are_paired(run):
    content = CardContent(run, baseline=run)
    said, found = content.outcome()
    assert said in ("pass", "inconclusive"), "48 images do not show that nothing changed"
    assert [check.name for check in found][-1] == "failure rate against the baseline"
    assert all(value == before for _, value, _, before in content.figures())
    assert "+0.0 pp" in content.difference()


def test_the_picture_is_small_and_a_comment_shows_it_where_readers_find_it(run, tmp_path):
    image = CardContent(run).picture()
    assert 0 < len(image) < 200_000
    assert Image.open(io.BytesIO(image)).format == "PNG"
    page = write_comment(CardContent(run), tmp_path, picture="https://a.b/c.png")
    assert "](https://a.b/c.png)" in page.read_text()
    assert (tmp_path / PICTURE).read_bytes() == image


def test_what_a_folder_says_is_no_markup():
    assert escaped("<b>|x|\n[a](b)") == r"\<b\>\|x\| \[a\](b)"


def test_a_run_without_conditions_has_no_card(tmp_path):
    none = hc.run(toy_subject(), toy_images(8), method="pgd", out=tmp_path / "a", judge=False, conditions="none")  # fmt: skip
    with pytest.raises(HardcaseError):
        CardContent(none)


def test_the_hubs_own_parser_reads_the_card_and_the_benchmark(run, tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="an extra: hardcase[huggingface]")
    yaml = pytest.importorskip("yaml", reason="comes with huggingface_hub")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n\nWords.\n")
    for _ in range(2):  # the second time nothing is there twice
        path = write_hub_card(CardContent(run), tmp_path, benchmark="a/b:risk")
    card = hub.ModelCard.load(path)
    assert card.data.license == "mit"
    assert card.text.count(BEGIN) == card.text.count(END) == 1
    assert card.text.startswith("# Mine")
    values = {one.metric_type: one for one in card.data.eval_results}
    assert values["risk"].metric_value == run.record["risk"]["value"]
    risk = run.record["risk"]
    assert values["risk"].metric_args == {"low": risk["low"], "high": risk["high"]}
    assert len(card.data.eval_results) == len(values)
    entries = yaml.safe_load((tmp_path / ".eval_results/hardcase.yaml").read_text())
    [entry] = hub.parse_eval_result_entries(entries)
    assert (entry.dataset_id, entry.task_id, entry.value) == ("a/b", "risk", run.record["risk"]["value"])  # fmt: skip
    with pytest.raises(HardcaseError):
        write_hub_card(CardContent(run), tmp_path, benchmark="nothing")
