"""The settings that a verb of `mxscale` has besides those of a run."""
