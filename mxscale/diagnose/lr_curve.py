"""The curve of a learning rate range test (arXiv:1506.01186, sec. 3.3): the loss of each step over its rising rate."""

import math
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

DIVERGED = 4.0  # the test ends if the smoothed loss exceeds this many times its minimum, as in fastai's lr_find
TENTH = 0.1


class Curve(NamedTuple):
    """The losses of a test as far as they are finite, and the rates that they suggest."""

    rates: List[float]
    losses: List[float]
    smoothed: List[float]
    minimum: Optional[int] = None  # step of the smallest smoothed loss; None: the loss did not fall, nothing follows
    steepest_lr: Optional[float] = None  # at which the loss falls fastest per logarithm of the rate
    tenth_lr: Optional[float] = None  # a tenth of the rate with the smallest loss, which is at the edge of divergence


def half_window(steps: int) -> int:
    """Return how many steps on either side the loss of a step is averaged with: 4 of 100 steps."""
    return max(1, steps // 25)


def smooth(losses: Sequence[float], half: int) -> List[float]:
    """Return the mean of each loss and up to `half` losses on either side. Unlike a running mean it has no delay."""
    windows = (losses[max(0, at - half) : at + half + 1] for at in range(len(losses)))
    return [sum(window) / len(window) for window in windows]


def end_of(losses: Sequence[float], half: int) -> Optional[int]:
    """Return after how many losses the test ends, by one that is not finite or by divergence; None if it does not."""
    width, smallest = 2 * half + 1, math.inf
    for at, loss in enumerate(losses):
        if not math.isfinite(loss):
            return at
        if at + 1 >= width:
            mean = sum(losses[at + 1 - width : at + 1]) / width
            if mean > DIVERGED * smallest:
                return at + 1
            smallest = min(smallest, mean)
    return None


def curve(rates: Sequence[float], losses: Sequence[float], half: int) -> Curve:
    """Return the curve of a test with its suggestions, if the loss fell by more than the noise of a step.

    Rates and losses are those of each step; steps after the end of the test are left out.
    """
    end = end_of(losses, half)
    rates, losses = list(rates[:end]), list(losses[:end])
    smoothed = smooth(losses, half)
    measured = Curve(rates, losses, smoothed)
    low = min(range(len(smoothed)), key=smoothed.__getitem__, default=0)
    if low < 2:
        return measured
    noise = math.sqrt(sum((loss - mean) ** 2 for loss, mean in zip(losses[:low], smoothed)) / low)
    if smoothed[0] - smoothed[low] <= noise:
        return measured

    def slope(at: int) -> float:
        return (smoothed[at + 1] - smoothed[at - 1]) / math.log(rates[at + 1] / rates[at - 1])

    return measured._replace(minimum=low, steepest_lr=rates[min(range(1, low), key=slope)], tenth_lr=TENTH * rates[low])


def shown(rate: float) -> str:
    return f"{rate:.2g}"


def draw(result: dict, path: str) -> None:
    """Draw the losses and their smoothed curve over the rate on a logarithmic axis, with the suggested rates."""
    import matplotlib

    from mxscale.rendering import canvas

    with matplotlib.rc_context(canvas.STYLE):
        figure, on = canvas.axes(9.0, 4.5)
        rates, smoothed = result["rates"], result["smoothed"]
        on.plot(rates, result["losses"], ".", color=canvas.GREY, alpha=0.6, label="loss of a step")
        on.plot(rates, smoothed, color=canvas.BLUE, label="smoothed")
        if result["minimum"] is not None:
            steepest = result["steepest_lr"]
            fastest = f"loss falls fastest: {shown(steepest)}"
            on.plot(steepest, smoothed[rates.index(steepest)], "o", color=canvas.ORANGE, label=fastest)
            tenth = f"a tenth of the smallest loss's rate: {shown(result['tenth_lr'])}"
            on.axvline(result["tenth_lr"], linestyle="--", color=canvas.GREEN, label=tenth)
            fall = smoothed[0] - min(smoothed)  # beside the losses of divergence it would not be seen
            on.set_ylim(min(smoothed) - 0.1 * fall, smoothed[0] + 0.8 * fall)
        on.set(xscale="log", xlabel="optimizer.lr", ylabel="training loss")
        on.set_title(f"range test, global batch {result['global_batch']}; ended: {result['ended']}", fontsize=11)
        on.grid()
        figure.legend(loc="outside lower center", ncols=2, fontsize=9)
        Path(path).write_bytes(canvas.as_png(figure, 120))
