# A static binary on an empty image: no shell, no package manager, not root. For several
# architectures: docker buildx build --platform=linux/amd64,linux/arm64
# The image of the compiler goes by its tag, which its makers move for fixes, and its packages by their names: the digest of
# the one that built a release is in the provenance of that.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev make ca-certificates
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
# The lock file is that of a workspace: Cargo reads the manifests of all its packages.
COPY bed/Cargo.toml bed/
COPY image/Cargo.toml image/
COPY simulation/Cargo.toml simulation/
COPY src src
# Kernels for arm64 have pages of 4, 16 or 64 KiB: the allocator has to be built for the largest.
# The commit that `plimsoll --version` names. The context has no .git.
ARG REVISION
RUN if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi; \
    PLIMSOLL_REVISION="$REVISION" cargo build --profile dist --locked --package plimsoll

# What `make image` puts into the image, too: deploy/image.json has it all.
FROM scratch
LABEL org.opencontainers.image.title="Plimsoll" \
      org.opencontainers.image.description="Prometheus-native custom metrics adapter and autoscaler for Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/target/dist/plimsoll /plimsoll
USER 65532:65532
EXPOSE 6443
# The command is the manifests': they call `serve`. Without one it prints its help.
ENTRYPOINT ["/plimsoll"]
