"""Four notebooks on one simulated card, as a person runs them: installs the kernel, runs cells, interrupts them.

    notebooks.py GPUSHARE-CTL NOTEBOOK.SO docs/notebooks.md CELLS.json

Ends with a line about the time to each notebook's first result. The file gets the cells of a notebook that waits.
"""

import contextlib
import json
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone

from notebook import Notebook, holds, interrupted, until, waits

CTL, LIBRARY, PAGE, CELLS = sys.argv[1:5]
KERNEL = "python3-gpushare"
MIB = 1 << 20
# Memory of each of the four notebooks; the card has 256 MiB.
HELD = 80 * MIB

SETUP = f"""
import ctypes, os, time
cuda, own = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL({LIBRARY!r})
address = ctypes.c_uint64()
context, device = ctypes.c_void_p(), ctypes.c_int()
SIZE = {HELD}

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise RuntimeError(f"{{name}} answered {{code}}")

def fill(word):
    call("cuMemsetD32Async", address, ctypes.c_uint(word), ctypes.c_size_t(SIZE // 4), None)

def again(word):
    try:
        fill(word)
    except RuntimeError:
        # As a library does that tries a failed call in another way.
        fill(word)

def backward(word):
    code = own.backward(address, ctypes.c_uint(word), ctypes.c_size_t(SIZE // 4))
    if code:
        raise RuntimeError(f"backward answered {{code}}")

def words():
    held = (ctypes.c_uint32 * (SIZE // 4))()
    call("cuMemcpyDtoH_v2", held, address, ctypes.c_size_t(SIZE))
    others = own.others(held, ctypes.c_size_t(SIZE // 4), held[0])
    return held[0] if others == 0 else f"{{others}} words are not {{held[0]}}"

call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE))
"""


def gpushare(*words):
    return subprocess.run([CTL, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def same(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: {found!r} instead of {expected!r}")


def session(notebook):
    return notebook.session(json.loads(gpushare("session", "list", "--json")))


def guide(page):
    """Runs the commands and the cells of docs/notebooks.md in their order; returns how many."""
    # Commands of others, which the check has run already or which never end.
    others = ("pip ", "jupyter ")
    blocks = re.findall(r"^```(console|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    notebook, count = None, 0
    with contextlib.ExitStack() as stack:
        for language, text in blocks:
            if language == "python":
                notebook = notebook or stack.enter_context(Notebook(0, KERNEL))
                notebook.run(text)
                count += 1
                continue
            for line in text.splitlines():
                command = line.removeprefix("$ ")
                if not command.startswith(others):
                    gpushare(*shlex.split(command.removeprefix("gpushare-ctl ")))
                    count += 1
    return count


def take_turns(notebooks):
    """All notebooks work at once, each with several cells in its queue; returns the time to each first result."""
    for notebook in notebooks:
        notebook.run(SETUP)
    same(sum(session(one)["gpus"][0]["allocated_bytes"] for one in notebooks), 320 * MIB, "memory of all")
    sessions = {session(notebook)["session"] for notebook in notebooks}
    same(len(sessions), 4, "number of sessions of one kernel")
    names = {session(notebook)["name"] for notebook in notebooks}
    same(names, {KERNEL}, "names of the sessions")

    began, first = datetime.now(timezone.utc), {}
    cells = []
    for round_ in range(3):
        for notebook in notebooks:
            word = 10 * notebook.number + round_
            cells.append((notebook, notebook.send(f"fill({word}); print(words())"), word))
    for notebook, cell, word in cells:
        content, shown = notebook.answer(cell)
        same(content["status"], "ok", f"a cell of notebook {notebook.number}")
        same(shown.splitlines()[-1], str(word), f"result of notebook {notebook.number}")
        first.setdefault(notebook.number, (notebook.answered - began).total_seconds())
    return [first[notebook.number] for notebook in notebooks]


def picture(holder, waiter):
    """Writes the cells of a notebook whose last one waits, with what is under them."""
    # Room for one of them only.
    gpushare("set", "capacity", "100MiB")
    gpushare("set", "quantum", "40s")
    waiter.run("def train(steps):\n    for step in range(steps):\n        fill(step)\n    print(words())")
    cells = []
    for source in ("%gpushare memory 100MiB", "%gpushare"):
        cells.append({"number": len(cells) + 1, "source": source, "under": waiter.run(source)})
    holding = holder.send("print(own.hold(b'release-picture'))")
    until("the holder holds the card", lambda: holds(session(holder)))
    source = "train(steps=8)"
    waiting = waiter.send(source)
    waiter.listen(lambda kind, content, parent: parent == waiting and kind == "update_display_data")
    cells.append({"number": None, "source": source, "under": waiter.shown[waiting][-1]})
    with open(CELLS, "w", encoding="utf-8") as file:
        json.dump(cells, file)
    with open("release-picture", "w", encoding="ascii"):
        pass
    same(holder.answer(holding)[0]["status"], "ok", "end of the holder's cell")
    content, shown = waiter.answer(waiting)
    same((content["status"], shown.splitlines()[-1]), ("ok", "7"), "cell of the picture")


def interrupt(holder, waiter):
    """Ctrl-C ends the wait of a cell while another notebook keeps the card."""
    # Room for one of them only, and nobody's turn ends while it works.
    gpushare("set", "capacity", "100MiB")
    gpushare("set", "quantum", "10min")
    waiter.run("fill(1); print(words())")
    for way in ("fill", "again", "backward"):
        file = f"release-{way}"
        holding = holder.send(f"print(own.hold({file.encode()!r}))")
        until("the holder holds the card", lambda: holds(session(holder)))
        waiting = waiter.send(f"{way}(9)")
        until("the cell waits", lambda: waits(session(waiter)))
        waiter.listen(lambda kind, content, parent: parent == waiting and kind == "display_data")
        same(waiter.shown[waiting][0][:24], "waiting for the GPU for ", "line under the cell")
        content, seconds = interrupted(waiter, waiting)
        print(f"{way}: interrupted after {seconds:.2f} s", flush=True)
        same((content["status"], content.get("ename")), ("error", "KeyboardInterrupt"), f"end of {way}")
        same(holds(session(holder)), True, "the holder kept the card meanwhile")
        # The last line may come after the cell's end.
        if not waiter.shown[waiting][-1].startswith("waited "):
            waiter.listen(lambda *_: waiter.shown[waiting][-1].startswith("waited "))
        # The interrupted work had no effect. An idle notebook gives the card back by itself.
        with open(file, "w", encoding="ascii"):
            pass
        same(holder.answer(holding)[0]["status"], "ok", "end of the holder's cell")
        same(waiter.result("print(words())"), "1", f"memory after {way} was interrupted")
    same(waiter.result("backward(3); print(words())"), "3", "next cell")


def magic(notebook):
    """The magic command shows, changes and releases."""
    shown = notebook.run("%gpushare")
    same(shown.splitlines()[0].split()[:2], ["session", KERNEL], "first line of %gpushare")
    same("80MiB" in shown, True, f"memory in {shown!r}")
    shown = notebook.run("%gpushare memory 100MiB")
    same(shown, "memory limit: 100MiB (was no limit)\n", "answer to a change")
    same(session(notebook)["gpus"][0]["limit_bytes"], 100 * MIB, "limit at the daemon")
    for line in ("%gpushare memory much", "%gpushare memory", "%gpushare what"):
        content, _ = notebook.answer(notebook.send(line))
        same((content["status"], content["ename"]), ("error", "UsageError"), line)
    notebook.run("fill(4); call('cuCtxSynchronize')")
    same(holds(session(notebook)), True, "it holds the card, which nobody wants")
    notebook.run("%gpushare release")
    until("the card is given back", lambda: session(notebook)["lock"] == "idle")
    same(notebook.result("print(words())"), "4", "memory after a release")


def main():
    with open(PAGE, encoding="utf-8") as page:
        same(guide(page.read()), 7, "commands and cells of the guide")
    gpushare("jupyter", "install")
    with contextlib.ExitStack() as stack:
        notebooks = []
        for number in range(1, 5):
            notebooks.append(stack.enter_context(Notebook(number, KERNEL)))
        first = take_turns(notebooks)
        picture(notebooks[0], notebooks[1])
        interrupt(notebooks[0], notebooks[1])
        magic(notebooks[2])
    until("all sessions are over", lambda: json.loads(gpushare("session", "list", "--json")) == [])
    gpushare("jupyter", "remove", KERNEL)
    print("first results after " + ", ".join(f"{wait:.2f} s" for wait in sorted(first)))


main()
