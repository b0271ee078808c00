import subprocess
import sys

import pytest

from mxscale.util.mxnet_import import define_deferred

IMPORT = """
import mxscale
import mxnet as mx
print(mx.nd.relu(mx.nd.array([-1, 2])).asnumpy(), mx.sym.relu(mx.sym.var("x"), name="y").list_arguments())
print(mx.nd.relu.__name__, "rectified linear" in mx.nd.relu.__doc__)
try:
    mx.nd.FullyConnected(mx.nd.ones((1, 1)), no_such="x")
except mx.MXNetError as error:
    print("no_such" in str(error))
import sys
print("scipy" in sys.modules, "sklearn" in sys.modules)
import scipy
"""


def test_operators_compute_document_and_refuse_as_usual():
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[0. 2.] ['x']", "relu True", "True", "False False"]


def test_a_generated_function_is_compiled_once_at_its_first_call():
    local, namespace = {}, {}
    define_deferred(namespace, "\ndef scaled(x, by=FACTOR, **others):\n    return x * by, others", None, local)
    with pytest.raises(NameError, match="FACTOR"):
        local["scaled"](1)
    namespace["FACTOR"] = 2
    assert local["scaled"](3, out=4) == (6, {"out": 4})
    namespace["FACTOR"] = 5
    assert local["scaled"](3) == (6, {})
