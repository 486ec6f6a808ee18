"""How two programs alternate on the card, from what their kernels recorded of the card's clock, in nanoseconds.

A kernel is [begin, end, pauses]. A pause is a time in the middle of a kernel in which the driver ran another program.

    first    ███████ ███░░░░░███ ██████              █ active, ░ paused
    second              ·████·          ████████
             └── slice ─┘└ slice ┘ …  └─ gap ─┘

The **slice** of a program is a run of its activity that is not broken by activity of the other. The **gap** of a change is
the time from the end of one slice to the begin of the next.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    program: int
    begin: int
    end: int

    @property
    def length(self):
        return self.end - self.begin


def story(kernels):
    """Begin and ends in seconds, as `paces` reads them."""
    return {"begin": kernels[0][0] / 1e9, "ends": [end / 1e9 for _, end, _ in kernels]}


def window(timelines):
    """Time in which all programs had work."""
    return max(kernels[0][0] for kernels in timelines), min(kernels[-1][1] for kernels in timelines)


def activity(kernels):
    """Intervals in which kernels ran: each kernel without its pauses."""
    found = []
    for begin, end, pauses in kernels:
        for paused, resumed in pauses:
            found.append((begin, paused))
            begin = resumed
        found.append((begin, end))
    return found


def clipped(intervals, begin, end):
    """Intervals inside a window; those that cross its edge in part."""
    inside = ((max(first, begin), min(last, end)) for first, last in intervals)
    return [(first, last) for first, last in inside if first < last]


def slices(timelines):
    """Slices in order, without the first and the last, which the edges of the window cut."""
    edges = window(timelines)
    intervals = sorted(
        (begin, end, program)
        for program, kernels in enumerate(timelines)
        for begin, end in clipped(activity(kernels), *edges)
    )
    found = []
    for begin, end, program in intervals:
        if found and found[-1].program == program:
            found[-1] = Slice(program, found[-1].begin, max(found[-1].end, end))
        else:
            found.append(Slice(program, begin, end))
    return found[1:-1]


def gaps(ordered):
    """Gap at each change between two slices."""
    return [after.begin - before.end for before, after in zip(ordered, ordered[1:])]


def interleaved(timelines):
    """Part of the window in which kernels of both programs had begun and not yet ended."""
    begin, end = window(timelines)
    first, second = (clipped([kernel[:2] for kernel in kernels], begin, end) for kernels in timelines)
    shared, at = 0, 0
    for since, until in first:
        while at < len(second) and second[at][1] <= since:
            at += 1
        for other in second[at:]:
            if other[0] >= until:
                break
            shared += min(until, other[1]) - max(since, other[0])
    return shared / (end - begin)


def time_median(lengths):
    """Length such that half of the time is in slices of at least that length."""
    passed, half = 0, sum(lengths) / 2
    for length in sorted(lengths, reverse=True):
        passed += length
        if passed >= half:
            return length
    return 0
