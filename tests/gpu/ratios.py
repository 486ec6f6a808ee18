"""How fast B is compared with A, from blocks of the same work done in alternation: A B A B ...

Each alternation gives one ratio, so that whatever drifts slowly falls out. The mean is taken of the logarithms
(a ratio of 2 and one of 1/2 cancel), and its 95% interval by Student's t.
"""

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Speed of B relative to A: 1 is the same, less is slower."""

    alternations: int
    mean: float
    lower: float
    upper: float
    median: float

    def __str__(self):
        return f"{self.mean:.4f} (95%: {self.lower:.4f} to {self.upper:.4f}; {self.alternations} alternations)"


def speed(seconds_of_a, seconds_of_b):
    """The same work took these seconds with A and with B."""
    logs = [math.log(a / b) for a, b in zip(seconds_of_a, seconds_of_b, strict=True)]
    mean, half = statistics.fmean(logs), math.inf
    if len(logs) > 1:
        half = t_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    lower, upper = math.exp(mean - half), math.exp(min(mean + half, 700))
    return Ratio(len(logs), math.exp(mean), lower, upper, math.exp(statistics.median(logs)))


def spread(seconds):
    """(largest - smallest) / median."""
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


def t_quantile(probability, freedom):
    """Student's t by Abramowitz and Stegun 26.7.5; good to three digits from five degrees of freedom on."""
    z = statistics.NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
