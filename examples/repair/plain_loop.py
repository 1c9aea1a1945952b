"""The worst of four draws in a training loop of one's own: one line more than before."""

import torch
from torch.nn import functional

import hardcase as hc


def main(epochs: int = 2) -> float:
    train = hc.data.load("mnist5k", split="train").first(512)
    x, y = train.x.float() / 255, train.y
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1152, 10)
    )
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    hard = hc.WorstOfK(net, "scanner", draws=4)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            images = hard(x[rows], y[rows])  # the line
            loss = functional.cross_entropy(net(images), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return float(loss.detach())


if __name__ == "__main__":
    print(f"loss {main():.3f}")
