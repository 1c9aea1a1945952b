"""What a notebook shows of a run and of a finding."""

import hardcase as hc
from hardcase.testing.toys import toy_images, toy_subject


def test_a_run_shows_its_funnel_and_pictures(tmp_path):
    run = hc.run(toy_subject(), toy_images(6), method="pgd", out=tmp_path / "<run>", judge=False)
    html = run._repr_html_()
    assert "&lt;run&gt;" in html
    assert "<run>" not in html
    assert "failing: 6 of 6" in html
    assert html.count("data:image/png") == 3 * html.count("difference</figcaption>") > 0
    assert "data:image" in run[0]._repr_html_()
    assert "failing: 6 of 6" in str(run)


def test_a_run_without_findings_shows_its_funnel(tmp_path):
    nothing = hc.Budget(queries=1)
    run = hc.run(
        toy_subject(),
        toy_images(4),
        method="pgd",
        budget=nothing,
        out=tmp_path / "run",
        judge=False,
    )
    assert "attempted" in run._repr_html_()
