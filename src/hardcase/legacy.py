"""Rows of methods, searches and spaces until they carry decorators, and the BibTeX of methods.

Only `hardcase.catalogue.build_catalogue` reads this file; parts of the registry come first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

ENTRIES: dict[str, str] = {
    "dunn2021features": """@inproceedings{dunn2021features,
  author    = {Isaac Dunn and Hadrien Pouget and Tom Melham and Daniel Kroening},
  title     = {Exposing Previously Undetectable Faults in Deep Neural Networks},
  booktitle = {ACM SIGSOFT International Symposium on Software Testing and Analysis (ISSTA)},
  year      = {2021},
  url       = {https://arxiv.org/abs/2106.00576}
}""",
    "duan2025argus": """@misc{duan2025argus,
  author = {Bin Duan and Matthew B. Dwyer and Guowei Yang},
  title  = {Generating Realistic, Diverse, and Fault-Revealing Inputs with Latent Space Interpolation for Testing Deep
            Neural Networks},
  year   = {2025},
  note   = {the method is called ARGUS}
}""",
    "xie2019diffchaser": """@inproceedings{xie2019diffchaser,
  author    = {Xiaofei Xie and Lei Ma and Haijun Wang and Yuekang Li and Yang Liu and Xiaohong Li},
  title     = {{DiffChaser}: Detecting Disagreements for Deep Neural Networks},
  booktitle = {International Joint Conference on Artificial Intelligence (IJCAI)},
  year      = {2019},
  doi       = {10.24963/ijcai.2019/800}
}""",
    "lee2020adapt": """@inproceedings{lee2020adapt,
  author    = {Seokhyun Lee and Sooyoung Cha and Dain Lee and Hakjoo Oh},
  title     = {Effective White-Box Testing of Deep Neural Networks with Adaptive Neuron-Selection Strategy},
  booktitle = {International Symposium on Software Testing and Analysis (ISSTA)},
  year      = {2020},
  doi       = {10.1145/3395363.3397346}
}""",
    "lee2020maxplore": """@misc{lee2020maxplore,
  author = {Te Wei Lee},
  title  = {{MaXplore}: Deep Learning Testing Inputs Generation Based on {DeepXplore}},
  year   = {2020},
  note   = {report, Singapore Management University}
}""",
    "xie2019deephunter": """@inproceedings{xie2019deephunter,
  author    = {Xiaofei Xie and Lei Ma and Felix Juefei-Xu and Minhui Xue and Hongxu Chen and Yang Liu and Jianjun Zhao and
               Bo Li and Jianxiong Yin and Simon See},
  title     = {{DeepHunter}: A Coverage-Guided Fuzz Testing Framework for Deep Neural Networks},
  booktitle = {International Symposium on Software Testing and Analysis (ISSTA)},
  year      = {2019},
  doi       = {10.1145/3293882.3330579},
  url       = {https://arxiv.org/abs/1809.01266}
}""",
    "odena2019tensorfuzz": """@inproceedings{odena2019tensorfuzz,
  author    = {Augustus Odena and Catherine Olsson and David Andersen and Ian Goodfellow},
  title     = {{TensorFuzz}: Debugging Neural Networks with Coverage-Guided Fuzzing},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2019},
  url       = {https://proceedings.mlr.press/v97/odena19a.html}
}""",
    "madry2018pgd": """@inproceedings{madry2018pgd,
  author    = {Aleksander Madry and Aleksandar Makelov and Ludwig Schmidt and Dimitris Tsipras and Adrian Vladu},
  title     = {Towards Deep Learning Models Resistant to Adversarial Attacks},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2018},
  url       = {https://arxiv.org/abs/1706.06083}
}""",
    "goodfellow2015fgsm": """@inproceedings{goodfellow2015fgsm,
  author    = {Ian J. Goodfellow and Jonathon Shlens and Christian Szegedy},
  title     = {Explaining and Harnessing Adversarial Examples},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2015},
  url       = {https://arxiv.org/abs/1412.6572}
}""",
    "carlini2017cw": """@inproceedings{carlini2017cw,
  author    = {Nicholas Carlini and David Wagner},
  title     = {Towards Evaluating the Robustness of Neural Networks},
  booktitle = {IEEE Symposium on Security and Privacy (S\\&P)},
  year      = {2017},
  doi       = {10.1109/SP.2017.49},
  url       = {https://arxiv.org/abs/1608.04644}
}""",
    "kang2020sinvad": """@inproceedings{kang2020sinvad,
  author    = {Sungmin Kang and Robert Feldt and Shin Yoo},
  title     = {{SINVAD}: Search-based Image Space Navigation for {DNN} Image Classifier Test Input Generation},
  booktitle = {International Workshop on Search-Based Software Testing (SBST), {ICSE} Workshops},
  year      = {2020},
  doi       = {10.1145/3387940.3391456},
  url       = {https://arxiv.org/abs/2005.09296}
}""",
    "kang2024sinvad": """@article{kang2024sinvad,
  author    = {Sungmin Kang and Robert Feldt and Shin Yoo},
  title     = {Deceiving Humans and Machines Alike: Search-based Test Input Generation for {DNNs} Using Variational
               Autoencoders},
  journal   = {ACM Transactions on Software Engineering and Methodology (TOSEM)},
  volume    = {33},
  number    = {4},
  year      = {2024},
  doi       = {10.1145/3635706}
}""",
    "pei2017deepxplore": """@inproceedings{pei2017deepxplore,
  author    = {Kexin Pei and Yinzhi Cao and Junfeng Yang and Suman Jana},
  title     = {{DeepXplore}: Automated Whitebox Testing of Deep Learning Systems},
  booktitle = {Symposium on Operating Systems Principles (SOSP)},
  year      = {2017},
  doi       = {10.1145/3132747.3132785}
}""",
    "guo2018dlfuzz": """@inproceedings{guo2018dlfuzz,
  author    = {Jianmin Guo and Yu Jiang and Yue Zhao and Quan Chen and Jiaguang Sun},
  title     = {{DLFuzz}: Differential Fuzzing Testing of Deep Learning Systems},
  booktitle = {Joint European Software Engineering Conference and Symposium on the Foundations of Software Engineering
               (ESEC/FSE)},
  year      = {2018},
  doi       = {10.1145/3236024.3264835}
}""",
}
"""Entries by key."""

COMPANIONS: dict[str, tuple[str, ...]] = {"kang2020sinvad": ("kang2024sinvad",)}
"""Entries that are cited together with another one: a journal version beside its workshop paper."""


_TABLES = {
    "methods": "hardcase.methods.catalogue:METHODS",
    "spaces": "hardcase.spaces.catalogue:SPACES",
    "searches": "hardcase.searches.catalogue:SEARCHES",
}


def rows(room: str) -> list[dict[str, Any]]:
    """The rows of the old table of a room, by name; none where there is no such table."""
    if room not in _TABLES:
        return []
    module, _, name = _TABLES[room].partition(":")
    table = getattr(import_module(module), name)
    return [_row(row) for _, row in sorted(table.items())]


def _row(row: Any) -> dict[str, Any]:
    plain = {key: getattr(row, key, "") for key in ("name", "summary", "needs", "paper")}
    plain["laws"] = list(row.laws)
    for key in ("budget", "generator", "peers", "differences"):
        if getattr(row, key, ""):
            plain[key] = getattr(row, key)
    key = getattr(row, "cite", "")
    plain["options"] = {}
    plain["cite"] = [key, *COMPANIONS.get(key, ())] if key else []
    return plain
