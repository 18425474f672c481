# docker build --tag appo .
# docker run --rm --interactive --tty --volume "$PWD/train_dir:/home/appo/train_dir" appo --env=doom_basic
#
# With every environment family: --build-arg REQUIREMENTS=requirements-envs.txt
# torch from another index:      --build-arg TORCH_INDEX=... (one with builds for the CPU alone is a tenth of the size)
# For NVIDIA GPUs:               docker run --gpus all ...
FROM python:3.11-slim AS build

# Compilers for packages that have no wheel for this processor (faster-fifo); they stay behind in this stage.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ \
    && rm -rf /var/lib/apt/lists/*

# Empty: only the default index, whose torch holds CUDA.
ARG TORCH_INDEX=
ARG REQUIREMENTS=requirements.txt
ENV PIP_EXTRA_INDEX_URL=$TORCH_INDEX PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.txt requirements-envs.txt /requirements/
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --requirement /requirements/$REQUIREMENTS

FROM python:3.11-slim

# The wheels bring their libraries along, ViZDoom's engine and OpenCV too; no display and no sound is needed.
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1

WORKDIR /opt/appo
COPY . .
RUN python -m compileall -q algorithms envs utils src

# An experiment lies in train_dir below the working directory: mount a folder there to keep it.
RUN useradd --create-home appo && install --directory --owner=appo --group=appo /home/appo/train_dir
USER appo
WORKDIR /home/appo
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "/opt/appo/train_appo.py"]
CMD ["--help"]
