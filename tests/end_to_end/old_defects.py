"""What the front door got wrong at commit f841173, as programs that run with that code and with this.

``python tests/end_to_end/old_defects.py CHECKOUT`` runs all of them with the code of a checkout
(``git worktree add --detach CHECKOUT f841173``) and prints what each does there; the outcomes at
f841173 are written down beside each. `test_old_defects.py` runs them with the code of today.
Between the two some flags and arguments got other names: a program takes the one that there is.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

BEGIN = """
import os, subprocess, sys, time
from pathlib import Path
import torch
import hardcase as hc
from hardcase.errors import HardcaseError
from hardcase.testing.toys import toy_images, toy_peer, toy_subject

try:
    import hardcase.request
    IMAGES, FLAG, BASELINE = "images", "--images", "baseline"
except ImportError:
    IMAGES, FLAG, BASELINE = "seeds", "--seeds", "references"
COMMAND = [sys.executable, "-m", "hardcase"]

def hardcase(line):
    done = subprocess.run([*COMMAND, *line.split()], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr

def run(**given):
    given = {"method": "pgd", "judge": False, "conditions": "none", **given}
    return hc.run(toy_subject(), toy_images(8), out="run", **given)

def ends(sound, what):
    print("sound" if sound else f"defect: {what}")
    sys.exit(0 if sound else 1)
"""
PHOTOGRAPHS = """
from PIL import Image
import numpy as np
Path("net.py").write_text('''
import torch
from torch import nn

class Block(nn.Module):
    # expansion, a convolution of each channel, projection

    def __init__(self, inner, wide, outer, stride):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return self.net(x)


def make():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        Block(16, 64, 24, 2), Block(24, 96, 32, 2), Block(32, 128, 48, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 2))
    with torch.no_grad():
        for one in net.modules():
            if isinstance(one, nn.BatchNorm2d):
                one.running_mean.uniform_(-0.3, 0.3)
                one.running_var.uniform_(0.2, 2)
                one.weight.uniform_(1, 2)
        net[-1].weight *= 30
    return net.eval()
''')
luck = np.random.default_rng(0)
for split in ("train", "test"):
    for name, level in (("dark", 60), ("light", 190)):
        folder = Path("photos", split, name)
        folder.mkdir(parents=True)
        for i in range(30):
            pixels = luck.normal(level, 30, (96, 96, 3)).clip(0, 255).astype("uint8")
            Image.fromarray(pixels).save(folder / f"{i}.png")
"""
SLOW = """
Path("slow.py").write_text('''
import sys
import time
from pathlib import Path
import torch

def measuring():
    "Whether the failure rate is being measured, by who asks."
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("measure_risk", "measure"):
            return True
        frame = frame.f_back
    return False

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        from hardcase.testing.toys import toy_subject
        self.net = toy_subject().net

    def forward(self, x):
        if measuring():
            Path("measuring").touch()
            time.sleep(0.004 * len(x))
        return self.net(x)

def make():
    return Slow().eval()
''')
import numpy as np
images = toy_images(400)
x = images.x.permute(0, 2, 3, 1).numpy()
for split in ("train", "test"):
    np.savez("toy.npz", x_train=x, y_train=images.y.numpy(), x_test=x, y_test=images.y.numpy())
"""

CHANCE = """
import numpy as np
Path("net.py").write_text('''
import torch

class Levels(torch.nn.Module):
    "Reads a class off the brightness of an image."
    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.tensor([0.2, 0.5, 0.8]))

    def forward(self, x):
        return -50 * (x.mean((1, 2, 3))[:, None] - self.level) ** 2

def make():
    return Levels().eval()
''')
luck = np.random.default_rng(0)
shown = np.arange(67) % 3
labels = np.where(np.arange(67) % 9 < 5, shown, (shown + 1) % 3)
levels = np.array([51, 128, 204])[shown][:, None, None, None]
x = (levels + luck.normal(0, 8, (67, 8, 8, 1))).clip(0, 255).astype("uint8")
np.savez("levels.npz", x_train=x, y_train=labels, x_test=x, y_test=labels)
"""


@dataclass(frozen=True)
class Defect:
    """A reproduction.

    Args:
        where: The page of findings and the place in it.
        what: What goes wrong.
        program: Ends with 0 where it does not.
        then: What the program said with the code of f841173.
    """

    where: str
    what: str
    program: str
    then: str


DEFECTS = {
    "margin": Defect(
        "house4 8.2",
        "a table of settings replaces what a typed argument says",
        """
how = {"witnesses": hc.Witnesses(margin=9.0, models=[toy_peer()]), "campaign": {"tile": 16}}
margin = run(**how).record["witnesses"]["margin"]
ends(margin == 9.0, f"the margin is {margin}")
""",
        "the margin is 2.0",
    ),
    "shard": Defect(
        "house4 8.2",
        "a table of settings replaces the sizes of an Execution",
        """
done = run(execution=hc.Execution(shard=5), campaign={"margin": 1.0})
ends(done.record["shards"] > 1, "8 images are one shard")
""",
        "8 images are one shard",
    ),
    "twice": Defect(
        "house4 8.2",
        "two values for one setting are taken in silence",
        """
try:
    run(execution=hc.Execution(workers=1, shard=5), campaign={"shard": 3})
except HardcaseError as problem:
    ends("twice" in str(problem), str(problem))
ends(False, "nothing is said")
""",
        "nothing is said",
    ),
    "train": Defect(
        "house4 8.3",
        "with names for model and data, train= is ignored",
        SLOW
        + """
try:
    hc.run("slow.py:make", "npz:toy.npz", train=object(), out="run", method="pgd", judge=False,
           conditions="none", allow_low_accuracy=True, **{IMAGES: 4})
except Exception as error:
    ends(True, "")
ends(False, "an object that holds no images is taken for training images")
""",
        "an object that holds no images is taken for training images",
    ),
    "peers": Defect(
        "house4 8.3",
        "a module is no peer of a model and data that are named",
        SLOW
        + """
try:
    done = hc.run("slow.py:make", "npz:toy.npz", peers=[toy_peer().net], method="deepxplore",
                  conditions="none", judge=False, allow_low_accuracy=True, out="run", **{IMAGES: 4})
except (TypeError, AttributeError) as error:
    ends(False, f"{type(error).__name__}: {error}")
ends(bool(done.record["hashes"]["peers"]), "there is no peer")
""",
        "AttributeError: 'Quarters' object has no attribute 'name'",
    ),
    "baseline": Defect(
        "house4 8.3",
        "a module is no baseline of a model and data that are named",
        SLOW
        + """
try:
    done = hc.run("slow.py:make", "npz:toy.npz", method="pgd", conditions="scanner", judge=False,
                  allow_low_accuracy=True, out="run", **{IMAGES: 4, BASELINE: [toy_peer().net]})
except Exception as error:
    ends(False, f"{type(error).__name__}: {error}")
ends(done.record["complete"], "it is not complete")
""",
        "a module is refused: it must be text",
    ),
    "bounded": Defect(
        "house4 8.4",
        "declared conditions do not bound a method that is given built",
        """
from dataclasses import replace
built = replace(hc.methods.natural(shape=(1, 8, 8)), name="mine")
done = run(method=built, conditions={"rotation": "±40 deg"}, witnesses=[])
columns = (done.record["space"] or {}).get("columns")
ends(columns is not None and len(columns) == 1, f"it searches the columns {columns}")
""",
        "it searches the columns None",
    ),
    "recipe": Defect(
        "house4 8.4",
        "declared conditions do not bound a recipe of the user's own",
        """
Path("own.py").write_text('''
import hardcase as hc

def mine(shape):
    "A recipe of somebody's own in the space of appearance."
    return hc.methods.natural(shape=shape)
''')
done = run(method="own.py:mine", conditions={"rotation": "±40 deg"}, witnesses=[])
columns = (done.record["space"] or {}).get("columns")
ends(columns is not None and len(columns) == 1, f"it searches the columns {columns}")
""",
        "it searches the columns None",
    ),
    "unused": Defect(
        "house4 8.5",
        "hc.search accepts settings that it does not use",
        """
taken = []
for name, value in (("judge", False), ("criteria", "nc"), ("limits", {"risk": 0.1}),
                    ("metrics", "m.prom"), ("cluster", "auto"), ("rare", True),
                    (BASELINE, ["zoo:lenet1"]), ("execution", hc.Execution(workers=2))):
    try:
        hc.search(toy_subject(), toy_images(4), method="pgd", **{name: value})
    except (HardcaseError, TypeError):
        continue
    taken.append(name)
ends(not taken, f"it takes {', '.join(taken)}")
""",
        "it takes judge, criteria, limits, metrics, cluster, rare, execution",
    ),
    "arguments": Defect(
        "house4 8.7",
        "errors name arguments that Python does not have",
        """
try:
    hc.search(toy_subject(), toy_images(4), method="pgd", **{IMAGES: 0})
except HardcaseError as problem:
    ends(IMAGES in str(problem) and "count" not in str(problem), str(problem))
""",
        "seeds=0 is answered: try: count=1 or more",
    ),
    "flags": Defect(
        "house4 8.7",
        "Python is told of flags",
        """
try:
    hc.search(toy_subject(), toy_images(4), method="dlfuzz", target=1)
except HardcaseError as problem:
    ends("--" not in str(problem), str(problem))
ends(False, "nothing is said")
""",
        "try: leave out --target, or another --method",
    ),
    "forecast": Defect(
        "house4 8.8",
        "a run with conditions measures up to three more risks for a forecast",
        """
from collections import Counter
calls = Counter()
def count(frame, event, argument):
    if event == "call":
        calls[frame.f_code.co_name] += 1
sys.setprofile(count)
run(conditions={"rotation": "±40 deg"})
sys.setprofile(None)
ends(calls["measure_risk"] <= 1, f"{calls['measure_risk']} risks are measured")
""",
        "4 risks are measured",
    ),
    "companions": Defect(
        "house4 8.9",
        "the documents say that nothing in the wheel imports companions",
        """
pages = [*(Path(hc.__file__).parents[2] / "docs").rglob("architecture.md")]
said = [page for page in pages if "imported by nothing in the wheel" in page.read_text()]
ends(pages and not said, "docs/concepts/architecture.md says so")
""",
        "docs/concepts/architecture.md says so",
    ),
    "resume": Defect(
        "newcomer4 point 2",
        "resume refuses a finished run of the default command",
        """
code, text = hardcase(f"run --model zoo:lenet5 --data mnist5k {FLAG} 6 --witness none --out r")
assert code == 0, text
code, text = hardcase("resume r")
ends(code == 0, text[:200])
""",
        "error: the settings (method parts.space is, method parts.space.parts.0 is, ...",
    ),
    "many names": Defect(
        "newcomer4 point 2",
        "resume tells of two hundred names of settings that differ",
        """
code, text = hardcase(f"run --model zoo:lenet5 --data mnist5k {FLAG} 6 --witness none --out r")
assert code == 0, text
config = Path("r/config.toml")
config.write_text(config.read_text().replace("gradients = 100", "gradients = 3"))
code, text = hardcase("resume r")
ends("parts.space" not in text, f"it is answered with {len(text):,} characters")
""",
        "it is answered with 2,020 characters",
    ),
    "killed": Defect(
        "reliability4 point 1",
        "a run of the default method that was killed while it searched cannot be resumed",
        """
line = (f"run --model zoo:lenet5 --data mnist5k {FLAG} 12 --witness none --gradients 6"
        " --set campaign.shard=4 --out r --progress none")
done = subprocess.Popen([*COMMAND, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
while done.poll() is None and len([*Path("r/findings").glob("part-*")]) < 2:
    time.sleep(0.01)
done.kill()
done.communicate()
code, text = hardcase("resume r")
ends(code == 0, text[:200])
""",
        "error: the settings (method parts.space is, method parts.space.parts.0 is, ...",
    ),
    "shrink": Defect(
        "reliability4 point 1",
        "shrink refuses a run of the default command",
        """
code, text = hardcase(f"run --model zoo:lenet5 --data mnist5k {FLAG} 3 --witness none --out r")
assert code == 0, text
code, text = hardcase("shrink r")
ends(code == 0, text[:200])
""",
        "error: the settings (method parts.space is, method parts.space.parts.0 is, ...",
    ),
    "stored": Defect(
        "reliability4 point 1",
        "the configuration that a run stores searches another space",
        """
code, text = hardcase(f"run --model zoo:lenet5 --data mnist5k {FLAG} 3 --witness none --out r")
assert code == 0, text
code, text = hardcase("run r/config.toml --out again")
assert code == 0, text
one, other = (hc.Run(folder).findings["id"].to_pylist() for folder in ("r", "again"))
ends(one == other, f"{len({*one} & {*other})} of {len(one)} findings are the same")
""",
        "0 of 3 findings are the same",
    ),
    "unmeasured": Defect(
        "reliability4 point 10",
        "a failure rate that could not be measured is no failure",
        SLOW
        + """
Path("s.py").write_text("def draw(u): return {'rotation': u[:, 0] * float('nan')}")
Path("c.toml").write_text('[conditions]\\nrotation = "±30 deg"\\nsampler = "s.py:draw"\\n')
code, text = hardcase(f"run --model slow.py:make --data npz:toy.npz {FLAG} 6 --method none"
                      " --conditions c.toml --allow-low-accuracy --out r --progress none -q")
ends(code in (2, 3) and "NaN" in text or "finite" in text, f"exit code {code}: {text[:100]}")
""",
        "exit code 0: r",
    ),
    "chance": Defect(
        "newcomer4 point 10",
        "doctor calls 55 % of three classes no better than chance",
        CHANCE
        + """
code, text = hardcase("doctor --model net.py:make --data npz:levels.npz")
ends("no better than chance" not in text, text[-300:])
""",
        "Here the network is no better than chance whatever is tried",
    ),
    "repair": Defect(
        "newcomer4 point 3",
        "repair refuses an unchanged network for photographs",
        PHOTOGRAPHS
        + """
code, text = hardcase("run --model net.py:make --data folder:photos --method none --out r"
                      " --allow-low-accuracy --conditions scanner")
assert code == 0, text
line = "repair r --out fixed --epochs 1 --proof quick"
done = subprocess.Popen([*COMMAND, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
while done.poll() is None and not Path("fixed").exists():
    time.sleep(0.1)
begun = done.poll() is None or Path("fixed").exists()
done.kill()  # that it begins is enough
text, _ = done.communicate()
ends(begun, text.decode()[:300])
""",
        "the model answers 55 of 60 seeds differently from when this run began",
    ),
    "interrupted": Defect(
        "newcomer4 point 8",
        "a run that is stopped while it measures looks finished",
        SLOW
        + """
import signal
line = (f"run --model slow.py:make --data npz:toy.npz {FLAG} 6 --out r --method pgd --gradients 2"
        " --allow-low-accuracy --progress none --witness none")
done = subprocess.Popen([*COMMAND, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
while done.poll() is None and not Path("measuring").exists():
    time.sleep(0.05)
time.sleep(0.5)
assert done.poll() is None, "the run has ended before it could be stopped"
done.send_signal(signal.SIGINT)
told, _ = done.communicate()
import json
complete = json.loads(Path("r/run.json").read_text())["complete"]
_, status = hardcase("status r")
gate, _ = hardcase("gate r --max-risk 1")
again, _ = hardcase("resume r")
said = f"complete: {complete}, resume named: {b'resume' in told} and {'resume' in status}"
sound = not complete and b"resume" in told and "resume" in status and gate == 2 and again == 0
ends(sound, f"{said}, gate ends with {gate}, resume with {again}")
""",
        "complete: True, no word of resume, gate ends with 4",
    ),
}


def outcome(defect, checkout, folder):
    """The exit code and the last words of a reproduction with the code of a checkout."""
    paths = [checkout / "src", checkout / "teams" / "src", checkout / "study" / "src"]
    place = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + defect.program],
        cwd=folder,
        env={**os.environ, **place},
        capture_output=True,
        text=True,
        timeout=280,
    )
    last = (done.stdout.strip().split("\n") or [""])[-1]
    return done.returncode, last or done.stderr.strip().split("\n")[-1]


def main(checkout):
    for name, defect in DEFECTS.items():
        with tempfile.TemporaryDirectory() as folder:
            code, said = outcome(defect, Path(checkout).absolute(), Path(folder))
        print(f"{name} | {defect.where} | {code} | {said}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
