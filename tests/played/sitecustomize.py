"""With this folder on PYTHONPATH every new process plays the device that the environment describes."""

import os

if os.environ.get("HARDCASE_PLAYED_DEVICE"):
    from played_device import play_for_good

    play_for_good()
