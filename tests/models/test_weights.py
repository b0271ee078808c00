"""Weights: digest, files, and fitting into a network."""

import hashlib
import os
import random
import struct

import mxnet as mx
import numpy as np
import pytest

from mxscale.models import weights, zoo
from mxscale.util.errors import ConfigError

CPU = mx.cpu()


def ready(classes=5, seed=1, name="small"):
    net = zoo.build(name, classes)
    zoo.initialise(net, seed, CPU, zero_gamma=True)
    zoo.finish(net, (1, 3, 32, 32), CPU)
    return net


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.params"
    weights.save(path, {"features.0.weight": np.arange(6, dtype="f4").reshape(2, 3), "output.bias": np.ones(2, "f4")})
    return path


def test_the_digest_covers_names_types_shapes_and_bytes():
    arrays = {"b": np.array([[1, 2]], dtype="float32"), "a.w": np.array([-1], dtype="int32")}
    text = b"a.w\0int32\x001\0" + b"\xff\xff\xff\xff" + b"b\0float32\x001,2\0" + b"\0\0\x80\x3f\0\0\0\x40"
    assert weights.params_sha256(arrays) == hashlib.sha256(text).hexdigest()
    assert weights.params_sha256(arrays) == "08b4e83145588409bb3c3397bf5aa998628cb2cedc1939bff6ce9ccdc96a789c"


def test_the_digest_ignores_layout_order_and_endianness():
    array = np.arange(6, dtype="float32").reshape(2, 3)
    want = weights.params_sha256({"a": array, "b": array})
    assert weights.params_sha256({"b": array, "a": np.asfortranarray(array)}) == want
    assert weights.params_sha256({"a": array.astype(">f4"), "b": array}) == want


def test_a_scalar_has_an_empty_shape():
    assert weights.params_sha256({"a": np.float32(0)}) == hashlib.sha256(b"a\0float32\0\0\0\0\0\0").hexdigest()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "int8", "int32", "int64"])
def test_a_file_round_trip_is_bit_identical(tmp_path, dtype):
    array = np.arange(-4, 20).reshape(2, 3, 4).astype(dtype)
    if dtype == "float32":
        array[0, 0] = np.nan, np.inf, -0.0, 1e-45
    digest = weights.save(tmp_path / "w", {"c": array[0], "a.b": array})
    assert digest == hashlib.sha256((tmp_path / "w").read_bytes()).hexdigest()
    mx.nd.save(
        str(tmp_path / "mxnet"), {"a.b": mx.nd.array(array, dtype=dtype), "c": mx.nd.array(array[0], dtype=dtype)}
    )
    assert (tmp_path / "w").read_bytes() == (tmp_path / "mxnet").read_bytes()
    loaded = weights.load(tmp_path / "w")
    assert list(loaded) == ["a.b", "c"] and loaded["a.b"].dtype == array.dtype
    assert loaded["a.b"].asnumpy().tobytes() == array.tobytes()
    assert mx.nd.load(str(tmp_path / "w"))["c"].asnumpy().tobytes() == array[0].tobytes()


def test_equal_arrays_give_equal_files(tmp_path):
    a, b = np.ones(2, "f4"), np.zeros((1, 2), "f4")
    weights.save(tmp_path / "1", {"a": a, "b": b})
    weights.save(tmp_path / "2", {"b": mx.nd.array(b), "a": mx.nd.array(a)})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def test_a_network_round_trips_and_gluon_reads_the_file(tmp_path):
    net = ready(seed=1)
    weights.save(tmp_path / "w.params", weights.arrays(net))
    want = weights.params_sha256(weights.arrays(net))
    other = ready(seed=2)
    weights.fit(other, weights.load(tmp_path / "w.params"), "w.params", "keep")
    assert weights.params_sha256(weights.arrays(other)) == want
    gluon = zoo.build("small", 5)
    gluon.load_parameters(str(tmp_path / "w.params"))
    assert weights.params_sha256(weights.arrays(gluon)) == want


def test_arg_and_aux_prefixes_are_dropped(tmp_path):
    mx.nd.save(str(tmp_path / "w"), {"arg:fc_weight": mx.nd.ones(2), "aux:bn_moving_mean": mx.nd.zeros(3)})
    assert sorted(weights.load(tmp_path / "w")) == ["bn_moving_mean", "fc_weight"]


@pytest.mark.parametrize("version", ["before 0.12", "V1", "V3"])
def test_files_of_other_versions_are_read_as_in_mxnet(tmp_path, version):
    v1, v3 = struct.pack("<Ii2q", 0xF993FAC8, 2, 2, 3), struct.pack("<Iii2q", 0xF993FACA, 0, 2, 2, 3)
    shape = {"before 0.12": struct.pack("<3I", 2, 2, 3), "V1": v1, "V3": v3}[version]
    values = np.arange(6, dtype="<f4")
    array = shape + struct.pack("<3i", 1, 0, 0) + values.tobytes()
    path = tmp_path / "w"
    path.write_bytes(struct.pack("<3Q", 0x112, 0, 1) + array + struct.pack("<QQ", 1, 5) + b"arg:w")
    with mx.util.np_shape(version == "V3"):
        assert mx.nd.load(str(path))["arg:w"].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert weights.load(path)["w"].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_missing_file_and_a_directory_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match=f"^model.pretrained={tmp_path}/no: No such file or directory$"):
        weights.load(tmp_path / "no")
    with pytest.raises(ConfigError, match=f"^resume={tmp_path}: a folder, not a regular file$"):
        weights.load(tmp_path, key="resume")


def refused(path):
    with pytest.raises(ConfigError, match=f"^model.pretrained={path} is not an MXNet parameter file") as error:
        weights.load(path)
    assert "truncated or corrupt" in str(error.value) and "\n" not in str(error.value)


def test_a_file_cut_at_any_byte_is_refused(file):
    complete = file.read_bytes()
    for length in range(len(complete)):
        file.write_bytes(complete[:length])
        refused(file)
    file.write_bytes(complete + b"\0")
    refused(file)


@pytest.mark.parametrize("content", [b"PK\x03\x04" * 50, b"text, not weights\n" * 20, b"\0" * 500, b"\xff" * 500])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "w").write_bytes(content)
    refused(tmp_path / "w")


@pytest.mark.parametrize("shape", [(2**62, 0, 2**62), (2**62, 0), (0,), (2**40, 2**40)])
def test_shapes_without_their_values_are_refused(tmp_path, shape):
    array = struct.pack(f"<Iii{len(shape)}q3i", 0xF993FAC9, 0, len(shape), *shape, 1, 0, 0)
    (tmp_path / "w").write_bytes(struct.pack("<3Q", 0x112, 0, 1) + array + struct.pack("<QQ", 1, 1) + b"w")
    refused(tmp_path / "w")


def test_other_kinds_of_files_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(20 << 30)
    whys = {"fifo": "a FIFO, not", "/dev/zero": "a device, not", "sparse": "21.5 GB, expected at most 2.1 GB"}
    for name, why in whys.items():
        with pytest.raises(ConfigError, match=f"^model.pretrained={tmp_path / name}: {why}"):
            weights.load(tmp_path / name)


def test_damaged_bytes_never_crash(file):
    complete, draw = file.read_bytes(), random.Random(0)
    outcomes = set()
    for _ in range(2000):
        damaged = bytearray(complete)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(complete))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        file.write_bytes(damaged)
        try:
            weights.load(file)
            outcomes.add("read")
        except ConfigError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_arrays_without_names_and_no_arrays_are_refused(tmp_path):
    mx.nd.save(str(tmp_path / "list"), [mx.nd.ones(2)])
    refused(tmp_path / "list")
    (tmp_path / "none").write_bytes(struct.pack("<4Q", 0x112, 0, 0, 0))
    refused(tmp_path / "none")


def test_a_file_that_cannot_be_written_is_an_oserror(tmp_path):
    with pytest.raises(OSError):
        weights.save(tmp_path / "no" / "w", {"a": np.ones(2, "f4")})


@pytest.mark.parametrize("name", ["small", "mobilenetv2_0.25", "squeezenet1.0"])  # the last two: a convolution
def test_a_replaced_head_keeps_the_networks_values(name):
    source, net = ready(10, 1, name), ready(3, 2, name)
    head = {n: a for n, a in weights.arrays(net).items() if n.startswith("output.")}
    given = {n: mx.nd.array(a) for n, a in weights.arrays(source).items()}
    weights.fit(net, given, "x", "replace")
    after = weights.arrays(net)
    assert all((after[n] == a).all() for n, a in head.items()) and any(a.any() for a in head.values())
    assert all((after[n] == a.asnumpy()).all() for n, a in given.items() if n.startswith("features."))
    assert net(mx.nd.ones((2, 3, 32, 32))).shape == (2, 3)


def test_types_are_cast_to_the_networks():
    net = ready()
    given = {n: mx.nd.array(a, dtype="float16") for n, a in weights.arrays(ready(seed=3)).items()}
    weights.fit(net, given, "x", "keep")
    assert {a.dtype.name for a in weights.arrays(net).values()} == {"float32"}


def test_mismatches_are_named_and_change_nothing():
    net = ready()
    before = weights.params_sha256(weights.arrays(net))
    given = {n: mx.nd.array(a) for n, a in weights.arrays(ready(seed=2)).items()}
    for name in [n for n in given if n.startswith("features.1.")]:
        del given[name]
    del given["output.bias"]
    given["extra"] = mx.nd.ones(1)
    given["output.weight"] = mx.nd.ones((7, 64))
    given["features.0.weight"][0] = float("nan")
    with pytest.raises(ConfigError) as error:
        weights.fit(net, given, "w.params", "keep")
    assert str(error.value) == (
        "model.pretrained=w.params does not fit small: "
        "missing features.1.beta, features.1.gamma, features.1.running_mean (and 2 more); unexpected extra; "
        "shapes differ: output.weight (7, 64) in the file, (5, 64) in the network; "
        "not a number or infinite: features.0.weight"
    )
    assert weights.params_sha256(weights.arrays(net)) == before


def test_names_of_old_gluon_files_fit():
    net, other = ready(seed=1), ready(seed=2)
    old = {p.name[len(net.prefix) :]: p.data() for p in net.collect_params().values()}
    assert not any("." in name for name in old)
    weights.fit(other, old, "x.params", "keep")
    assert weights.params_sha256(weights.arrays(other)) == weights.params_sha256(weights.arrays(net))
