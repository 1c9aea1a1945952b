"""Mean effect beside `imagecorruptions` on photographs, severity by severity."""

import pytest
import torch
from peer import corrupted, peer

from hardcase.corruptions import CORRUPTIONS, corrupt


def photographs(side=224):
    """Crops of the two photographs that come with scikit-learn."""
    datasets = pytest.importorskip("sklearn.datasets")
    pytest.importorskip("PIL", reason="reading photographs needs Pillow")
    whole = [
        torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255
        for image in datasets.load_sample_images().images
    ]
    return torch.stack(
        [image[:, 80 : 80 + side, left : left + side] for image in whole for left in (30, 350)]
    )


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_mean_effect_is_that_of_imagecorruptions(name, monkeypatch):
    found = peer(monkeypatch)
    x = photographs()
    draws = 1 if name == "glass_blur" else 4
    for severity in (1, 3, 5):
        theirs = [
            (corrupted(found, x, name, severity, seed) - x).abs().mean() for seed in range(draws)
        ]
        level = torch.full((len(x),), float(severity))
        ours = [
            (corrupt(x, name, level, torch.arange(len(x)) + 10 * i) - x).abs().mean()
            for i in range(draws)
        ]
        want, got = float(torch.stack(theirs).mean()), float(torch.stack(ours).mean())
        assert got == pytest.approx(want, rel=0.12, abs=0.003), severity
