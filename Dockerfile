# Images of one product, by target:
#
#   cpu      Debian, the MXNet wheel, Horovod with Gloo and Open MPI                      (default)
#   ngc      NVIDIA's last MXNet image with its MXNet and Horovod
#   source   MXNet 1.9.1 from the Apache release: CUDA, cuDNN, NCCL, OpenBLAS, OpenCV
#   cuda-debian, cuda-debian-run  CUDA 11.8, cuDNN and NCCL on Debian, for CUDA_IMAGE and CUDA_RUNTIME_IMAGE
#   wheel-gpu  the wheel mxnet-cu117 with NVIDIA's wheels of CUDA 11, for GPUs from Pascal to Ada
#   cu90     the pip package mxnet-cu90 with the CUDA 9.0 libraries of an old NVIDIA image
#   test     cpu, or with --build-arg BUILD=source that image, with the tests
#   mlflow   the tracking server, and the server of registered models
#
#   docker build --target source -t mxscale:source .          requires BuildKit
#
# Behind a proxy that inspects TLS: --secret id=ca,src=its-certificate.pem (see docs/containers.md).
# Layers are ordered by how often they change: the code comes last.

ARG CUDA_IMAGE=nvcr.io/nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04
ARG CUDA_RUNTIME_IMAGE=nvcr.io/nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04
ARG CUDA9_IMAGE=nvcr.io/nvidia/mxnet:18.06-py3
ARG NGC_TAG=24.06-py3
ARG NGC_IMAGE=nvcr.io/nvidia/mxnet:${NGC_TAG}
# download | local: with `local` the unpacked release is in docker/mxnet-src/, for Docker before 23, which has no
# --build-context mxnet-src=DIR
ARG MXNET_SRC=download
# cpu | source | wheel-gpu | cu90: the image that `test` extends
ARG BUILD=cpu
ARG VERSION=0.1.0

# ---------------------------------------------------------------- shared by all targets

FROM scratch AS code
COPY *.py pyproject.toml LICENSE NOTICE /mxscale/
COPY conf /mxscale/conf
COPY docker/ssh_config /etc/ssh/ssh_config.d/mxscale.conf
COPY docker/entrypoint docker/finish docker/identify docker/make-keys docker/worker /mxscale/docker/
COPY mxscale /mxscale/mxscale
# For the commit; an archive of the sources has none
COPY .gi[t]/HEA[D] .gi[t]/packed-ref[s] /git/
COPY .gi[t]/refs/heads /git/refs/heads

FROM debian:bookworm-slim AS debian
ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8 PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN rm -f /etc/apt/apt.conf.d/docker-clean
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 ca-certificates >/dev/null \
    && groupadd --gid 1000 mxscale && useradd --uid 1000 --gid 1000 --create-home mxscale

FROM debian AS debian-build
COPY docker/with-ca /usr/local/bin/
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends \
    python3-venv python3-dev g++ make libopenmpi-dev openmpi-bin >/dev/null
RUN python3 -m venv /opt/venv

# ---------------------------------------------------------------- cpu

FROM debian-build AS cpu-build
# A release with a lock in requirements/flavours; mxnet-cu90 has the API of mxnet==1.5.0
ARG MXNET=mxnet==1.9.1
COPY requirements/rank.lock requirements/horovod.lock requirements/install-horovod /requirements/
COPY requirements/flavours /requirements/flavours
COPY docker/install-packages /usr/local/bin/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca with-ca install-packages "$MXNET"

FROM debian AS debian-run
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends \
    libgomp1 libquadmath0 openmpi-bin openssh-client openssh-server >/dev/null

FROM debian-run AS cpu-packages
COPY --from=cpu-build /opt/venv /opt/venv

# ---------------------------------------------------------------- mlflow

FROM debian-build AS mlflow-build
COPY requirements/mlflow.lock /requirements/
COPY docker/install-mlflow /usr/local/bin/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca with-ca install-mlflow

FROM debian AS mlflow
ARG COMMIT=unknown
ARG VERSION
LABEL org.opencontainers.image.title="mxscale (mlflow)" \
      org.opencontainers.image.description="MLflow's tracking server, and the server of registered models" \
      org.opencontainers.image.base.name=debian:bookworm-slim org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$COMMIT
COPY --from=mlflow-build /opt/venv /opt/venv
COPY docker/serve-mlflow docker/serve-model /usr/local/bin/
RUN install -d -o mxscale -g mxscale /mlflow
USER mxscale
ENV HOME=/home/mxscale MLFLOW_DISABLE_TELEMETRY=true
WORKDIR /mlflow
EXPOSE 5000
ENTRYPOINT ["serve-mlflow"]

# ---------------------------------------------------------------- ngc

FROM ${NGC_IMAGE} AS ngc-packages
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    openssh-client openssh-server >/dev/null && rm -rf /var/lib/apt/lists/*
COPY docker/with-ca docker/install-beside /usr/local/bin/
COPY requirements/rank.lock /requirements/
# Its MXNet, Horovod and numpy stay unchanged; the other packages are in a virtual environment on top
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca with-ca install-beside /opt/venv
ENV PATH=/opt/venv/bin:$PATH

FROM ngc-packages AS ngc
ARG NGC_IMAGE
ARG COMMIT=unknown
ARG VERSION
LABEL org.opencontainers.image.title="mxscale (ngc)" \
      org.opencontainers.image.description="Training of image classifiers with NVIDIA's MXNet and Horovod" \
      org.opencontainers.image.base.name=${NGC_IMAGE} org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$COMMIT com.mxscale.build=ngc
COPY --from=code / /
RUN /mxscale/docker/finish ngc
ENV MXSCALE_IDENTITY=/mxscale/build.json
WORKDIR /mxscale
ENTRYPOINT ["/mxscale/docker/entrypoint"]
CMD ["python", "train.py"]

# ---------------------------------------------------------------- cuda-debian

# What CUDA_IMAGE contains, from Debian's non-free packages and NVIDIA's wheels, for machines that do not reach NVIDIA's
# registry: --build-arg CUDA_IMAGE=cuda-debian --build-arg CUDA_RUNTIME_IMAGE=cuda-debian-run. NVIDIA's licences allow
# to build it, not to distribute it.
FROM debian-build AS cuda-debian
COPY docker/install-cuda /usr/local/bin/
COPY requirements/cuda.lock /requirements/
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca with-ca install-cuda
ENV CUDAHOSTCXX=/usr/bin/g++-11 NVCC_CCBIN=/usr/bin/g++-11

# cuDNN and NCCL; the stage source-packages installs Debian's packages of the other libraries
FROM debian AS cuda-debian-run
COPY --from=cuda-debian /etc/apt /etc/apt
COPY --from=cuda-debian /usr/lib/x86_64-linux-gnu/libcudnn*.so.8 /usr/lib/x86_64-linux-gnu/libnccl.so.2 \
    /usr/lib/x86_64-linux-gnu/
RUN ldconfig
# As in NVIDIA's images: container runtimes make GPUs visible by these
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# ---------------------------------------------------------------- wheel-gpu

# Nothing of MXNet is compiled; cuda-debian has the compiler that Horovod needs.
FROM cuda-debian AS wheel-gpu-build
COPY requirements/rank.lock requirements/horovod.lock requirements/install-horovod /requirements/
COPY requirements/flavours /requirements/flavours
COPY docker/install-packages /usr/local/bin/
# A stub of libcuda replaces a missing driver while MXNet is imported
RUN mkdir /stubs && ln -s /usr/local/cuda/lib64/stubs/libcuda.so /stubs/libcuda.so.1
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca \
    USE_CUDA=ON HOROVOD_BUILD_CUDA_CC_LIST=60,70,80,86 LD_LIBRARY_PATH=/stubs \
    with-ca install-packages mxnet-cu117==1.9.1

FROM debian-run AS wheel-gpu-packages
COPY --from=wheel-gpu-build /opt/venv /opt/venv
RUN printf '%s\n' /opt/venv/lib/python3*/site-packages/nvidia/*/lib >/etc/ld.so.conf.d/cuda.conf && ldconfig
RUN --mount=type=bind,from=wheel-gpu-build,source=/usr/lib/x86_64-linux-gnu/stubs,target=/stubs \
    --mount=type=bind,source=docker/check-features,target=/usr/local/bin/check-features \
    mkdir /tmp/stub && ln -s /stubs/libcuda.so /tmp/stub/libcuda.so.1 && export LD_LIBRARY_PATH=/tmp/stub \
    && check-features CUDA CUDNN NCCL OPENMP BLAS_OPEN LAPACK MKLDNN OPENCV DIST_KVSTORE \
    && python3 -c 'import horovod.mxnet as hvd; assert hvd.nccl_built() and hvd.gloo_built() and hvd.mpi_built()' \
    && rm -r /tmp/stub
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM wheel-gpu-packages AS wheel-gpu
ARG COMMIT=unknown
ARG VERSION
LABEL org.opencontainers.image.title="mxscale (wheel-gpu)" \
      org.opencontainers.image.description="Training of image classifiers with MXNet's wheel for CUDA 11 and Horovod" \
      org.opencontainers.image.base.name=debian:bookworm-slim org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$COMMIT com.mxscale.build=wheel-gpu
COPY --from=code / /
RUN /mxscale/docker/finish wheel-gpu
ENV MXSCALE_IDENTITY=/mxscale/build.json
WORKDIR /mxscale
ENTRYPOINT ["/mxscale/docker/entrypoint"]
CMD ["python", "train.py"]

# ---------------------------------------------------------------- source

# The unpacked release; `docker buildx build --build-context mxnet-src=DIR` replaces it
FROM debian AS mxnet-release
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends curl >/dev/null
COPY docker/with-ca docker/fetch-mxnet /usr/local/bin/
RUN --mount=type=secret,id=ca with-ca fetch-mxnet /mxnet

FROM scratch AS mxnet-src-download
COPY --from=mxnet-release /mxnet /

FROM scratch AS mxnet-src-local
COPY docker/mxnet-sr[c] /

FROM mxnet-src-${MXNET_SRC} AS mxnet-src

# A build with USE_CUDA=OFF uses --build-arg CUDA_IMAGE=debian:bookworm-slim and the same for CUDA_RUNTIME_IMAGE
FROM ${CUDA_IMAGE} AS source-build
ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends \
    build-essential cmake ninja-build protobuf-compiler libprotobuf-dev libopenblas-dev liblapack-dev liblapacke-dev \
    libopencv-dev libzmq3-dev python3-venv python3-dev libopenmpi-dev openmpi-bin ccache >/dev/null \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
COPY docker/build-mxnet docker/check-features /usr/local/bin/
ARG USE_CUDA=ON
ARG MXNET_CUDA_ARCH
ARG JOBS
COPY --from=mxnet-src / /src
# MXNet's CMake uses ccache, so a changed recipe or an interrupted build compiles only what is new
ENV CCACHE_DIR=/ccache CCACHE_MAXSIZE=10G
RUN --mount=type=cache,target=/ccache build-mxnet /src /build
COPY docker/with-ca docker/install-packages docker/install-mxnet /usr/local/bin/
COPY requirements/rank.lock requirements/horovod.lock requirements/install-horovod /requirements/
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca \
    install-mxnet /src /build /opt/venv \
    # A stub of libcuda replaces a missing driver while MXNet is imported
    && LD_LIBRARY_PATH=/build/stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} with-ca install-packages none

FROM ${CUDA_RUNTIME_IMAGE} AS source-packages
ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8 PATH=/opt/venv/bin:$PATH
COPY --from=source-build /build/runtime-packages /tmp/
RUN apt-get update -qq && xargs apt-get install -y -qq --no-install-recommends </tmp/runtime-packages >/dev/null \
    && apt-get install -y -qq --no-install-recommends \
    python3 ca-certificates openmpi-bin openssh-client openssh-server >/dev/null \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /tmp/runtime-packages \
    && { id mxscale >/dev/null 2>&1 || useradd --create-home mxscale; }
COPY --from=source-build /opt/venv /opt/venv
RUN --mount=type=bind,from=source-build,source=/build,target=/build \
    --mount=type=bind,source=docker/check-features,target=/usr/local/bin/check-features \
    export LD_LIBRARY_PATH=/build/stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    && xargs check-features </build/features \
    && python3 -c 'import horovod.mxnet as hvd; assert hvd.nccl_built() or "NCCL" not in open("/build/features").read()'

FROM source-packages AS source
ARG CUDA_RUNTIME_IMAGE
ARG COMMIT=unknown
ARG VERSION
LABEL org.opencontainers.image.title="mxscale (source)" \
      org.opencontainers.image.description="Training of image classifiers with MXNet 1.9.1 from source and Horovod" \
      org.opencontainers.image.base.name=${CUDA_RUNTIME_IMAGE} org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$COMMIT com.mxscale.build=source
COPY --from=code / /
RUN /mxscale/docker/finish source
ENV MXSCALE_IDENTITY=/mxscale/build.json
WORKDIR /mxscale
ENTRYPOINT ["/mxscale/docker/entrypoint"]
CMD ["python", "train.py"]

# ---------------------------------------------------------------- cu90

# What CUDA9_IMAGE contains, without code: Horovod can be compiled against mxnet-cu90, and both imported, on machines that
# do not reach NVIDIA's registry. --build-arg CUDA9_IMAGE=cuda9-stubs; the image cannot train.
FROM cuda-debian AS cuda9-stubs
COPY requirements/flavours/mxnet-cu90==1.5.0.lock /requirements/
COPY docker/stub-cuda9 /usr/local/bin/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca \
    with-ca pip install -qq --no-deps --require-hashes --target /tmp/wheel -r /requirements/mxnet-cu90==1.5.0.lock \
    && stub-cuda9 /tmp/wheel/mxnet/libmxnet.so /usr/local/cuda/lib64 && rm -rf /tmp/wheel \
    && echo "Libraries without code, made by stub-cuda9" >/usr/local/cuda/LICENSE

FROM ${CUDA9_IMAGE} AS cuda9
# The libraries that mxnet-cu90 links to, in one folder
COPY docker/collect-cuda9 /usr/local/bin/
RUN collect-cuda9 /cuda9

# Horovod compiles a kernel with the compiler of CUDA 11: that of 9.0 supports no g++ that is still available
FROM cuda-debian AS cu90-build
COPY requirements/rank.lock requirements/horovod.lock requirements/install-horovod /requirements/
COPY requirements/flavours /requirements/flavours
COPY docker/install-packages /usr/local/bin/
COPY --from=cuda9 /cuda9 /usr/local/cuda9
RUN ldconfig /usr/local/cuda9
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca \
    CC=gcc-11 CXX=g++-11 HOROVOD_CUDA_HOME=/usr/local/cuda HOROVOD_BUILD_CUDA_CC_LIST=60,70 \
    LD_LIBRARY_PATH=/usr/local/cuda9:/usr/local/cuda9/stubs with-ca install-packages mxnet-cu90==1.5.0

FROM debian-run AS cu90-packages
COPY --from=cu90-build /opt/venv /opt/venv
COPY --from=cuda9 /cuda9 /usr/local/cuda9
RUN rm -rf /usr/local/cuda9/stubs && echo /usr/local/cuda9 >/etc/ld.so.conf.d/cuda9.conf && ldconfig
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,from=cuda9,source=/cuda9/stubs,target=/stubs LD_LIBRARY_PATH=/stubs python3 -c 'import horovod.mxnet'

FROM cu90-packages AS cu90
ARG COMMIT=unknown
ARG VERSION
LABEL org.opencontainers.image.title="mxscale (cu90)" \
      org.opencontainers.image.description="Training of image classifiers with mxnet-cu90 and Horovod" \
      org.opencontainers.image.base.name=debian:bookworm-slim org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$COMMIT com.mxscale.build=cu90
COPY --from=code / /
RUN /mxscale/docker/finish cu90
ENV MXSCALE_IDENTITY=/mxscale/build.json
WORKDIR /mxscale
ENTRYPOINT ["/mxscale/docker/entrypoint"]
CMD ["python", "train.py"]

# ---------------------------------------------------------------- cpu

FROM cpu-packages AS cpu
ARG COMMIT=unknown
ARG VERSION
LABEL org.opencontainers.image.title="mxscale (cpu)" \
      org.opencontainers.image.description="Training of image classifiers with the MXNet wheel and Horovod" \
      org.opencontainers.image.base.name=debian:bookworm-slim org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$COMMIT com.mxscale.build=wheel
COPY --from=code / /
RUN /mxscale/docker/finish wheel
ENV MXSCALE_IDENTITY=/mxscale/build.json
WORKDIR /mxscale
ENTRYPOINT ["/mxscale/docker/entrypoint"]
CMD ["python", "train.py"]

# ---------------------------------------------------------------- test

FROM ${BUILD}-build AS test-build
COPY requirements/run.lock requirements/dev.lock /requirements/
COPY docker/install-tests /usr/local/bin/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca with-ca install-tests

FROM ${BUILD} AS test
COPY --from=test-build /opt/venv /opt/venv
COPY *.md CITATION.cff Makefile Dockerfile docker-compose.yml compose.gpu.yml /mxscale/
COPY bench /mxscale/bench
COPY docs /mxscale/docs
COPY requirements /mxscale/requirements
# Without mxnet-src
COPY docker/[^m]* docker/make-keys /mxscale/docker/
COPY tests /mxscale/tests
COPY tools /mxscale/tools
CMD ["python", "-m", "pytest", "-n", "auto", "-m", "not slow and not docker"]

# ---------------------------------------------------------------- the last stage is built by default

FROM cpu AS default
