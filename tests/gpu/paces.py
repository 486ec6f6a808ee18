"""How fast programs went while all of them worked, from what each tells of itself: when it began, and when each of its steps
ended, on the clock that all processes share. Steps that lie across an edge of the window count in part.
"""


def window(stories):
    """The time in which all of them worked."""
    return max(story["begin"] for story in stories), min(story["ends"][-1] for story in stories)


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


def rates(stories):
    """Steps a second of each while all worked."""
    return [rate(story, *window(stories)) for story in stories]


def jain(values):
    """1 where all have the same, and one over their number where one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def percentile(values, percent):
    """The nearest rank: never between two that were measured."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
