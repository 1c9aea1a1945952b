"""The one registry: decorators, presets, files of users, entry points, and what is said of a part."""

import inspect
import pkgutil
from dataclasses import dataclass
from importlib import import_module

import pytest

from hardcase import methods, registry, searches, spaces
from hardcase.errors import HardcaseError
from hardcase.registry import Preset, method, names, part, parts, resolve
from hardcase.spaces.latent import Latent
from hardcase.testing.methods import toy_method
from hardcase.testing.toys import ToyAutoencoder
from tiny import install

FILE = '''
from hardcase.methods.pgd import fgsm
from hardcase.registry import Preset, method

@method("push", paper="ours", toy={"epsilon": 0.4},
        presets={"far": Preset(summary="a longer step", options={"epsilon": 0.9})})
def push(target: int | None = None, *, epsilon: float = 0.2):
    """One step, from outside.

    Further words.
    """
    return fgsm(target, epsilon=epsilon)

def plain(*, epsilon: float = 0.3):
    """Not decorated."""
    return fgsm(epsilon=epsilon)
'''


pytestmark = pytest.mark.usefixtures("fresh_registry")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_decorator_is_the_whole_row():
    cited = "@misc{me2026dots,\n}"

    @part("data", "dots", paper="ours", cite=cited, differences="none", colour="red")
    def dots(where, *, count: int = 4):
        """As many dots
        as asked for.

        More.
        """
        return where, count

    row = resolve("data", "dots")
    assert row.summary == "As many dots as asked for"
    assert row.given == ("where",)
    assert {name: p.default for name, p in row.options.items()} == {"count": 4}
    assert (row.keys, row.facts, row.differences) == (("me2026dots",), {"colour": "red"}, "none")
    assert row("here", count=2) == dots("here", count=2) == ("here", 2)


def test_options_are_fields_with_defaults_and_parameters_that_no_campaign_supplies():
    @part("data", "squares")
    @dataclass(frozen=True, kw_only=True)
    class Squares:
        """Squares."""

        source: str
        size: int = 3

    row = resolve("data", "squares")
    assert row.given == ("source",)
    assert list(row.options) == ["size"]
    assert row(source="x") == Squares(source="x")

    @method("mine")
    def mine(shape, target=None, epsilon=0.3, *, space="own"):
        """Mine."""

    row = resolve("method", "mine")
    assert row.given == ("shape", "target")
    assert list(row.options) == ["epsilon", "space"]


def test_a_preset_is_data_over_the_same_recipe():
    larger = Preset(summary="bigger", options={"epsilon": 0.9}, facts={"toy": {}})

    @method("step", presets={"big": larger}, toy={"epsilon": 0.5})
    def step(*, epsilon: float = 0.1):
        """A step."""
        return methods.fgsm(epsilon=epsilon)

    small, big = resolve("method", "step"), resolve("method", "step@big")
    assert big.options["epsilon"].default == 0.9
    assert big().search.step_size == 0.9
    assert big(epsilon=0.2).search.step_size == 0.2
    assert (small().name, big().name, step().name) == ("step", "step@big", "step")
    assert (small.facts["toy"], big.facts["toy"]) == ({"epsilon": 0.5}, {})
    assert big.summary == "bigger"


def test_methods_carry_the_name_they_were_asked_for_by_and_presets_their_source():
    space = Latent(ToyAutoencoder())
    assert methods.sinvad(space=space).name == "sinvad"
    assert methods.sinvad(space).name == "sinvad"
    assert methods.sinvad_code(space=space).name == "sinvad@code"
    assert toy_method(resolve("method", "deepxplore@adapt")).name == "deepxplore@adapt"
    assert inspect.signature(methods.pgd).parameters["gradients"].default == 40
    row = resolve("method", "deepxplore@adapt")
    assert row.keys == ("lee2020adapt",)
    assert row.make is resolve("method", "adapt").make
    assert resolve("method", "deepxplore@code").keys == ("pei2017deepxplore",)


@pytest.mark.parametrize(("name", "epsilon"), [("push", 0.2), ("push@far", 0.9), ("plain", 0.3)])
def test_a_part_of_a_users_file(file, name, epsilon):
    row = resolve("method", f"{file}:{name}")
    assert row.name == f"{file}:{name}"
    assert row().search.step_size == epsilon
    assert row().name == row.name
    assert resolve("method", f"{file}:{name}").name == row.name, "a file can be read twice"


def test_a_decorated_part_of_a_file_keeps_its_row(file):
    row = resolve("method", f"{file}:push")
    assert (row.summary, row.paper) == ("One step, from outside", "ours")
    assert toy_method(row).search.step_size == 0.4
    assert resolve("method", f"{file}:plain").paper == "supplied"


def test_what_a_file_or_the_registry_lacks_is_said(file):
    with pytest.raises(HardcaseError, match=r"(?s)no function 'pull'.*push"):
        resolve("method", f"{file}:pull")
    with pytest.raises(HardcaseError, match=r"(?s)no preset of push 'fa'.*try: far"):
        resolve("method", f"{file}:push@fa")
    with pytest.raises(HardcaseError, match="there is no file"):
        resolve("method", "nowhere.py:push")
    with pytest.raises(HardcaseError, match=r"(?s)no method 'sinvat'.*try: sinvad"):
        resolve("method", "sinvat")
    with pytest.raises(HardcaseError, match=r"(?s)no kind of part 'methods'.*try: method"):
        resolve("methods", "pgd")


def test_two_parts_cannot_share_a_name(tmp_path, file):
    resolve("method", f"{file}:push")
    other = tmp_path / "other.py"
    other.write_text(FILE)
    with pytest.raises(
        HardcaseError, match=r"two parts of kind method .*'push'.*mine.py.*other.py"
    ):
        resolve("method", f"{other}:push")


def test_an_installed_package_offers_parts(tmp_path, monkeypatch):
    (tmp_path / "lost.py").write_text("raise SystemExit(0)")
    point = "[hardcase.method]\nshove = outsider:plain\n"
    points = install(tmp_path, monkeypatch, "outsider", FILE, point)
    registry._loaded.discard("method")
    assert resolve("method", "shove")().name == "shove"
    points.write_text("[hardcase.method]\nbroken = lost:plain\n")
    registry._loaded.discard("method")
    with pytest.raises(
        HardcaseError, match=r"method 'broken' of the entry point lost:plain called sys"
    ):
        resolve("method", "broken")
    assert resolve("method", "pgd").name == "pgd", "nobody else imports it"
    assert "broken" in names("method")
    with pytest.raises(HardcaseError, match="broken"):
        resolve("method", "brokn")


def classes(room, *needed):
    """The classes of a room that have all these methods, protocols aside."""
    for info in pkgutil.iter_modules(room.__path__):
        module = import_module(f"{room.__name__}.{info.name}")
        for _, found in inspect.getmembers(module, inspect.isclass):
            own = found.__module__ == module.__name__ and not getattr(found, "_is_protocol", False)
            if own and found.__name__[0] != "_" and all(hasattr(found, name) for name in needed):
                yield found


NEEDED = {searches: ("init", "step"), spaces: ("encode", "decode", "project")}


@pytest.mark.parametrize(("kind", "room"), [("search", searches), ("space", spaces)])
def test_no_search_and_no_space_is_forgotten(kind, room):
    found = list(classes(room, *NEEDED[room]))
    known = [row.make for row in parts(kind).values()]
    assert len(found) > 8
    built_for_a_map = {"Illumination"}
    assert {one.__name__ for one in found} - built_for_a_map == {one.__name__ for one in known}


def test_searches_that_need_gradients_say_so():
    for row in parts("search").values():
        source = inspect.getsource(row.make)
        asks = "evaluate.gradient(" in source or "self.source(state, evaluate" in source
        assert (row.facts["needs"] == "gradients") == asks, row.name
