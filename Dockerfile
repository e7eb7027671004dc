# The control plane: API, scheduler, beat and migrations in one image; the command selects one.
#
#   docker build -t trainmaster/control:latest .
#   docker run --rm trainmaster/control:latest help
#
# Where builds reach the package indexes over the host's network only, add `--network host`.
ARG PYTHON_IMAGE=python:3.11.13-slim

FROM ${PYTHON_IMAGE} AS build
# Dependencies first and by themselves: they change less often than the code.
RUN python3 -m venv --without-pip /opt/venv
COPY requirements/platform.lock requirements/tensorboard.lock requirements/telemetry.lock /src/requirements/
RUN python3 -m pip --python /opt/venv/bin/python install --no-cache-dir --only-binary :all: --require-hashes --no-deps \
       -r /src/requirements/platform.lock -r /src/requirements/tensorboard.lock -r /src/requirements/telemetry.lock \
    && find /opt/venv -depth -type d \( -name tests -o -name test \) -exec rm -rf {} +
COPY . /src
RUN mkdir -p /opt/trainmaster/sdk /opt/trainmaster/worker_images/runtime \
    && cd /src \
    && cp -r api core scheduler executors migrations LICENSE /opt/trainmaster/ \
    && cp -r sdk/trainmaster /opt/trainmaster/sdk/ \
    && cp -r worker_images/runtime/trainmaster_runtime /opt/trainmaster/worker_images/runtime/ \
    && install -m 0755 deploy/images/control.sh /opt/trainmaster/control \
    && find /opt/trainmaster -name __pycache__ -prune -exec rm -rf {} + \
    && python3 -m compileall -q /opt/trainmaster \
    && ln -s /opt/trainmaster/control /opt/venv/bin/trainmaster

FROM ${PYTHON_IMAGE} AS web
COPY web /src/web
COPY api/openapi.json /src/api/openapi.json
# 3: no npm registry in reach. The image then says at `/` what it lacks, and everything else works.
RUN mkdir -p /src/web/dist && { python3 /src/web/build.py || [ $? -eq 3 ]; }

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Trainmaster control plane" \
      org.opencontainers.image.description="API, scheduler, beat and migrations of Trainmaster" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# 1000 is also the default user of jobs: what one of them writes, the other can read and delete.
RUN groupadd --gid 1000 trainmaster \
    && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /var/lib/trainmaster \
       --shell /usr/sbin/nologin trainmaster \
    && install -d -o trainmaster -g trainmaster -m 0700 /var/lib/trainmaster
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/trainmaster /opt/trainmaster
COPY --from=web /src/web/dist /opt/trainmaster/web/dist
# Our folders stand before site-packages: a stranger's package called `scheduler` or `core` never wins. Safe path keeps
# the working directory out as well.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/trainmaster:/opt/trainmaster/sdk:/opt/trainmaster/worker_images/runtime \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TRAINMASTER_REVISION=${REVISION} \
    TRAINMASTER_HOME=/var/lib/trainmaster \
    TRAINMASTER_HOST=0.0.0.0
USER 1000:1000
WORKDIR /var/lib/trainmaster
EXPOSE 8765
ENTRYPOINT ["/opt/trainmaster/control"]
CMD ["help"]
