# warprun on CPU:
#   docker build -t warprun .
#   docker run --rm -v "$PWD:/work" warprun env=cartpole n_envs=10000
FROM python:3.12-slim

COPY . /opt/warprun
# Releases of torch with CUDA are gigabytes; this index has those for CPU.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        -c /opt/warprun/constraints.txt "/opt/warprun[gymnasium,plot]"

# Compiled kernels: mount a volume here to keep them.
ENV WARPRUN_CACHE_DIR=/cache
RUN mkdir -m 1777 /cache
WORKDIR /work
ENTRYPOINT ["warprun"]
