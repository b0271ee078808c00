"""Which choices nothing else beats in everything.  Pure."""

from typing import List, Sequence, Tuple


def front(points: Sequence[Tuple[float, float]]) -> List[int]:
    """Places of the (cost, accuracy) pairs that no other pair is as cheap as and as accurate as, and better in one.

    In the order of cost.  Of equal pairs the first stands for all.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best, kept = float("-inf"), []
    for i in order:
        if points[i][1] > best:
            best = points[i][1]
            kept.append(i)
    return kept
