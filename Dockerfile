# The lab on a CPU: docker build -t rl-lab .
FROM python:3.11-slim-bookworm

# Headless OpenGL for MuJoCo's pictures, a compiler for torch.compile, git for the run's record of its code.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git libegl1 libgl1 libglib2.0-0 libosmesa6 rsync \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /lab
ARG EXTRAS=mujoco,atari,box2d,minigrid,video,plot,export,tune,launch,human,lerobot-data
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 MUJOCO_GL=egl

# torch for CPUs, in a layer that stays when the code changes.
COPY constraints.txt ./
RUN pip install -c constraints.txt --index-url https://download.pytorch.org/whl/cpu torch==2.13.0

COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install -c constraints.txt ".[${EXTRAS}]"
COPY examples ./examples

# Runs lie on a volume, and files in it belong to whoever started the container (docker run --user).
RUN mkdir -p experiments launches && chmod 777 experiments launches
VOLUME /lab/experiments
ENV HOME=/tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["lab"]
CMD ["--help"]
