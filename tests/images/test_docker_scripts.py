"""Scripts that build the images, with fake tools and the real wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from docker_engine import link_or_copy
from repository import ROOT

DOCKER = ROOT / "docker"
WHEEL = Path(find_spec("mxnet").origin).parent
HEADERS = ["dlpack", "dmlc", "mkldnn", "mshadow", "nnvm"]
LINKED = ["libgfortran.so.3", "libopenblas.so.0"]  # by the wheel's libmxnet.so, in the same folder
CPU_FEATURES = ["OPENMP", "BLAS_OPEN", "LAPACK", "MKLDNN", "OPENCV", "DIST_KVSTORE"]

pytestmark = pytest.mark.skipif(not (WHEEL / LINKED[1]).exists(), reason="needs the parts of the 1.9.1 wheel")


def run(script, *arguments, **env):
    """Run a script of docker/; return (exit status, stdout, stderr)."""
    path = os.pathsep.join(
        [*filter(None, [env.pop("PATH", None)]), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    ended = subprocess.run(
        [DOCKER / script, *map(str, arguments)], env={"PATH": path, **env}, capture_output=True, text=True, timeout=60
    )
    return ended.returncode, ended.stdout, ended.stderr


def refused(outcome, *words, status=2):
    """Assert one line on stderr that contains `words`."""
    code, _, stderr = outcome
    assert code == status, stderr
    assert stderr.count("\n") == 1, stderr
    for word in words:
        assert word in stderr


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def put(path, content=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


SUMS = "src/src/operator/tensor/elemwise_binary_op_basic.cu"


@pytest.fixture
def folder(tmp_path):
    """Return a folder that is deleted after the test: libmxnet.so has 150 MB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture
def source(folder):
    """Return a source tree with the files that build-mxnet and install-mxnet read."""
    put(folder / "src/CMakeLists.txt")
    put(folder / SUMS)
    shutil.copytree(WHEEL / "include/mxnet", folder / "src/include/mxnet")
    for name in HEADERS:
        shutil.copytree(WHEEL / "include" / name, folder / "src/3rdparty" / name)
        (folder / "src/include" / name).symlink_to(f"../3rdparty/{name}")
    return folder / "src"


@pytest.fixture
def tools(folder):
    """Return variables of a fake cmake that copies the wheel's library and the libraries it links to."""
    made = "\n".join(f"ln {WHEEL}/{name} $2/3rdparty/ 2>/dev/null || cp {WHEEL}/{name} $2/3rdparty/" for name in LINKED)
    executable(
        folder / "bin/cmake",
        "#!/bin/bash\n"
        'if [[ $1 != --build ]]; then exec cp "$CACHE" "$6"/CMakeCache.txt; fi\n'
        f"mkdir -p $2/3rdparty\nln {WHEEL}/libmxnet.so $2/ 2>/dev/null || cp {WHEEL}/libmxnet.so $2/\n{made}\n",
    )
    executable(folder / "bin/ninja", "#!/bin/sh\n")
    put(folder / "cache")
    return {"PATH": str(folder / "bin"), "CACHE": str(folder / "cache")}


NVCC = """#!/bin/sh
if [ $1 = --list-gpu-arch ]; then printf 'compute_%s\\n' {archs}; exit; fi
echo 'Cuda compilation tools, release {release}'
"""


@pytest.fixture
def cuda(folder):
    """Return variables of a CUDA 11.8 with the files that build-mxnet checks."""
    home = folder / "cuda"
    executable(home / "bin/nvcc", NVCC.format(release="11.8", archs="70 80 90"))
    put(home / "lib64/stubs/libcuda.so")
    for name in ["cudnn.h", "nccl.h"]:
        put(home / "include" / name)
    return {"CUDA_HOME": str(home), "CUDNN_ROOT": str(home), "NCCL_ROOT_DIR": str(home)}


def printed(source, **env):
    """Return (cmake command, features) of --print."""
    code, out, err = run("build-mxnet", "--print", source, "/build", **env)
    assert code == 0, err
    command, features = out.splitlines()
    return command, features.split()


def test_default_build_has_cuda_cudnn_and_nccl(source):
    command, features = printed(source)
    assert features == [*CPU_FEATURES, "CUDA", "CUDNN", "NCCL"]
    assert command.startswith(f"cmake -G Ninja -S {source} -B /build ")
    for flag in ["USE_CUDA=ON", "USE_CUDNN=ON", "USE_NCCL=ON", "USE_BLAS=open", "USE_MKL_IF_AVAILABLE=OFF"]:
        assert f"-D{flag} " in command
    assert r"-DMXNET_CUDA_ARCH=7.0\;8.0\;9.0+PTX " in command


def test_build_without_cuda_has_no_cuda_options(source):
    command, features = printed(source, USE_CUDA="OFF", MXNET_CUDA_ARCH="")
    assert features == CPU_FEATURES
    for flag in ["USE_CUDA=OFF", "USE_CUDNN=OFF", "USE_NCCL=OFF", "USE_DIST_KVSTORE=ON", "USE_MKLDNN=ON"]:
        assert f"-D{flag} " in command
    assert "ARCH" not in command and "nvcc" not in command


def test_print_only_prints(source):
    before = sorted(source.parent.rglob("*"))
    printed(source, USE_CUDA="ON", CUDA_HOME="/nowhere")
    assert sorted(source.parent.rglob("*")) == before


def test_folder_without_a_release_is_refused(folder):
    refused(run("build-mxnet", "--print", folder, "/build"), f"{folder} is no source of MXNet", "unpack")


def test_another_release_is_refused_by_its_version(source):
    base = source / "include/mxnet/base.h"
    base.write_text(re.sub("(#define MXNET_MINOR) 9", r"\1 8", base.read_text()))
    refused(run("build-mxnet", "--print", source, "/build"), "is MXNet 1.8.1", "1.9.1")
    base.write_text("")
    refused(run("build-mxnet", "--print", source, "/build"), "of no known version")


@pytest.mark.parametrize("given", ["yes", "on", "1"])
def test_invalid_switch_is_refused(source, given):
    refused(run("build-mxnet", "--print", source, "/build", USE_CUDA=given), f"USE_CUDA={given}", "ON or OFF")


@pytest.mark.parametrize("given", ["Common", "All", "Auto", "Volta", "70", "7.0,8.0", "7.0;", "7.0;Common", "7.0+ptx"])
def test_non_numeric_architecture_is_refused(source, given):
    refused(run("build-mxnet", "--print", source, "/build", MXNET_CUDA_ARCH=given), f"MXNET_CUDA_ARCH={given}:")


@pytest.mark.parametrize("given", ["7.0", "9.0+PTX", "7.0;7.5+PTX"])
def test_one_or_more_numeric_architectures_are_accepted(source, given):
    assert f"-DMXNET_CUDA_ARCH={given}".replace(";", r"\;") + " " in printed(source, MXNET_CUDA_ARCH=given)[0]


def test_zero_jobs_and_missing_arguments_are_refused(source):
    refused(run("build-mxnet", source, "/build", JOBS="0"), "JOBS=0")
    refused(run("build-mxnet", source), "SRC", "BUILD")


@pytest.mark.parametrize("missing", ["bin/nvcc", "include/cudnn.h", "include/nccl.h"])
def test_incomplete_cuda_is_refused_before_the_build(source, tools, cuda, folder, missing):
    (folder / "cuda" / missing).unlink()
    refused(run("build-mxnet", source, folder / "build", **tools, **cuda), Path(missing).name, str(folder / "cuda"))
    assert not (folder / "build").exists()


@pytest.mark.parametrize(
    "release, words",
    [
        ("12.4", ["CUDA 12.4", "11.8 is the last"]),
        ("", ["CUDA of no known version"]),
        ("11.2", ["CUDA 11.2", "cannot compile for 9.0+PTX", "MXNET_CUDA_ARCH"]),
    ],
)
def test_an_unsuitable_cuda_compiler_is_refused_before_the_build(source, tools, cuda, release, words):
    executable(Path(cuda["CUDA_HOME"], "bin/nvcc"), NVCC.format(release=release, archs="70 80 86"))
    refused(run("build-mxnet", source, source.parent / "build", **tools, **cuda), *words)
    assert not (source.parent / "build").exists()


def test_cudnn_9_is_refused_before_the_build(source, tools, cuda, folder):
    put(folder / "cuda/include/cudnn_version.h", "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 1\n")
    refused(run("build-mxnet", source, folder / "build", **tools, **cuda), "has cuDNN 9: 8 is the last")


needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-query"), reason="needs Debian or Ubuntu")


@needs_dpkg
def test_the_compiler_of_cuda_home_precedes_that_of_usr_local_cuda(source, tools, cuda, folder):
    guess = 'if (NOT CMAKE_CUDA_COMPILER_LOADED AND UNIX AND EXISTS "/usr/local/cuda/bin/nvcc")'
    put(source / "CMakeLists.txt", f"  {guess}\n")
    run("build-mxnet", source, folder / "build", **tools, **cuda)
    assert "if (NOT CMAKE_CUDA_COMPILER AND UNIX AND" in (source / "CMakeLists.txt").read_text()


@needs_dpkg
def test_build_lists_linked_libraries_and_packages(source, tools, folder):
    code, out, err = run("build-mxnet", source, folder / "build", USE_CUDA="OFF", **tools)
    assert code == 0, err
    assert re.search(r"^MXNet 1\.9\.1 built in \d+ s$", out, re.MULTILINE)
    assert (folder / "build/features").read_text().split() == CPU_FEATURES
    assert (folder / "build" / LINKED[0]).exists()
    packages = (folder / "build/runtime-packages").read_text().split()
    assert {"libgomp1", "libstdc++6", "libgcc-s1"} <= set(packages) and "libc6" not in packages
    assert packages == sorted(set(packages))


def test_library_without_a_package_ends_the_build(source, tools, folder):
    executable(folder / "bin/dpkg-query", "#!/bin/sh\nexit 1\n")
    code, _, err = run("build-mxnet", source, folder / "build", USE_CUDA="OFF", **tools)
    assert code == 1 and "which no package owns" in err


@needs_dpkg
def test_build_without_requested_features_fails(source, tools, cuda, folder):
    refused(
        run("build-mxnet", source, folder / "build", **tools, **cuda), "is without CUDA CUDNN NCCL; it has", status=1
    )
    assert not (folder / "build/features").exists()


@needs_dpkg
@pytest.mark.parametrize(
    "listed, missing",
    [("none", "7.0; it has "), ("sm_70.cubin", "9.0+PTX; it has sm_70.cubin"),
     ("sm_70.cubin sm_90.cubin", "9.0+PTX; it has"), ("sm_70.cubin sm_90.cubin sm_90.ptx", None)],
)  # fmt: skip
def test_code_for_every_requested_architecture_is_verified(source, tools, cuda, folder, listed, missing):
    executable(folder / "cuda/bin/cuobjdump", f"#!/bin/sh\nprintf 'ELF file 1: mxnet.%s\\n' {listed}\n")
    code, out, err = run("build-mxnet", source, folder / "build", MXNET_CUDA_ARCH="7.0;9.0+PTX", **tools, **cuda)
    assert code == 1 and (f"libmxnet.so has no code for {missing}" in err) == bool(missing)
    assert missing or f"libmxnet.so has {listed}" in out
    run("build-mxnet", source, folder / "build", MXNET_CUDA_ARCH="7.0;9.0+PTX", **tools, **cuda)
    assert (folder / SUMS).read_text().count("#define DNS_CSR") == 1  # of two builds


def test_a_failed_compilation_shows_its_errors_and_not_its_warnings(source, tools, folder):
    executable(
        folder / "bin/cmake",
        "#!/bin/sh\n[ $1 != --build ] && exec cp $CACHE $6/CMakeCache.txt\necho 'FAILED: a.o'\n"
        "for i in $(seq 100); do echo 'b.h:1:2: warning: unused'; done\necho 'a.cc:3:4: error: no such type'\nexit 1\n",
    )
    code, _, err = run("build-mxnet", source, folder / "build", USE_CUDA="OFF", **tools)
    assert code == 1 and err.splitlines()[:2] == ["FAILED: a.o", "a.cc:3:4: error: no such type"]
    assert "warning" not in err and str(folder / "build/build.log") in err


@needs_dpkg
def test_missing_cudnn_ends_the_build_before_compiling(source, tools, cuda, folder):
    put(folder / "cache", "CUDNN_LIBRARY:FILEPATH=CUDNN_LIBRARY-NOTFOUND\n")
    code, _, err = run("build-mxnet", source, folder / "build", **tools, **cuda)
    assert code == 1 and "CUDNN_LIBRARY-NOTFOUND" in err and "set CUDNN_ROOT" in err
    assert not (folder / "build/libmxnet.so").exists()


def identity(folder, library: str, **env) -> dict:
    """Return what `identify` writes in an image with this MXNet."""
    put(folder / "packages/mxnet/__init__.py")
    put(folder / "packages/mxnet/libmxnet.so", library)
    executable(folder / "image/docker/identify", (DOCKER / "identify").read_text())
    (folder / "image/build.json").unlink(missing_ok=True)
    code, _, err = run(folder / "image/docker/identify", "source", PYTHONPATH=str(folder / "packages"), **env)
    assert code == 0, err
    return json.loads((folder / "image/build.json").read_text())


def test_builds_of_one_release_have_different_identities(folder):
    first, again, other = (identity(folder, library)["image.id"] for library in ("a", "a", "b"))
    assert first == again != other


def test_a_checkout_without_git_records_the_given_commit(folder):
    assert [identity(folder, "a", **env)["commit"] for env in ({}, {"COMMIT": "abc"})] == [None, "abc"]


LIBRARY = f"--library={WHEEL / 'libmxnet.so'}"


@pytest.mark.slow
@pytest.mark.parametrize("asked", [[], [LIBRARY]], ids=["package", "library"])
def test_the_wheel_has_its_features(asked):
    code, out, err = run("check-features", *asked, *CPU_FEATURES)
    assert code == 0, err
    assert out.endswith(" ".join(CPU_FEATURES) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("asked", [[], [LIBRARY]], ids=["package", "library"])
def test_missing_features_of_the_wheel_are_named(asked):
    missing = run("check-features", *asked, "OPENMP", "CUDA", "NCCL", "NO_SUCH")
    refused(missing, "is without CUDA NCCL NO_SUCH; it has", "MKLDNN", status=1)


def test_unloadable_library_is_one_line(folder):
    put(folder / "libmxnet.so", "no library")
    refused(run("check-features", f"--library={folder / 'libmxnet.so'}", "CUDA"), "can't be loaded", status=1)


@pytest.fixture
def built(folder):
    """Return a build folder with the library, the libraries it links to and a generated header of oneDNN."""
    for name in ["libmxnet.so", *LINKED]:
        link_or_copy(WHEEL / name, folder / "build")
    put(folder / "build/3rdparty/mkldnn/include/oneapi/dnnl/dnnl_version.h", "made by the build")
    return folder / "build"


@pytest.fixture
def venv(folder):
    """Return a virtual environment with the packages of these tests except MXNet."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv/lib").glob("python3*")) / "site-packages"
    for path in WHEEL.parent.iterdir():
        if not path.name.startswith("mxnet"):
            (site / path.name).symlink_to(path)
    return folder / "venv"


SCRIPT = """
import importlib.metadata, mxnet as mx
print(importlib.metadata.version("mxnet"), mx.__file__)
print(*mx.libinfo.find_lib_path()[:1])
print(mx.libinfo.find_include_path())
print(int(mx.nd.ones((2, 3)).sum().asscalar()))
"""


@pytest.mark.slow
def test_installed_package_imports_with_library_and_headers(source, built, venv):
    ignored = shutil.ignore_patterns("*.so*", "include", "__pycache__")
    shutil.copytree(WHEEL, source / "python/mxnet", ignore=ignored)
    for _ in range(2):  # the second replaces the first
        code, _, err = run("install-mxnet", source, built, venv)
        assert code == 0, err
    ended = subprocess.run([venv / "bin/python", "-c", SCRIPT], capture_output=True, text=True, cwd="/", timeout=60)
    assert ended.returncode == 0, ended.stderr
    package, library, include, total = ended.stdout.splitlines()
    site = next((venv / "lib").glob("python3*")) / "site-packages"
    assert package == f"1.9.1 {site / 'mxnet/__init__.py'}"
    assert library == str(site / "mxnet/libmxnet.so") and include == f"{site / 'mxnet/include'}/"
    assert total == "6"
    for name in ["mxnet", *HEADERS]:
        assert (site / "mxnet/include" / name).is_dir() and not (site / "mxnet/include" / name).is_symlink()
    assert (site / "mxnet/include/dmlc/base.h").exists()
    assert (site / "mxnet/include/mkldnn/oneapi/dnnl/dnnl_version.h").read_text() == "made by the build"


def test_installation_from_missing_files_is_refused(source, folder):
    refused(run("install-mxnet", source, folder / "build", folder / "venv"), f"{source}/python/mxnet is not")
    put(source / "python/mxnet/libinfo.py", '__version__ = "1.9.1"\n')
    refused(run("install-mxnet", source, folder / "build", folder / "venv"), "libmxnet.so is missing", "build-mxnet")
    put(folder / "build/libmxnet.so")
    refused(run("install-mxnet", source, folder / "build", folder / "venv"), "no virtual environment")
    executable(folder / "venv/bin/python", "#!/bin/sh\n")
    (source / "include/nnvm").unlink()
    refused(run("install-mxnet", source, folder / "build", folder / "venv"), "include/nnvm is missing")


CUDA9 = ["libcudart", "libcublas", "libcufft", "libcurand", "libcusolver", "libnvrtc", "libnvrtc-builtins"]


@pytest.fixture
def image(folder):
    """Return the root of an image with CUDA 9.0, its libraries as links to full versions."""
    lib = folder / "root/usr/local/cuda/lib64"
    for name in CUDA9:
        put(lib / f"{name}.so.9.0.176", name)
        (lib / f"{name}.so.9.0").symlink_to(f"{name}.so.9.0.176")
    put(lib / "stubs/libcuda.so", "stub")
    put(folder / "root/usr/local/cuda/doc/EULA.txt", "licence")
    return folder / "root"


def test_cuda_9_is_collected_under_sonames(image, folder):
    code, _, err = run("collect-cuda9", folder / "out", ROOT=str(image))
    assert code == 0, err
    for name in CUDA9:
        file = folder / "out" / f"{name}.so.9.0"
        assert file.read_text() == name and not file.is_symlink()
    assert (folder / "out/libnvrtc-builtins.so").read_text() == "libnvrtc-builtins"
    assert (folder / "out/stubs/libcuda.so.1").read_text() == "stub"
    assert (folder / "out/licences/EULA.txt").read_text() == "licence"


@pytest.mark.parametrize("missing", ["lib64/libcufft.so.9.0", "lib64/stubs/libcuda.so", "doc/EULA.txt"])
def test_missing_part_of_cuda_9_is_named(image, folder, missing):
    (image / "usr/local/cuda" / missing).unlink()
    refused(run("collect-cuda9", folder / "out", ROOT=str(image)), Path(missing).name, status=1)


def test_an_image_without_cuda_is_refused(folder):
    refused(run("collect-cuda9", folder / "out", ROOT=str(folder)), f"{folder}/usr/local/cuda is missing", status=1)
    refused(run("collect-cuda9"), "folder")


def linked(folder, source: str, name: str, *options) -> Path:
    """Compile C to a shared library."""
    made = folder / name
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", f"-Wl,-soname,{name}", *options, "-o", str(made)]
    subprocess.run(argv, input=source, text=True, check=True)
    return made


def test_stubs_replace_the_libraries_of_cuda_9_that_mxnet_links_to(folder):
    versions = folder / "versions"
    versions.write_text("libcudart.so.9.0 { global: *; };\n")
    real = linked(
        folder, "int cudaGetDeviceCount() { return 0; }", "libcudart.so.9.0", f"-Wl,--version-script,{versions}"
    )
    library = linked(
        folder, "int cudaGetDeviceCount(); int devices() { return cudaGetDeviceCount(); }", "libm.so", str(real)
    )
    real.unlink()
    code, out, _ = run("stub-cuda9", library, folder / "stubs")
    assert code == 0 and "libcudart.so.9.0: 1 functions" in out
    call = f"import ctypes; print(ctypes.CDLL({str(library)!r}).devices())"
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder / "stubs")}
    done = subprocess.run([sys.executable, "-c", call], env=env, capture_output=True, text=True)
    assert done.stdout == "38\n", done.stderr  # no device


def test_stubs_of_a_missing_library_are_refused(folder):
    refused(run("stub-cuda9", folder / "libmxnet.so", folder), "give the file libmxnet.so and a folder")


@pytest.mark.parametrize("given", ["", "a/b", "models:/a", "a@champion"])
def test_a_model_without_a_plain_name_is_not_served(given):
    refused(run("serve-model", MODEL=given), f"error: MODEL={given}: set it to the name of a registered model")


@pytest.mark.slow
def test_a_missing_server_of_the_model_is_named():
    outcome = run("serve-model", MODEL="x", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    refused(outcome, "error: MODEL=x: http://127.0.0.1:9 does not answer")


def test_mxnet_without_a_lock_is_refused(folder):
    put(folder / "flavours/mxnet-cu90==1.5.0.lock")
    refused(
        run("install-packages", "mxnet==1.6.0", REQUIREMENTS=str(folder)),
        "MXNET=mxnet==1.6.0 has no lock",
        "there are mxnet==1.9.1 mxnet-cu90==1.5.0",
    )
    refused(run("install-packages"), "MXNET")
