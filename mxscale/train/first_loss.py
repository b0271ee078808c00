"""What the first loss of a new classifier says: with weights near 0 all classes are as likely, so it is ln(classes)."""

import math
from typing import Optional

from mxscale.config.schema import Config
from mxscale.rundir.directory import WARNINGS, RunDir
from mxscale.rundir.plan import Plan

# In nats.  Weights of standard deviation 0.01 over 2,048 features of unit size move it by 0.01^2 x 2,048 / 2 = 0.1.
FAR = 0.5


class Gate:
    """Warns once, before the first update; never stops a run.  Every rank looks."""

    def __init__(self, run: RunDir, config: Config, plan: Plan, comm):
        self.run, self.config, self.classes, self.comm = run, config, plan.classes, comm
        self.open = not (plan.pretrained and plan.head == "keep")  # else its classifier is not new

    def look(self, tally) -> None:
        """After the forward passes of a step.  A collective, once."""
        if not self.open:
            return
        self.open = False
        loss, seen = self.comm.total(tally.so_far())
        warning = judge(loss / seen, self.classes, self.config)
        if warning and self.comm.rank == 0:
            print(f"warning: {warning}", flush=True)
            self.run.write(WARNINGS, {"first_loss": warning})


class NoGate:
    def look(self, tally) -> None:
        pass


def judge(loss: float, classes: int, config: Config) -> Optional[str]:
    """What is wrong with the first loss of a new head, and its likely cause; None where it is as it should be."""
    expected = math.log(classes)
    if abs(loss - expected) <= FAR:
        return None
    begins = f"a new head of {classes} classes begins near ln({classes}) = {expected:.2f}"
    said = f"the first loss is {loss:.3g}, and {begins}: "
    if not loss > expected:  # NaN too
        if math.isnan(loss):
            return said + "not a number comes out of the network; look at the weights and at data.mean, data.std"
        return said + "the head knows these labels already: was it replaced?"
    if config.model.pretrained:
        return said + (
            "the features are out of scale; most likely the input is not normalised as these weights expect it "
            f"(data.mean={config.data.mean}, data.std={config.data.std}, model.input={config.model.input})"
        )
    return said + f"the features are out of scale; is data.std={config.data.std} that of the images?"
