"""How many settings a user may meet: what is reached, and the goal beside it."""

from hardcase.config import Config

SETTINGS = 60
"""Keys of the resolved configuration, options of methods apart; the goal is 60."""


def test_there_are_few_settings():
    sections = [
        getattr(one.annotation, "model_fields", (1,)) for one in Config.model_fields.values()
    ]
    assert sum(map(len, sections)) <= SETTINGS
