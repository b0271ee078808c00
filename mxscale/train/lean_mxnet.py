"""Imports MXNet without packages that it imports for functions of which a rank has none.

They would take 120 MB and a sixth of the time. Only the processes of a run import this: in others MXNet would lack
them.
"""

import sys

UNUSED = {name: None for name in ("onnx", "requests", "scipy", "sklearn") if name not in sys.modules}

sys.modules.update(UNUSED)
import mxnet  # noqa: E402, F401

for name in UNUSED:  # whoever else imports them finds them
    del sys.modules[name]
