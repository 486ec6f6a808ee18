"""Builds the witness with the C compiler and the CUPTI of this machine: that of the Python packages, which PyTorch
loads too, else that of the CUDA toolkit."""

import shutil
import site
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "witness.c"


class NoCupti(Exception):
    pass


def packages():
    """Folders of pip's CUDA packages: `nvidia/cu13`, and `nvidia/cuda_cupti` and its like as they were before."""
    for base in dict.fromkeys([*sys.path, *site.getsitepackages()]):
        nvidia = Path(base) / "nvidia"
        if nvidia.is_dir():
            yield from sorted(path for path in nvidia.iterdir() if path.is_dir())


def toolkits():
    nvcc = shutil.which("nvcc")
    places = [Path(nvcc).resolve().parent.parent] if nvcc else []
    places += [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    return [place for place in dict.fromkeys(places) if place.is_dir()]


def find():
    """Folders with headers, in order, and the library."""
    roots = [*packages()]
    for toolkit in toolkits():
        roots += [toolkit / "extras" / "CUPTI", toolkit, *sorted(toolkit.glob("targets/*-linux"))]
    headers = [root / "include" for root in roots if (root / "include").is_dir()]
    libraries = [
        library
        for root in roots
        for folder in ("lib", "lib64")
        for library in sorted((root / folder).glob("libcupti.so*"))
    ]
    if not any((folder / "cupti.h").exists() for folder in headers) or not libraries:
        raise NoCupti(
            f"no CUPTI in {', '.join(map(str, roots)) or 'any known place'}; `pip install nvidia-cuda-cupti` brings it"
        )
    # The headers beside the chosen library come first: both must be of one version.
    library = libraries[0]
    return sorted(headers, key=lambda folder: folder.parent != library.parent.parent), library


def build(folder):
    """The built library in `folder`, and the command that built it."""
    headers, library = find()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCupti("no C compiler: cc, gcc or clang")
    target = Path(folder) / "libwitness.so"
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", target, SOURCE]
    command += [f"-I{header}" for header in headers]
    command += [library, f"-Wl,-rpath,{library.parent}", "-lpthread", "-ldl"]
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoCupti(f"{' '.join(command)}\n{done.stderr}")
    return target, command
