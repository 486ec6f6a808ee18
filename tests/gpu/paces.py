"""How fast programs went while all of them worked, from what each tells of itself: when it began, and when each of its steps
ended, on the clock that all processes share. Steps that lie across an edge of the window count in part.
"""

import statistics


def window(stories, edge=0.0):
    """The time in which all of them worked, without so many seconds at each edge."""
    return max(story["begin"] for story in stories) + edge, min(story["ends"][-1] for story in stories) - edge


def progress(story, at):
    """Steps done by then."""
    before = story["begin"]
    for number, end in enumerate(story["ends"]):
        if at < end:
            return number + max(0.0, (at - before) / (end - before))
        before = end
    return float(len(story["ends"]))


def rate(story, begin, end):
    """Steps a second."""
    return (progress(story, end) - progress(story, begin)) / (end - begin)


def rates(stories, edge=0.0):
    """Steps a second of each while all worked. Programs that begin together need an `edge` where that matters: first steps are
    slow, and who ends last works alone."""
    return [rate(story, *window(stories, edge)) for story in stories]


def jain(values):
    """1 where all have the same, and one over their number where one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def percentile(values, percent):
    """The nearest rank: never between two that were measured."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def parts(together, alone, edge=0.0):
    """Part of its own rate alone that each has while all work. The sum is 1 if nothing is lost in turns."""
    return [rate / own for rate, own in zip(rates(together, edge), alone, strict=True)]


def kept(beside, alone, busy):
    """Part of its rate alone that a program keeps in the time that another one leaves. The other one needs the part `busy`."""
    return beside / (alone * (1 - busy))


def lost_per_pause(groups, step):
    """Seconds that steps take longer for each pause. A group holds the seconds of the steps after one pause, and `step` is the
    seconds of a step without pauses."""
    return (sum(map(sum, groups)) - sum(map(len, groups)) * step) / len(groups)


def first_is_longer(groups):
    """Seconds by which the first step after a pause is longer than the later ones, by their medians. None if no group has two."""
    later = [seconds for group in groups for seconds in group[1:]]
    return statistics.median(group[0] for group in groups) - statistics.median(later) if later else None
