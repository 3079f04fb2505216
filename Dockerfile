# A static binary on an empty image: no shell, no package manager, not root.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev make ca-certificates
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY src src
RUN cargo build --profile dist --locked --bin plimsoll

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/target/dist/plimsoll /plimsoll
USER 65532:65532
EXPOSE 6443
ENTRYPOINT ["/plimsoll"]
