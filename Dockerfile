# The service in an image: docker build -t stream-ocpdl:0.1.0 .
# tests/test_image.py runs the RUN lines of the first stage, and the service as the second one says.
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
COPY requirements/build.lock requirements/run.lock requirements/
# Wheels alone, each with its hash: nothing is compiled here, and nothing that compiles is needed.
RUN python -m venv --without-pip /opt/stream-ocpdl \
 && pip --python /opt/stream-ocpdl/bin/python install --no-cache-dir --no-compile --disable-pip-version-check \
      --only-binary :all: --require-hashes -r requirements/run.lock
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check \
      --only-binary :all: --require-hashes -r requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY stream_ocpdl stream_ocpdl
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --disable-pip-version-check --wheel-dir /dist . \
 && pip --python /opt/stream-ocpdl/bin/python install --no-cache-dir --no-compile --disable-pip-version-check \
      --no-index --no-deps /dist/*.whl \
 && /opt/stream-ocpdl/bin/python -m compileall -q -j 0 /opt/stream-ocpdl/lib

FROM python:${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="stream-ocpdl" \
      org.opencontainers.image.description="Learns an online nonnegative CP-dictionary of the tensors that stream through Kafka." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11.14-slim-bookworm"
# A number, not a name, is what Kubernetes can see not to be root. It owns the two places that are written, and no other.
RUN groupadd --gid 10001 ocpdl \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin ocpdl \
 && install -d -o 10001 -g 10001 /var/cache/stream-ocpdl /var/lib/stream-ocpdl \
 && install -d /etc/stream-ocpdl
COPY --from=build /opt/stream-ocpdl /opt/stream-ocpdl
ENV PATH=/opt/stream-ocpdl/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/stream-ocpdl \
    OCPDL_HTTP__HOST=0.0.0.0
USER 10001:10001
WORKDIR /var/lib/stream-ocpdl
# Compiled kernels, and checkpoints where they go to a directory. The root may be read-only.
VOLUME ["/var/cache/stream-ocpdl", "/var/lib/stream-ocpdl"]
EXPOSE 9464
# It finishes its step, commits, and leaves the group. As the first process of a container, too: stream_ocpdl/interrupts.py.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('OCPDL_HTTP__PORT', '9464') + '/live', timeout=5)"]
ENTRYPOINT ["stream-ocpdl"]
CMD ["run", "--config", "/etc/stream-ocpdl/service.yaml"]
