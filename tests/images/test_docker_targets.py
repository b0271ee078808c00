"""The targets with a vendor's base image, built on a Debian image in its place.

Every instruction of `ngc` and `source` runs, and those of `cu90` that require no CUDA compiler. The results are not
GPU builds.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import mxnet
import pytest
from docker_engine import NEEDS_ENGINE, copy_of_sources, link_or_copy, sh
from repository import ROOT

pytestmark = NEEDS_ENGINE

DEBIAN = "debian:bookworm-slim"
TRAIN = ["python", "train.py", "tracking=none", "max_steps=2", "launch.ranks=2", "batch.per_device=12"]


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the sources that a test may change."""
    return copy_of_sources(tmp_path / "checkout")


def stand_in(tmp_path, name: str, *lines: str) -> str:
    """Build an image from instructions and return its name."""
    (tmp_path / "Dockerfile").write_text("\n".join(lines) + "\n")
    sh("docker", "build", "-q", "-t", f"mxscale-stand-in:{name}", str(tmp_path), timeout=1200)
    return f"mxscale-stand-in:{name}"


def build(folder, target, *arguments, expect=0):
    """Build `target` as mxscale-stand-in:TARGET-built and return the output."""
    done = subprocess.run(
        ["docker", "build", "--progress=plain", "--target", target, "-t", f"mxscale-stand-in:{target}-built",
         *[word for argument in arguments for word in ("--build-arg", argument)], str(folder)],
        capture_output=True, text=True, timeout=2400,
    )  # fmt: skip
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stderr


@pytest.fixture
def vendor(tmp_path):
    """Return an image with MXNet and Horovod in the system's Python, like NVIDIA's."""
    sh("docker", "build", "--target", "cpu", "-t", "mxscale:cpu", ".", timeout=1500)
    folder = tmp_path / "vendor"
    folder.mkdir()
    site = "/usr/local/lib/python3.11/dist-packages"
    return stand_in(
        folder,
        "ngc",
        "FROM mxscale:cpu",
        f"RUN mv /opt/venv/lib/python3.11/site-packages/* {site}/ && mv /opt/venv/bin/horovodrun /usr/local/bin/ \\",
        " && sed -i '1s#.*#\\#!/usr/bin/python3#' /usr/local/bin/horovodrun && rm -rf /opt/venv /mxscale \\",
        # What only our packages bring
        f" && rm -rf {site}/hydra* {site}/mlflow* {site}/omegaconf* \\",
        # NVIDIA pins its own packages, and starts commands by a script that prints a banner
        " && mkdir -p /etc/pip /opt/nvidia && echo 'hydra-core<1' >/etc/pip/constraint.txt \\",
        ' && printf \'#!/bin/bash\\necho "== MXNet =="\\nexec "$@"\\n\' >/opt/nvidia/nvidia_entrypoint.sh \\',
        " && chmod 755 /opt/nvidia/nvidia_entrypoint.sh",
        "ENV PIP_CONSTRAINT=/etc/pip/constraint.txt BASH_ENV=/etc/bash.bashrc OPAL_PREFIX=/usr",
        'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]',
    )


def test_ngc_keeps_the_images_own_mxnet_and_horovod(vendor):
    log = build(ROOT, "ngc", f"NGC_IMAGE={vendor}")
    assert "install-beside: MXNet, numpy, Horovod of the image: 1.9.1 1.23.5 0.28.1" in log
    out = sh("docker", "run", "--rm", "mxscale-stand-in:ngc-built", *TRAIN)[0]
    assert "step 2/2" in out
    where = "import mxnet, horovod, hydra; print(mxnet.__file__, horovod.__file__, hydra.__file__)"
    found = sh("docker", "run", "--rm", "mxscale-stand-in:ngc-built", "python", "-c", where)[0].split()
    assert [path.startswith("/usr/local/lib") for path in found] == [True, True, False]
    identity = sh("docker", "run", "--rm", "mxscale-stand-in:ngc-built", "cat", "/mxscale/build.json")[0]
    assert '"build": "ngc"' in identity


def test_ngc_refuses_an_old_python(tmp_path):
    old = tmp_path / "python3"
    old.write_text(
        "#!/bin/sh\nexec /usr/bin/env -i PATH=/usr/bin python3 -c "
        "'import sys; sys.version_info = (3, 8, 10); sys.version = \"3.8.10\"; exec(sys.stdin.read())'\n"
    )
    old.chmod(0o755)
    done = subprocess.run(
        ["sh", ROOT / "docker" / "install-beside", tmp_path / "venv"], capture_output=True, text=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"install-beside: this image has Python 3\.8\.10, .*NGC_TAG=24\.06-py3.*\n", done.stderr)


def release_of_the_wheel(src: Path, version="1.9.1") -> None:
    """A tree with the shape of Apache's release whose build delivers the installed wheel's library."""
    wheel = Path(mxnet.__file__).parent
    libraries = [path for path in wheel.glob("*.so*") if path.is_file()]
    shutil.copytree(
        wheel, src / "python" / "mxnet", ignore=lambda folder, names: {n for n in names if ".so" in n or n == "include"}
    )
    shutil.copytree(wheel / "include", src / "include")
    for library in libraries:
        link_or_copy(library, src / "prebuilt")
    (src / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(mxnet CXX)\n"
        "add_custom_target(mxnet ALL COMMAND cp -L ${CMAKE_SOURCE_DIR}/prebuilt/. ${CMAKE_BINARY_DIR} -r\n"
        # oneDNN's build makes two headers
        "  COMMAND mkdir -p ${CMAKE_BINARY_DIR}/3rdparty/mkldnn/include\n"
        "  COMMAND cp ${CMAKE_SOURCE_DIR}/include/mkldnn/dnnl_config.h ${CMAKE_BINARY_DIR}/3rdparty/mkldnn/include)\n"
    )
    base = src / "include" / "mxnet" / "base.h"
    text = base.read_text()
    for name, number in zip(("MAJOR", "MINOR", "PATCH"), version.split(".")):
        text = re.sub(rf"(#define MXNET_{name}) \d+", rf"\1 {number}", text)
    base.unlink()
    base.write_text(text)


# On the stages below cuda-debian and cuda-debian-run
SOURCE = ["CUDA_IMAGE=debian-build", "CUDA_RUNTIME_IMAGE=debian", "MXNET_SRC=local", "USE_CUDA=OFF"]


def test_source_image_builds_and_trains(checkout):
    release_of_the_wheel(checkout / "docker" / "mxnet-src")
    build(checkout, "source", *SOURCE)
    assert "step 2/2" in sh("docker", "run", "--rm", "mxscale-stand-in:source-built", *TRAIN)[0]
    tools = "import shutil; print([c for c in ('gcc', 'g++', 'cmake', 'ninja') if shutil.which(c)])"
    assert sh("docker", "run", "--rm", "mxscale-stand-in:source-built", "python", "-c", tools)[0] == "[]\n"


def test_source_refuses_another_release(checkout):
    release_of_the_wheel(checkout / "docker" / "mxnet-src", version="1.8.0")
    assert "is MXNet 1.8.0: this recipe is for 1.9.1" in build(checkout, "source", *SOURCE, expect=1)


def test_cuda_9_libraries_are_collected_in_a_stage(tmp_path):
    names = ("cudart", "cublas", "cufft", "curand", "cusolver", "nvrtc")
    lib = "/usr/local/cuda-9.0/lib64"
    fake = stand_in(
        tmp_path,
        "cuda9",
        f"FROM {DEBIAN}",
        f"RUN mkdir -p {lib}/stubs && ln -s cuda-9.0 /usr/local/cuda && cd {lib} \\",
        f" && for n in {' '.join(names)}; do touch lib$n.so.9.0.176; ln -s lib$n.so.9.0.176 lib$n.so.9.0; done \\",
        " && touch libnvrtc-builtins.so.9.0 libnvrtc-builtins.so stubs/libcuda.so /usr/local/cuda-9.0/EULA.txt",
    )
    build(ROOT, "cuda9", f"CUDA9_IMAGE={fake}")
    listed = sh("docker", "run", "--rm", "mxscale-stand-in:cuda9-built", "ls", "/cuda9")[0].split()
    assert {f"lib{name}.so.9.0" for name in names} | {"stubs", "licences"} <= set(listed)


@pytest.mark.parametrize(
    "script", sorted(path.name for path in (ROOT / "docker").iterdir() if os.access(path, os.X_OK))
)
def test_script_passes_shellcheck(script):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    path = ROOT / "docker" / script
    if path.is_file() and "python" not in path.read_text().splitlines()[0]:
        sh("shellcheck", str(path))
