"""Zero-shot classifiers: a tiny random CLIP and SigLIP answer as their own forward does."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="an extra: hardcase[huggingface]")

from hardcase.errors import HardcaseError  # noqa: E402
from hardcase.models.load import Loading, load_model  # noqa: E402
from hardcase.types import Images  # noqa: E402
from hardcase_teams import hubs  # noqa: E402

TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 12, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}  # fmt: skip
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "photo", "drawing", "of", "red", "blue", "green"]


def saved(kind, folder):
    """A random network with a tokenizer of eleven words, as save_pretrained leaves them."""
    torch.manual_seed(0)
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=8)
        model = transformers.CLIPModel(config)
    else:
        config = transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
        model = transformers.SiglipModel(config)
    model.save_pretrained(folder)
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    words.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"shortest_edge": 16}})
    )
    return model.eval(), words


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_it_answers_as_the_network_itself(kind, tmp_path):
    model, words = saved(kind, tmp_path)
    hub = hubs.from_hub(f"hf:{tmp_path}?labels=red,blue,green", offline=True)
    assert hub.classes == ("red", "blue", "green")
    assert (hub.size, hub.mean) == (16, (0.5, 0.5, 0.5))
    x = torch.randn(4, 3, 16, 16)
    said = words(
        [f"a photo of a {label}" for label in hub.classes],
        padding="max_length", max_length=12, return_tensors="pt",
    )  # fmt: skip
    with torch.no_grad():
        whole = model(
            input_ids=said["input_ids"], attention_mask=said["attention_mask"], pixel_values=x
        )
        assert torch.allclose(hub.net(x), whole.logits_per_image, atol=1e-5)


def test_it_is_a_subject_with_gradients_and_another_template_is_another_model(tmp_path):
    saved("clip", tmp_path)
    images = Images(
        torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8),
        torch.tensor([0, 1] * 4), tuple(map(str, range(8))), ("red", "blue"),
    )  # fmt: skip
    how = Loading(test=images, offline=True)
    subject = load_model(f"hf:{tmp_path}?labels=red,blue", how)
    other = load_model(f"hf:{tmp_path}?labels=red,blue&template=a drawing of {{}}", how)
    assert subject.offers == "gradients"
    assert subject.sizing == "resize=16&crop=16"
    x = torch.rand(3, 3, 16, 16, requires_grad=True)
    subject(x).logits.sum().backward()
    assert x.grad.abs().sum() > 0
    assert subject.hash != other.hash


@pytest.mark.parametrize("words", ["labels=", "labels=one", "labels=a,b&template=plain", "size=3"])
def test_what_tells_nothing_apart_is_refused(words, tmp_path):
    with pytest.raises(HardcaseError):
        hubs.from_hub(f"hf:{tmp_path}?{words}", offline=True)
