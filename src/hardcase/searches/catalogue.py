"""The searches that move candidates, as a table that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """One line of ``hardcase list searches``. `where` is ``module:class`` in this folder."""

    name: str
    summary: str
    needs: str
    where: str
    paper: str = ""
    laws: tuple[str, ...] = (
        "state survives save and load",
        "same seed, same walk",
        "all seeds in one batch",
    )


SEARCHES = {
    row.name: row
    for row in (
        SearchRow(
            name="gradient-ascent",
            summary="steps along the sign, the unit or the scaled gradient of the score",
            needs="gradients",
            where="gradient:GradientAscent",
            paper="Madry et al., ICLR 2018; Pei et al., SOSP 2017",
        ),
        SearchRow(
            name="carlini-wagner",
            summary="Adam on distance plus weighted margin, the weight found by bisection",
            needs="gradients",
            where="carlini_wagner:CarliniWagner",
            paper="Carlini and Wagner, IEEE S&P 2017",
        ),
        SearchRow(
            name="genetic",
            summary="a population a seed: crossover, mutation where a code differs from its seed, a mask that resets the rest",
            needs="label",
            where="genetic:Genetic",
            paper="Kang, Feldt and Yoo, SBST 2020",
        ),
        SearchRow(
            name="crossing",
            summary="the shortest way into a near other class: race along few coordinates, shorten, halve to the boundary",
            needs="label",
            where="boundary:Crossing",
        ),
        SearchRow(
            name="interpolation",
            summary="every seed mixed once with every partner of another class, at one share",
            needs="label",
            where="interpolation:Interpolation",
            paper="Duan, Dwyer and Yang, 2025 (ARGUS)",
        ),
        SearchRow(
            name="bisection",
            summary="the smallest share of near partners that reaches each other class, then what of it can be taken back",
            needs="label",
            where="boundary:Bisection",
        ),
        SearchRow(
            name="pixel-genetic",
            summary="a population a seed: tournaments, uniform crossover and small mutations of pixels",
            needs="scores",
            where="genetic:PixelGenetic",
            paper="Xie et al., IJCAI 2019",
        ),
        SearchRow(
            name="worklist",
            summary="short gradient walks from a list that grows by candidates that are new and near",
            needs="gradients",
            where="worklist:Worklist",
            paper="Guo et al., ESEC/FSE 2018; Lee et al., ISSTA 2020",
        ),
        SearchRow(
            name="fan",
            summary="several gradient walks from every seed, each with an aim of its own",
            needs="gradients",
            where="gradient:Fan",
            paper="Te Wei Lee, report, 2020",
        ),
        SearchRow(
            name="fuzzing",
            summary="mutants of parents that a corpus chooses: white noise, or changes that keep a picture's meaning",
            needs="label",
            where="fuzzing:Fuzzing",
            paper="Xie et al., ISSTA 2019; Odena et al., ICML 2019",
        ),
        SearchRow(
            name="exits",
            summary="random walks out of a class, halved to the border, and the class they enter there",
            needs="label",
            where="boundary:Exits",
        ),
        SearchRow(
            name="hill-climbing",
            summary="one coordinate after the other is moved by chance; the move stays if the score rises",
            needs="whatever the objective needs",
            where="hill_climbing:HillClimbing",
            paper="Kang, Feldt and Yoo, SBST 2020",
        ),
    )
}
