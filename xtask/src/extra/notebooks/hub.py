"""Loads JupyterHub's configuration of a page as JupyterHub does, and checks each setting.

    hub.py docs/notebooks.md
"""

import re
import sys

from jupyterhub.app import JupyterHub
from systemdspawner import SystemdSpawner
from traitlets import TraitError
from traitlets.config import Config, Configurable


class Spawner(SystemdSpawner):
    """A spawner that takes its configuration and needs no user."""

    __init__ = Configurable.__init__


CLASSES = {"JupyterHub": JupyterHub, "SystemdSpawner": Spawner}


def load(page):
    """The configuration in a page: the block that begins with the name of the file."""
    blocks = re.findall(r"^```python[^\n]*\n(# jupyterhub_config\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if len(blocks) != 1:
        sys.exit(f"the page has {len(blocks)} blocks of jupyterhub_config.py instead of one")
    config = Config()
    exec(compile(blocks[0], "jupyterhub_config.py", "exec"), {"c": config})
    return config


def check(config):
    """Ends with a sentence if a class, a setting or a value is unknown; returns the number of settings."""
    count = 0
    for name, settings in config.items():
        if name not in CLASSES:
            sys.exit(f"there is no class {name}")
        known = CLASSES[name].class_traits(config=True)
        for setting in settings:
            if setting not in known:
                sys.exit(f"{name} has no setting {setting}")
            count += 1
    try:
        hub = JupyterHub(config=config)
        Spawner(config=config)
    except TraitError as error:
        sys.exit(str(error))
    if hub.spawner_class is not SystemdSpawner:
        sys.exit(f"the spawner is {hub.spawner_class}")
    return count


def main():
    with open(sys.argv[1], encoding="utf-8") as page:
        count = check(load(page.read()))
    if count < 5:
        sys.exit(f"only {count} settings were found")


main()
