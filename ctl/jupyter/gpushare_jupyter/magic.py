"""The magic command %gpushare."""

from IPython.core.error import UsageError

from . import facts

USAGE = "%gpushare shows the session, %gpushare memory 20GiB changes its limit, %gpushare release gives the card back"


def lock(session):
    """The session's place at the card in a few words, without the names of others."""
    (state, more), *_ = session["lock"].items() if isinstance(session["lock"], dict) else [(session["lock"], {})]
    return {
        "idle": "does not need the card",
        "holding": "holds the card",
        "dropping": "gives the card back",
        "waiting": f"waits, {more.get('ahead', 0)} before it",
        "frozen": "is frozen; its next use of the card brings its memory back",
    }.get(state, state)


def table(answer):
    """The lines of %gpushare."""
    session = answer["session"]
    lines = [("session", f"{session['name']} (s{session['session']})"), ("card", lock(session))]
    for gpu in session["gpus"]:
        limit = gpu["limit_bytes"]
        of = "no limit" if limit is None else f"limit {facts.size(limit)}"
        # Only `--backend remap` tells where memory is, and only a newer gpushare-ctl passes that on.
        places = [place for place in answer.get("residences", []) if place["gpu"] == gpu["gpu"]]
        here = "".join(f", {facts.size(place['resident_bytes'])} of it on the card" for place in places)
        moves = ", some of it moving" if any(place["moving_bytes"] for place in places) else ""
        lines.append((f"memory on gpu{gpu['gpu']}", f"{facts.size(gpu['allocated_bytes'])}{here}{moves}, {of}"))
    if not session["gpus"]:
        limit = session["memory_limit_bytes"]
        lines.append(("memory", "no limit" if limit is None else f"limit {facts.size(limit)}"))
    lines.append(("weight", str(session["state"]["terms"]["weight"])))
    lines.append(("waited", facts.span(session["waited_ns"])))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)


class Magic:
    """What %gpushare does."""

    def __init__(self, library, own=facts.own):
        self._library, self._own = library, own

    def __call__(self, line):
        words = line.split()
        try:
            if not words:
                print(self._show())
            elif words[0] == "memory" and len(words) == 2:
                print(self._resize(words[1]))
            elif words == ["release"]:
                print(self._release())
            else:
                raise UsageError(USAGE)
        except facts.Unavailable as error:
            raise UsageError(str(error)) from None

    def _show(self):
        answer = self._own()
        if answer["session"] is None:
            raise UsageError("this kernel has no session; start it by a kernel of `gpushare-ctl jupyter install`")
        return table(answer)

    def _resize(self, size):
        changed = self._own("--memory", size)["changed"]
        return f"memory limit: {changed['new']} (was {changed['old']})"

    def _release(self):
        if not self._library.is_loaded:
            raise UsageError("this kernel does not share its GPUs, so there is nothing to release")
        if self._library.release is None:
            raise UsageError(
                f"the gpushare library of this kernel ({self._library.version}) is older than gpushare-jupyter and"
                " cannot release the card at once; update gpushare and restart the kernel"
            )
        self._library.release()
        return "the card goes to others as soon as this notebook's work on it is done"
