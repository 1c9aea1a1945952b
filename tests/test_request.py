"""A request: each setting knows who gave it, and two values of one giver are an error."""

import pytest

from hardcase.errors import HardcaseError
from hardcase.request import GIVERS, Request, Settings, flag_values, refuse_unused, typed_settings

WHOLE = {"model": "zoo:lenet5", "data": "mnist5k", "method": "pgd"}


@pytest.mark.parametrize("first", range(len(GIVERS)))
@pytest.mark.parametrize("second", range(len(GIVERS)))
def test_the_later_giver_of_the_list_wins_in_any_order(first, second):
    if first == second:
        return
    request = Request()
    for place in (first, second):
        request.ask({"images": place}, GIVERS[place])
    winner = max(first, second)
    assert (request.values["images"], request.given["images"]) == (winner, GIVERS[winner])


def test_each_key_of_a_section_has_a_giver_of_its_own():
    request = Request().ask({"campaign": {"margin": 9, "shard": 7}}, "hardcase.toml")
    request.ask({"campaign": {"tile": 16, "shard": 3}}, "python")
    assert request.values["campaign"] == {"margin": 9, "shard": 3, "tile": 16}
    assert request.given == {
        "campaign.margin": "hardcase.toml",
        "campaign.shard": "python",
        "campaign.tile": "python",
    }


def test_options_of_a_method_are_settings_and_a_name_alone_is_one():
    request = Request().ask({"method": {"name": "pgd", "steps": 3}}, "hardcase.toml")
    request.ask({"method": "sinvad"}, "flag")
    assert request.values["method"] == {"name": "sinvad", "steps": 3}
    request.forget("method")
    assert not request.asks_for("method.name")
    assert not request.asks_for("method.steps")


@pytest.mark.parametrize(
    ("labels", "told"),
    [(("--images", ""), ("--images", "--set images")), (("", ""), ("--set images",))],
)
def test_two_values_of_one_giver_are_an_error_that_names_both(labels, told):
    request = Request().ask({"images": 8}, "flag", labels[0])
    request.ask({"images": 8}, "flag", labels[0])  # the same again is no contradiction
    with pytest.raises(HardcaseError) as caught:
        request.ask({"images": 9}, "flag", labels[1])
    assert all(word in caught.value.what for word in ("8", "9", *told))


def test_what_is_none_was_not_given():
    request = Request().ask({"images": None, "budget": {"queries": None}}, "python")
    assert request.values == request.given == {}


def test_a_configuration_says_who_gave_each_setting():
    request = Request().ask(WHOLE, "hardcase.toml").ask({"seed": 3}, "flag")
    assert request.config().given["method.name"] == "hardcase.toml"
    stored = {"device": "default", "seed": "python", "method.name": "flag"}
    config = request.config(stored=stored)
    assert config.seed == 3
    assert config.given == {**stored, "seed": "flag"}, "what a run was given stays so"


def test_flags_set_the_keys_of_their_names():
    assert flag_values("queries", 4) == {"budget": {"queries": 4}}
    assert flag_values("images", 4) == {"images": 4}
    assert flag_values("quiet", True) == {}
    assert list(typed_settings(["campaign.tile=16", "seed=2"])) == [
        {"campaign": {"tile": 16}},
        {"seed": 2},
    ]


def test_a_setting_that_a_call_does_not_use_is_refused_with_the_nearest_one():
    refuse_unused({"samples": 3}, Settings.__annotations__, "hc.run")
    with pytest.raises(HardcaseError, match="samples"):
        refuse_unused({"sample": 3}, Settings.__annotations__, "hc.run")


@pytest.mark.parametrize("by", ["hardcase.toml", "flag", "python"])
def test_the_old_name_of_a_section_is_refused_with_the_new_one(by):
    with pytest.raises(HardcaseError, match=r"\[subject\] is now \[model\]"):
        Request().ask({"subject": {"mean": [0.5]}}, by)


def test_the_name_of_a_model_and_what_is_stated_of_it_come_from_different_givers():
    file = {"model": {"name": "net.py:old", "mean": [0.5]}, "data": "mnist5k", "method": "pgd"}
    request = Request().ask(file, "hardcase.toml").ask({"model": "net.py:new"}, "flag")
    config = request.config()
    assert (config.model.name, config.model.mean) == ("net.py:new", (0.5,))
    assert config.given["model.name"] == "flag"
    assert config.given["model.mean"] == "hardcase.toml"
