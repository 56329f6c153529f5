# Redis for `make compose-test` where its own image cannot be had: Debian's server on the base image of the others.
# hadolint global ignore=DL3006,DL3008
ARG BASE_IMAGE=python:3.12.14-slim-bookworm
FROM ${BASE_IMAGE}
ARG APT_MIRROR=
RUN if [ -n "$APT_MIRROR" ]; then \
        . /etc/os-release; rm -f /etc/apt/sources.list.d/*; \
        echo "deb $APT_MIRROR $VERSION_CODENAME main" > /etc/apt/sources.list; \
    fi \
    && apt-get update \
    && apt-get install --yes --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && install --directory --owner=999 --group=999 /data
USER 999:999
VOLUME /data
WORKDIR /data
CMD ["redis-server"]
