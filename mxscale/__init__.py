"""Train image classifiers with MXNet and Horovod; see README.md."""

import sys

from mxscale.util.mxnet_import import QuickImport

__version__ = "0.1.0"

sys.meta_path.insert(0, QuickImport)
