"""Who makes no claim is classified."""

import pytest
import torch

from hardcase.campaign.claims import Claims, asking, stored_label
from hardcase.testing.toys import toy_subject
from hardcase.types import Seeds


def test_images_without_claims_are_classified():
    x = torch.rand(2, 1, 8, 8)
    origin = Seeds(torch.zeros(2, 1), x, torch.zeros(2).long(), torch.arange(2))
    assert Claims.of(origin) is None
    model = toy_subject()
    assert torch.equal(asking(model, None)(x).logits, model(x).logits)


@pytest.mark.parametrize("known", [None, {}])
def test_labels_of_classifiers_are_stored_as_they_are(known):
    label = torch.tensor([0, 5, 9])
    assert stored_label(label, 10, known) is label
    assert stored_label(label, 10, {"claim_kind": label}).tolist() == [0, 5, -3]
