"""When training ends before its last step: at the target accuracy, or by early stopping."""

from typing import Optional

from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes


def reason_to_end(config: Config, sizes: Sizes, step: int, best: Optional[dict]) -> Optional[str]:
    """Return why training ends after `step`, or None if it continues, or if that was its last step.

    A checkpoint holds the arguments, so a resumed run ends at the step of an uninterrupted one.

    Args:
        best: The best validation until now, {"step", "val/top1", ...}; None before the first.
    """
    if best is None or step >= sizes.total_steps:
        return None
    if config.stop_at_target and best["val/top1"] >= config.target_top1:
        return f"val top-1 reached target_top1={config.target_top1:g}"
    interval = config.validate_every * sizes.steps_per_epoch
    # Whole intervals, because a resume may have changed max_steps or validate_every
    if config.patience is not None and step // interval - best["step"] // interval >= config.patience:
        return f"no higher val top-1 in patience={config.patience} validations"
    return None
