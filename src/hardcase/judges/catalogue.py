"""The judges that exist, as a table that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of ``hardcase list judges``."""

    name: str
    summary: str
    needs: str
    paper: str
    laws: tuple[str, ...] = (
        "took no part in the search",
        "never saw the seeds",
        "never used in a search",
    )


_STUDY = "Riccio and Tonella, ICSE 2023 (the study it is measured against)"

JUDGES = {
    row.name: row
    for row in (
        Row(
            name="valid",
            summary="does the test look like the data: classifiers that may answer nothing, nearness to training images, "
            "likelihood against images of equal complexity, contrast",
            needs="the training split of the data",
            paper=f"{_STUDY}; Serrà et al., ICLR 2020",
        ),
        Row(
            name="label_kept",
            summary="does the test still show what its seed showed: classifiers taught on changed, blended and ruined images, "
            "nearest training images",
            needs="the training split of the data",
            paper=f"{_STUDY}; Wong, Rice and Kolter, ICLR 2020",
        ),
        Row(
            name="distinct",
            summary="which confirmed tests show one likely fault: class pair, features of the panel, HDBSCAN",
            needs="confirmed tests",
            paper="Campello, Moulavi and Sander, PAKDD 2013; Hennig, CSDA 2007",
            laws=("same tests, same groups", "every confirmed test is in one group"),
        ),
        Row(
            name="silent",
            summary="confirmed tests on which the model is as sure as of its right answers; risk and coverage",
            needs="confirmed tests and the model's confidences",
            paper="Geifman and El-Yaniv, NeurIPS 2017; Naeini et al., AAAI 2015",
            laws=("one alarm threshold for all tests",),
        ),
    )
}
