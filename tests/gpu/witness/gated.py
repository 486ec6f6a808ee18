"""The driver calls that gpushare gates, as the library's own sources say, checked against what it exports.

gated          cuMemcpy cuMemcpy_ptds(...);
[one: stream]  cuLaunchKernel cuLaunchKernel_ptsz(...);
"""

import re
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3] / "interposer" / "src"

ROW = re.compile(
    r"^\s*(?:gated|blocking|\[(?:one|kernel|configured|graph|at_once|staged|instantiate_and_upload): [^]]*\])\s+((?:cu\w+\s*)+)\([^;]*;",
    re.MULTILINE,
)
EXPORT = re.compile(r"\bcu\w+")


def gated_calls(sources=SOURCES):
    """The exported names of every row that passes the gate."""
    rows = (row for file in sorted(sources.glob("*.rs")) for row in ROW.findall(file.read_text()))
    return sorted({name for row in rows for name in EXPORT.findall(row)})


def not_exported(names, library):
    """Those that the built library lacks: then sources and library are of different versions."""
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1] for line in symbols.splitlines() if line}
    return [name for name in names if name not in exported]
