"""Entry point `gpushare` of the gpushare wheel: it becomes the program gpushare-ctl."""

import os
import sys
import sysconfig

__version__ = "@VERSION@"


def find():
    """Return the path of gpushare-ctl: beside this entry point, or where pip puts programs."""
    folders = [os.path.dirname(os.path.realpath(sys.argv[0])), sysconfig.get_path("scripts")]
    user = os.name + "_user"
    if user in sysconfig.get_scheme_names():
        folders.append(sysconfig.get_path("scripts", user))
    for folder in folders:
        program = os.path.join(folder, "gpushare-ctl")
        if os.access(program, os.X_OK):
            return program
    sys.exit("gpushare: there is no gpushare-ctl in {}; install the wheel again".format(" or ".join(folders)))


def main():
    """Become gpushare-ctl: same process, same arguments."""
    program = find()
    sys.stdout.flush()
    os.execv(program, ["gpushare"] + sys.argv[1:])
