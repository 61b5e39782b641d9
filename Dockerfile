# One image for every profile: docker build -t gemma4-finetune .   then   docker run --gpus all gemma4-finetune
#
# The base is a plain Python image, not a CUDA one. torch's wheels bring their own CUDA, cuDNN and NCCL, the driver
# comes from the host, and nothing that a run uses compiles at run time (no torch.compile, no Triton kernels), so
# that neither nvcc nor gcc is needed: a CUDA devel base would be several GB more to pull and no faster.
# Any Debian or Ubuntu base works: docker build --build-arg BASE_IMAGE=nvidia/cuda:13.0.1-base-ubuntu24.04 .
ARG BASE_IMAGE=python:3.12-slim-bookworm
FROM ${BASE_IMAGE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Only a base without a Python that will do gets its distribution's.
# hadolint ignore=DL3008
RUN if ! python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'; then \
        apt-get update && \
        apt-get install -y --no-install-recommends ca-certificates python3 python3-venv && \
        rm -rf /var/lib/apt/lists/*; \
    fi

# The home holds every cache, /out the results. With a read-only root file system, mount these two and /tmp.
# (Ubuntu's images have a user 1000 already, hence --non-unique.)
RUN useradd --non-unique --uid 1000 --user-group --create-home finetune && \
    install --directory --owner=finetune --group=finetune /out

WORKDIR /app
ENV PATH=/opt/venv/bin:/usr/local/nvidia/bin:$PATH \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1

# Gigabytes that change only with the lock, ...
COPY pyproject.toml requirements.lock ./
RUN python3 -m venv /opt/venv && \
    python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' | \
    pip install --no-cache-dir --disable-pip-version-check --progress-bar off \
        --constraint requirements.lock --requirement /dev/stdin

# ... and the code, a megabyte, above them. It is compiled here, since a run may not write beside it.
COPY LICENSE entrypoint.py ./
COPY accel_configs accel_configs
COPY finetune finetune
RUN python -m compileall -q --invalidation-mode unchecked-hash finetune

LABEL org.opencontainers.image.title="gemma4-finetune" \
      org.opencontainers.image.description="Fine-tune Gemma 4 on whatever machine this runs on" \
      org.opencontainers.image.licenses="Apache-2.0"

USER 1000:1000
ENV HOME=/home/finetune \
    HF_HOME=/home/finetune/.cache/huggingface \
    FINETUNE_OUTPUT_DIR=/out
ENTRYPOINT ["python", "entrypoint.py"]
