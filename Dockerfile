# The images of Orcastream: `gateway` (no torch), `worker-cpu`, `worker-cuda`.
#
#   docker build --target gateway --tag orcastream-gateway .
#
# Nothing here needs BuildKit. The classic builder builds every stage above the target: hence the order.
# docs/compose.md explains the arguments; those for pip and apt may be empty.
#
# hadolint cannot see that the bases, which are arguments, include their versions:
# hadolint global ignore=DL3006

ARG BASE_IMAGE=python:3.12.14-slim-bookworm
ARG CUDA_BASE_IMAGE=python:3.12.14-slim-bookworm


# Lists of packages to install. They, and so the layers below, change less often than the files they are generated from.
FROM ${BASE_IMAGE} AS requirements
WORKDIR /lists
COPY pyproject.toml constraints.txt deploy/requirements.py /source/
RUN python3 /source/requirements.py gateway otlp-grpc > gateway.txt \
    && python3 /source/requirements.py worker otlp-grpc > worker.txt \
    && grep '^torch==' /source/constraints.txt > torch.txt \
    && grep '^setuptools==' /source/constraints.txt > setuptools.txt \
    && cp /source/constraints.txt .


FROM ${BASE_IMAGE} AS python
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_PROGRESS_BAR=off \
    PIP_ROOT_USER_ACTION=ignore


# The project itself. Bytecode is validated by the source's hash, so that the same code always gives the same layer.
FROM python AS code
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_TRUSTED_HOST=
ARG PIP_FIND_LINKS=
COPY --from=requirements /lists/setuptools.txt /lists/
RUN pip install --no-cache-dir --requirement /lists/setuptools.txt
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY orcastream orcastream
COPY schemas schemas
COPY engine engine
COPY text text
COPY broker broker
COPY telemetry telemetry
COPY worker worker
COPY gateway gateway
COPY client client
COPY cli cli
COPY demo demo
COPY bench bench
RUN ORCASTREAM_NATIVE=0 pip install --no-cache-dir --no-deps --no-build-isolation --no-compile --target /opt/code . \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/code


FROM python AS gateway-packages
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_TRUSTED_HOST=
ARG PIP_FIND_LINKS=
COPY --from=requirements /lists/gateway.txt /lists/constraints.txt /lists/
RUN pip install --no-cache-dir --requirement /lists/gateway.txt --constraint /lists/constraints.txt \
    && pip uninstall --yes pip


FROM ${BASE_IMAGE} AS runtime
ARG APT_MIRROR=
COPY deploy/apt.sh deploy/prepare.sh deploy/health.py /opt/
RUN sh /opt/prepare.sh
ENV PATH=/opt/venv/bin:/opt/code/bin:$PATH \
    PYTHONPATH=/opt/code \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HOME=/models
USER 10001:10001
WORKDIR /models
ENTRYPOINT ["tini", "--", "orcastream"]
LABEL org.opencontainers.image.title="Orcastream" \
      org.opencontainers.image.licenses="Apache-2.0"


FROM runtime AS gateway
COPY --from=gateway-packages /opt/venv /opt/venv
COPY --from=code /opt/code /opt/code
ENV ORCASTREAM_HOST=0.0.0.0 \
    ORCASTREAM_PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python3", "-I", "/opt/health.py", "ORCASTREAM_PORT", "live"]
CMD ["gateway"]


# The CPU operators. The compiler stays in this stage; torch ships the OpenMP runtime that they need.
FROM ${BASE_IMAGE} AS operators
ARG APT_MIRROR=
COPY deploy/apt.sh /opt/
RUN command -v c++ > /dev/null || sh /opt/apt.sh g++
WORKDIR /source
COPY orcastream orcastream
COPY engine/__init__.py engine/
COPY engine/native engine/native
RUN python3 -m orcastream.engine.native.build --into /tmp/built \
    && install --directory /opt/operators \
    && install --mode=644 /tmp/built/*.so /opt/operators/


FROM python AS worker-cpu-packages
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_TRUSTED_HOST=
ARG PIP_FIND_LINKS=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=requirements /lists/torch.txt /lists/
RUN pip install --no-cache-dir --no-deps --index-url "${TORCH_INDEX}" --requirement /lists/torch.txt
COPY --from=requirements /lists/worker.txt /lists/constraints.txt /lists/
RUN pip install --no-cache-dir --requirement /lists/worker.txt --constraint /lists/constraints.txt \
    && pip uninstall --yes pip


FROM runtime AS worker-cpu
COPY --from=worker-cpu-packages /opt/venv /opt/venv
COPY --from=code /opt/code /opt/code
COPY --from=operators /opt/operators /opt/code/orcastream/engine/native/built
ENV ORCASTREAM_ADMIN_HOST=0.0.0.0 \
    ORCASTREAM_ADMIN_PORT=8001
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["python3", "-I", "/opt/health.py", "ORCASTREAM_ADMIN_PORT", "live"]
CMD ["worker"]


# torch's default wheels include CUDA; only the driver comes from the host.
FROM ${CUDA_BASE_IMAGE} AS worker-cuda-packages
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_TRUSTED_HOST=
ARG PIP_FIND_LINKS=
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY --from=requirements /lists/torch.txt /lists/
RUN pip install --no-cache-dir --requirement /lists/torch.txt
COPY --from=requirements /lists/worker.txt /lists/constraints.txt /lists/
RUN pip install --no-cache-dir --requirement /lists/worker.txt --constraint /lists/constraints.txt \
    && pip uninstall --yes pip


# Triton compiles a module for the driver before the first kernel, which requires a C compiler and Python's headers.
FROM ${CUDA_BASE_IMAGE} AS worker-cuda
ARG APT_MIRROR=
COPY deploy/apt.sh deploy/prepare.sh deploy/health.py /opt/
RUN sh /opt/prepare.sh \
    && { command -v gcc > /dev/null || sh /opt/apt.sh gcc libc6-dev; }
COPY --from=worker-cuda-packages /opt/venv /opt/venv
COPY --from=code /opt/code /opt/code
COPY --from=operators /opt/operators /opt/code/orcastream/engine/native/built
ENV PATH=/opt/venv/bin:/opt/code/bin:$PATH \
    PYTHONPATH=/opt/code \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HOME=/models \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    ORCASTREAM_ADMIN_HOST=0.0.0.0 \
    ORCASTREAM_ADMIN_PORT=8001
USER 10001:10001
WORKDIR /models
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["python3", "-I", "/opt/health.py", "ORCASTREAM_ADMIN_PORT", "live"]
ENTRYPOINT ["tini", "--", "orcastream"]
CMD ["worker"]
LABEL org.opencontainers.image.title="Orcastream" \
      org.opencontainers.image.licenses="Apache-2.0"
