"""Train image classifiers with MXNet and Horovod; see README.md."""

__version__ = "0.1.0"
