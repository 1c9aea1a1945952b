"""AugNet: torchvision's ResNet-50 under our names, its batch normalisation folded exactly."""

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase_teams.pretrained.resnet50 import augnet, from_torchvision

SMALL = {"width": 4, "numbers": 5}


class Theirs(nn.Module):
    """A bottleneck as torchvision has it."""

    def __init__(self, before, width, stride, projected):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        beside = (nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.downsample = nn.Sequential(*beside) if projected else None

    def forward(self, x):
        inner = torch.relu(self.bn1(self.conv1(x)))
        inner = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(inner)))))
        return torch.relu(inner + (x if self.downsample is None else self.downsample(x)))


class Whole(nn.Module):
    def __init__(self, width, numbers):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        before = width
        for stage, count in enumerate((3, 4, 6, 3)):
            blocks = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(Theirs(before, width * 2**stage, stride, not number))
                before = 4 * width * 2**stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(before, numbers)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return torch.tanh(self.fc(x.mean((2, 3))))


@pytest.fixture
def theirs():
    torch.manual_seed(0)
    net = Whole(**SMALL)
    for _ in range(2):  # batch statistics of their own, some of them tiny
        net(0.1 * torch.rand(8, 3, 64, 64))
    return net.eval()


def test_the_package_fills_our_network_and_answers_the_same(theirs, tmp_path):
    state = {f"module.pre.{name}": value for name, value in theirs.state_dict().items()}
    torch.save(state, tmp_path / "model.pth")
    ours = augnet(**SMALL)
    ours.load_state_dict(from_torchvision({"model.pth": tmp_path / "model.pth"}, SMALL))
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(ours.eval()(x), theirs(x), rtol=1e-3, atol=1e-4)


def test_a_weight_of_another_network_is_named(tmp_path):
    torch.save({"pre.strange": torch.zeros(1)}, tmp_path / "model.pth")
    with pytest.raises(HardcaseError, match="strange"):
        from_torchvision({"model.pth": tmp_path / "model.pth"}, SMALL)
