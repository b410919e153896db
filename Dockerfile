# syntax=docker/dockerfile:1
# Two images from one file, both filled by the same scripts as a checkout:
#   docker build --target cpu -t metronome:cpu .
#   docker build --target gpu -t metronome:gpu .
# Both run as user 10001 and need nothing writable but /tmp (docker/compose.yaml).

FROM python:3.11-slim-bookworm AS base
# libnuma: vLLM's CPU kernels link it. gcc: Triton and torch.compile build small launchers at run time.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin metronome
# The weights lie in the image below XDG_CACHE_HOME; what is written while serving goes below /tmp.
ENV PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    XDG_CACHE_HOME=/var/cache \
    VLLM_CACHE_ROOT=/tmp/vllm \
    HF_HOME=/tmp/huggingface \
    PATH=/app/.venv/bin:$PATH
WORKDIR /app

# The packages come first: this layer is built again only when a lock changes.
FROM base AS cpu-packages
COPY pyproject.toml ./
COPY scripts scripts
COPY requirements requirements
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    HOME=/root XDG_CACHE_HOME=/root/.cache scripts/setup.sh --runtime --packages-only

FROM base AS gpu-packages
COPY pyproject.toml ./
COPY scripts scripts
COPY requirements requirements
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    HOME=/root XDG_CACHE_HOME=/root/.cache scripts/setup.sh --gpu --runtime --packages-only

# The embedded weights, world-readable, so that a container starts without a network.
FROM cpu-packages AS cpu-built
COPY . .
RUN scripts/setup.sh --runtime && metronome models fetch

FROM gpu-packages AS gpu-built
COPY . .
RUN scripts/setup.sh --gpu --runtime && metronome models fetch

FROM base AS service
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
ENTRYPOINT ["metronome"]

FROM service AS gpu
COPY --from=gpu-built /app /app
COPY --from=gpu-built /var/cache/metronome /var/cache/metronome
CMD ["serve", "--config", "configs/gpu-qwen2.5.toml", "--host", "0.0.0.0"]

# Last, so that a build without --target makes it.
FROM service AS cpu
COPY --from=cpu-built /app /app
COPY --from=cpu-built /var/cache/metronome /var/cache/metronome
CMD ["serve", "--host", "0.0.0.0"]
