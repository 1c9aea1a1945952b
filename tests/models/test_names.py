"""Classes of the data are mapped to outputs of the model by name."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models import names
from hardcase.models.names import COUNT, aligned, class_map, imagenet, map_between
from hardcase.models.subject import Subject
from hardcase.oracles import LeavesLabel
from hardcase.testing.toys import toy_images
from hardcase.types import Probe, Seeds
from tiny import bars

MODEL = ("tench", "great white shark", "crane (n02012849)", "crane (n03126707)")
SYNSETS = ("n01440764", "n01484850", "n02012849", "n03126707")
LEMMAS = {0: ("tench", "Tinca tinca"), 2: ("crane",), 3: ("crane",)}


@pytest.mark.parametrize(
    ("folder", "output", "how"),
    [
        ("n01484850", 1, "synset"),
        ("0001_n01484850_great_white_shark", 1, "synset"),
        ("Great_White-Shark", 1, "name"),
        ("Tinca tinca", 0, "name"),
        ("0003_tench", 0, "name"),
        ("2", 2, "number"),
    ],
)
def test_folders_find_their_output(folder, output, how):
    found = class_map([folder], MODEL, synsets=SYNSETS, lemmas=LEMMAS)
    assert (found.outputs, found.how) == ((output,), (how,))


@pytest.mark.parametrize(
    ("folders", "words", "also"),
    [
        (["tench", "crane"], "'crane'", ""),  # a name of two outputs is not guessed
        (["tench", "tenck"], r"1 of 2 classes .* 'tenck'", "tench"),
        (["tench", "n01440764"], "both mean", ""),
    ],
)
def test_folders_that_mean_no_output_of_their_own_are_told(folders, words, also):
    with pytest.raises(HardcaseError, match=words) as caught:
        class_map(folders, MODEL, synsets=SYNSETS, lemmas=LEMMAS)
    assert also in str(caught.value)


def test_the_mapping_can_be_printed_and_applied():
    images = bars(6, classes=2)
    found = class_map(["0", "1"], ["a", "b", "c"], synsets=())
    assert str(found) == "0 ->    0 a (number)\n1 ->    1 b (number)"
    named = class_map(["b", "a"], ["a", "b", "c"])
    mapped = named.apply(replace(images, classes=("b", "a")))
    assert torch.equal(mapped.y, 1 - images.y)
    assert mapped.classes == ("a", "b", "c")
    with pytest.raises(HardcaseError, match="other classes"):
        named.apply(images)


def test_other_words_for_classes_are_the_same_or_taken_by_position_and_said():
    found = class_map(["uno", "due"], ["one", "two"])
    assert (found.how, found.outputs) == (("position", "position"), (0, 1))
    found = class_map(["airplane", "tv", "couch"], ["aeroplane", "sofa", "tv-monitor", "cat"])
    assert found.outputs == (0, 2, 1)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    numbers = [f"n{10_000_000 + i}" for i in range(1000)]
    words = ["crane" if i in (3, 5) else f"thing{i}, kind of {i}" for i in range(1000)]
    lines = [f"{number}\t{word}" for number, word in zip(numbers, words)]
    texts = {"imagenet_synsets.txt": numbers, "imagenet_synset_to_lemma.txt": lines}
    files = {name: tmp_path / name for name in texts}
    for name, text in texts.items():
        files[name].write_text("\n".join(text))
    monkeypatch.setattr(names, "_installed", lambda: files)
    return files


def test_imagenets_classes_come_from_the_installed_package_once(table, monkeypatch):
    rows = imagenet()
    assert (rows[0].synset, rows[0].name) == ("n10000000", "thing0")
    assert rows[3].name == "crane (n10000003)"
    monkeypatch.setattr(names, "_installed", lambda: pytest.fail("asked twice"))
    assert imagenet(offline=True) == rows
    outputs = [row.name for row in rows]
    assert map_between(["n10000007", "kind of 9", "12"], outputs).outputs == (7, 9, 12)
    names.imagenet_cache().write_text("[]")
    with pytest.raises(HardcaseError, match="0 classes instead of 1000"):
        imagenet()


def test_without_any_source_nothing_is_fetched_unasked(table, monkeypatch):
    monkeypatch.setattr(names, "_installed", lambda: None)
    with pytest.raises(HardcaseError, match="not on this machine"):
        imagenet(fetch=False)
    with pytest.raises(HardcaseError, match="--offline forbids"):
        imagenet(offline=True)


def test_images_come_under_the_classes_of_the_model_where_names_differ():
    images = bars(6, classes=3)
    model = ("zero", "2", "1", "0")
    mapped = aligned(images, model)
    assert mapped.classes == model
    assert mapped.y.tolist() == [3, 2, 1, 3, 2, 1]
    assert torch.equal(mapped.x, images.x)
    assert aligned(images, ()) is images
    with pytest.raises(HardcaseError, match="none of the model's"):
        aligned(replace(images, classes=("ant", "bee", "moth")), ("ant", "bee", "c", "d"))
    assert map_between(("a", "b"), ("a", "b")) is None
    assert map_between(("a", "b"), ()) is None


KNOWN = {
    435: "bathtub, bathing tub", 876: "tub, vat", 638: "maillot", 639: "maillot, tank suit",
    836: "sunglass", 837: "sunglasses, dark glasses", 134: "crane", 517: "crane",
}  # fmt: skip
IMAGENET_NAMES = [KNOWN.get(i, f"class {i}") for i in range(COUNT)]


class Answers(nn.Module):
    """Answers tub, then bathtub, then crane the machine, whatever it is shown."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        logits = torch.zeros(len(x), COUNT)
        logits[:, 876], logits[:, 435], logits[:, 517] = 9, 8, 7
        return logits + self.weight


def test_only_imagenets_names_are_grouped_and_a_bird_is_no_machine():
    assert names.same_outputs(IMAGENET_NAMES) == ((435, 876), (638, 639), (836, 837))
    assert names.same_outputs(["bathtub", "tub"]) == ()
    assert all(len(set(words)) == 2 for words in names.SAME)


def test_a_tub_for_a_bathtub_is_no_failure_and_another_class_is_one():
    x = torch.rand(3, 1, 8, 8)
    label = torch.tensor([435, 435, 134])
    origin = Seeds(x, x, label, torch.arange(3))

    def leaves(classes):
        logits = Subject(Answers(), classes=classes)(x).logits
        return LeavesLabel()(Probe(x, x, logits, origin)).tolist()

    assert leaves(IMAGENET_NAMES) == [False, False, True]
    plain = [f"class {i}" for i in range(COUNT)]
    assert leaves(plain) == [True, True, True], "without names nobody knows"


def test_labels_of_both_names_are_the_firsts_and_the_gradient_goes_to_the_greater():
    images = replace(toy_images(2), y=torch.tensor([0, 1]), classes=("tub", "class 5"))
    found = aligned(images, IMAGENET_NAMES)
    assert found.y.tolist() == [435, 5]
    whole = replace(images, y=torch.tensor([876, 637]), classes=tuple(IMAGENET_NAMES))
    assert aligned(whole, IMAGENET_NAMES).y.tolist() == [435, 637]
    logits = torch.tensor([[1.0, 3.0, 0.0, 2.0]], requires_grad=True)
    one = names.merged(logits, ((0, 1),))
    assert one.tolist() == [[3.0, 0.0, 0.0, 2.0]]
    one[0, 0].backward()
    assert logits.grad.tolist() == [[0.0, 1.0, 0.0, 0.0]]
