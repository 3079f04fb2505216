# What a person or CI runs. `make help` lists it.
CARGO ?= cargo
export RUST_BACKTRACE ?= 0
# Tests run on loopback, also where a proxy leads to what is downloaded.
comma := ,
export NO_PROXY := localhost,127.0.0.1$(if $(NO_PROXY)$(no_proxy),$(comma)$(or $(NO_PROXY),$(no_proxy)))

.PHONY: help build parts all-parts test test-all test-node test-node-short libc old-image lint unit conformance e2e thanos oldest screenshots reproduce duel query-costs bench bench-decide bench-programs bench-smoke bench-short bench-large bench-growth bench-mixed bench-api bench-serve \
	bench-outage bench-fairness bench-reaction bench-backtest soak mutations mutations-apply simulate simulate-fixed demo demo-stop docs fuzz backtests generate workflows static image release sbom release-sboms licenses advisories clean

help: ## List what there is
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

build: ## Build the release binary
	$(CARGO) build --release --locked --package plimsoll

parts: ## Build the real parts that tests and the demo run on
	@bed/build >/dev/null

all-parts: ## Build those that only some tests need, too
	@bed/build all >/dev/null

test: ## Everything CI runs; how long each part took
	@tests/timed $(PARTS)

test-all: ## That, and what takes longer: Thanos, the oldest Kubernetes, all tests on a node, whether the known faults still apply, the benchmark in small, what the ledger adds to a decision, MINUTES=5 of soak, SECONDS=60 of fuzzing each target
	@NODE=$(or $(NODE),optional) MINUTES=$(or $(MINUTES),5) SEEDS=$(or $(SEEDS),8) tests/timed $(filter-out test-node-short,$(PARTS)) thanos oldest test-node mutations-apply bench-short bench-decide soak fuzz

PARTS := lint licenses unit conformance simulate-fixed all-parts e2e bench-smoke test-node-short

lint: ## Formatting, lints, the links of comments and documents, and the workflows of CI
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@# The lock file of the fuzz targets is its own.
	cd fuzz && $(CARGO) metadata --locked --format-version 1 >/dev/null
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items --quiet
	@docs/links

# All tests are of the whole workspace: the features of dependencies are those of all packages that a command names,
# and others would be other builds.
TEST := $(CARGO) test --locked --workspace

unit: ## Unit tests and the command line
	$(TEST) --exclude plimsoll-bed --lib --bins --test cli --test release --test architecture --test repeat --test replica --test command

conformance: ## Every decision against the real controller's, and the properties of all decisions
	$(TEST) --test conformance --test properties --test queries -- --nocapture

# They wait more than they compute: four times the cores of CI.
E2E_THREADS ?= 8
# Tests that measure times run afterwards, apart from the others.
ALONE := duel::plimsoll_decides faults::one_tenants_slow_queries page::ten_thousand reproduced::

# Cargo builds the binary of Plimsoll with the tests of its package, such as `cli`.
E2E_BUILD := $(TEST) --quiet --test cli --test e2e --no-run
E2E_RUN := $(TEST) --test e2e
E2E := $(E2E_BUILD) && $(E2E_RUN)

e2e: all-parts ## End-to-end tests on the real parts
	$(E2E) -- --test-threads=$(E2E_THREADS) $(addprefix --skip ,$(ALONE))
	$(E2E) -- --test-threads=2 $(ALONE)

thanos: all-parts ## A Thanos as a backend, whose build takes longer than its tests
	@bed/build thanos >/dev/null
	@$(E2E) -- --ignored thanos

oldest: parts ## The oldest Kubernetes that is claimed: Plimsoll is installed on it, and decides
	@$(E2E) -- --ignored oldest:: --nocapture

# Where a node can run, they have the images built, and all else that they need.
NODE_TESTS = PROFILE=$(PROFILE) $(TEST) --test node --
NEEDS_ROOT = @[ "$$(id -u)" = 0 ] || { echo 'it needs root: sudo -E env "PATH=$$PATH" make ...' >&2; exit 1; }

test-node-short: PROFILE = demo
test-node-short: ## Plimsoll's image in pods of a real node: what takes a minute each at most. It needs root, cgroups and namespaces; NODE=require fails where there are none
	@$(NODE_TESTS) --nocapture

test-node: PROFILE = demo
test-node: ## All tests on a real node: half an hour; NAME=TEST for some, NODE_LOGS=DIR keeps the logs, PROFILE=dist is optimized as what is released. It fails where no node can run
	$(if $(filter require,$(or $(NODE),require)),$(NEEDS_ROOT))
	@NODE=$(or $(NODE),require) $(NODE_TESTS) --include-ignored --nocapture $(NAME)

reproduce: all-parts ## MINUTES=20 of kube-controller-manager's own HPA under a load, backtested from Prometheus
	@$(E2E_BUILD) && REPRODUCE=$(or $(MINUTES),20) $(E2E_RUN) reproduced:: -- --nocapture

screenshots: all-parts ## The pictures of the pages in docs/images
	@$(E2E_BUILD) && SCREENSHOTS=1 $(E2E_RUN) page::the_demos_story -- --nocapture report:: page_change::

backtests: ## The charts and the table of traces in docs/backtest.md, with the program as it is
	@$(PROGRAM) plimsoll
	@docs/images/backtests target/release/plimsoll

duel: all-parts ## Plimsoll and kube-controller-manager side by side under the same load
	@$(E2E) duel -- --nocapture

# The product and a program of the bed, of the same build: sooner built than what is released.
PROGRAM := $(CARGO) build --locked --release --bin plimsoll --bin

# Benchmarks measure the product as it is released; PROFILE=release is built sooner.
BENCH = $(dir $(STATIC))bench

bench-programs: static
	@$(STATIC_BUILD) --package plimsoll-bed --bin bench --bin static-answer

bench: all-parts bench-programs ## Plimsoll and its peers side by side, on 1,000 autoscalers; writes target/bench/peers.json
	@$(BENCH)

# Counts instructions.
VALGRIND := command -v valgrind >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends valgrind; } >&2 || \
	{ echo "install the package valgrind" >&2; exit 1; }

bench-decide: ## One decision: its time, that it allocates nothing, and what the trace of the ledger adds, in instructions (valgrind); fails above 3 %
	@$(VALGRIND)
	$(CARGO) bench --locked --bench decide
	@tests/decide-cost

bench-serve: ## One GET of ten pods by selector, beside a static answer of the same bytes: its time, allocations and instructions (valgrind)
	@$(VALGRIND)
	$(CARGO) bench --locked --bench serve
	@tests/serve-cost

bench-short: all-parts ## The benchmark in small, to see that it works
	@$(PROGRAM) bench
	@target/release/bench --short

# Cargo builds it with the end-to-end tests: CI has it.
bench-smoke: parts ## What a small fleet costs in counts (queries, requests, bytes, allocations, instructions), against tests/bench-smoke.yaml; UPDATE=1 writes that
	@$(VALGRIND)
	@$(E2E_BUILD) && $(TARGET)/debug/bench --smoke

bench-large: parts bench-programs ## Plimsoll alone, on 10,000 autoscalers and 100,000 pods: start, memory, two replicas, failover; LARGE="3000 --decision-ledger-bytes=0" for fewer, and with flags
	@$(BENCH) --large $(LARGE)

bench-growth: all-parts bench-programs ## How costs grow: one size after the other, as docs/growth.md shows them; SIZE=metrics for one of them
	@$(BENCH) --growth $(if $(SIZE),"$(SIZE)")

bench-mixed: all-parts bench-programs ## A fleet with 200 metrics: Plimsoll, prometheus-adapter and KEDA side by side; SEED=7 for a second mix that is not drawn anew, AUTOSCALERS=1 for Plimsoll with Autoscalers, too; writes target/bench/mixed.json
	@bed/build keda keda-adapter >/dev/null
	@$(BENCH) --mixed $(if $(AUTOSCALERS),autoscalers) $(SEED)

bench-api: all-parts bench-programs ## The speed of the API: Plimsoll, prometheus-adapter tuned, and a static answer of the same bytes, five times in turn
	@$(BENCH) --api

bench-outage: parts bench-programs ## Prometheus away for 10 minutes and kube-apiserver for 2, under 10,000 autoscalers; OUTAGE="1000 60 30"
	@$(BENCH) --outage $(OUTAGE)

bench-fairness: parts bench-programs ## What one tenant costs 1,000 autoscalers of others; FAIRNESS=30 for 30 s each
	@$(BENCH) --fairness $(FAIRNESS)

bench-reaction: all-parts bench-programs ## How long after a step in the load the scale is written, by its parts: the figures of docs/reaction.md; STEPS=16 of each kind. UPDATE_PICTURES=1 writes its chart
	@$(BENCH) --reaction $(STEPS)

bench-backtest: bench-programs ## What a backtest of a week costs, from a file and of 1,000 autoscalers over Prometheus; AUTOSCALERS=50 for fewer. It fails above the bounds that docs/backtest.md has, and writes target/bench/backtest.json
	@$(BENCH) --backtest $(AUTOSCALERS)

query-costs: parts ## What queries cost Prometheus, in CPU time: the figures behind src/promql/cost.rs
	@$(E2E_BUILD) && QUERY_COSTS=1 $(E2E_RUN) a_batched_query_has_the_same_result -- --nocapture

soak: parts ## A long run with churn and faults; MINUTES=10 (2 at least, or a rule has nothing to look at), SEED= draws the same random numbers again
	@$(PROGRAM) soak
	@target/release/soak $(or $(MINUTES),10) $(SEED)

mutations: ## Put each known fault back, to see that the simulation catches it: an hour on two cores; NAMES="M08 C02"
	@tests/mutate $(NAMES)

mutations-apply: ## Whether each of them still applies and compiles
	@tests/mutate --check $(NAMES)

# With a profile of Cargo.toml.
SIMULATE = $(CARGO) build --locked --quiet --profile $(1) --package plimsoll-simulation --bin simulate && target/$(1)/simulate

simulate: ## Simulated days under random faults: SEEDS=10 DAYS=30 (25 minutes, and 5 to build), FAULTS=1 an hour, FIRST=1, JOBS=1; SEED=N repeats one (with its FAULTS), WITHOUT=3,8 leaves some of them out, LOG=plimsoll=debug shows its log. Error 1: a violation; 3: none, but too little was looked at
	@$(call SIMULATE,simulate-long) $(if $(LOG),--log $(LOG),--shrink) --days $(or $(DAYS),30) --faults $(or $(FAULTS),1) --jobs $(or $(JOBS),1) \
		$(if $(WITHOUT),--without $(WITHOUT)) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10) --first $(or $(FIRST),1))

simulate-fixed: ## The seeds of CI: 1 to 4 (SEEDS=8 in test-all), two days each, three faults an hour
	@$(call SIMULATE,simulate) --shrink --days 2 --faults 3 --jobs 2 --seeds $(or $(SEEDS),4)

demo: ## The main job, live; KEEP=1 leaves it all up; NODE=1 has it in pods of a real node, which needs root
ifneq ($(NODE),)
	$(NEEDS_ROOT)
	@echo "Building the node's parts, the demo and Plimsoll's image, which the first time takes 20 to 30 minutes on two cores."
	@bed/build node >/dev/null
	@echo "The parts are there. Building the demo and Plimsoll's image, which the first time takes up to 8 minutes more."
	@$(TEST) --test node --no-run
	@$(MAKE) --no-print-directory --silent image PROFILE=demo
	@# Cargo waits for the program, which takes Ctrl-C and removes the node.
	@trap '' INT; NODE=demo KEEP=$(KEEP) PROFILE=demo $(TEST) --quiet --test node
else
	@bed/build demo >/dev/null
	@target/demo/demo $(if $(KEEP),--keep)
endif

demo-stop: ## End what `make demo KEEP=1` left up
	@target/demo/demo --stop

# libFuzzer's instrumentation, in the words that a stable compiler takes.
FUZZ_FLAGS := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 \
	inline-8bit-counters pc-table trace-compares) --cfg fuzzing -Cdebug-assertions
FUZZ_TARGET := $(shell rustc -vV | sed -n 's/host: //p')
# As long as the schema lets a query be.
MAX_LEN ?= 8192

fuzz: ## Fuzz each target of fuzz/; SECONDS=60 each
	cd fuzz && RUSTFLAGS="$(FUZZ_FLAGS)" $(CARGO) build --release --target $(FUZZ_TARGET)
	cd fuzz && for target in fuzz_targets/*.rs; do \
		name=$$(basename $$target .rs) && mkdir -p corpus/$$name && \
		target/$(FUZZ_TARGET)/release/$$name corpus/$$name $$(ls -d seeds/$$name 2>/dev/null) \
			-max_total_time=$(or $(SECONDS),60) -max_len=$(MAX_LEN) || exit 1; \
	done

generate: ## Write what is made from the code
	$(CARGO) run --locked --quiet --package plimsoll -- crd > deploy/base/crd.yaml.new
	mv deploy/base/crd.yaml.new deploy/base/crd.yaml
	$(CARGO) run --locked --quiet --package plimsoll -- reference > docs/reference.md.new
	mv docs/reference.md.new docs/reference.md
	(printf '# Made by `make generate` from alerts.yaml.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: plimsoll\n  namespace: plimsoll\nspec:\n'; \
		sed 's/^\(.\)/  \1/' deploy/monitoring/alerts.yaml) > deploy/monitoring/prometheusrule.yaml
	cp deploy/base/crd.yaml deploy/monitoring/alerts.yaml deploy/monitoring/dashboard*.json deploy/chart/files/
	deploy/chart-readme > deploy/chart/README.md.new
	mv deploy/chart/README.md.new deploy/chart/README.md

TOOLS := $(CURDIR)/.cache/tools
HOST := $(shell rustc -vV | sed -n 's/host: //p')
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
# `demo` is built sooner, and runs slower.
PROFILE ?= dist
STATIC = $(TARGET)/$(HOST)/$(PROFILE)/plimsoll
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# No path of this machine is in the binary.
REMAP := $(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo $(CURDIR)=/plimsoll $(TARGET)=/target
STATIC_FLAGS = -C target-feature=+crt-static $(addprefix --remap-path-prefix=,$(REMAP))
STATIC_CFLAGS = $(addprefix -ffile-prefix-map=,$(REMAP))
# The commit that the program says it is of: that of a release, so that a commit alone rebuilds nothing else.
REVISION ?=
STATIC_BUILD = PLIMSOLL_REVISION="$(REVISION)" RUSTFLAGS="$(STATIC_FLAGS)" CFLAGS="$(STATIC_CFLAGS)" $(CARGO) build --locked --profile $(PROFILE) --target $(HOST)

DENY := $(TOOLS)/bin/cargo-deny
CYCLONEDX := $(TOOLS)/bin/cargo-cyclonedx
ACTIONLINT := $(TOOLS)/bin/actionlint-1.7.12
MDBOOK := $(TOOLS)/bin/mdbook

$(DENY):
	@# Compiled once and run once on a fresh clone: what counts is the sum.
	$(CARGO) install --quiet --locked --debug --root $(TOOLS) cargo-deny@0.20.2

$(CYCLONEDX):
	$(CARGO) install --quiet --locked --root $(TOOLS) cargo-cyclonedx@0.5.9

$(MDBOOK):
	$(CARGO) install --quiet --locked --root $(TOOLS) --no-default-features --features search mdbook@0.5.4

# Go names the program as its folder.
$(ACTIONLINT):
	@mkdir -p $(@D)
	GOBIN=$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@v$(lastword $(subst -, ,$@))
	@mv $(@D)/actionlint $@

# The pages, those outside of docs/ that they lead to, and the files that both show.
BOOK := $(TARGET)/book
PAGES := README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md Dockerfile LICENSE docs deploy config \
	tests/data/traces/README.md tests/mutations/README.md .github/workflows

docs: $(MDBOOK) ## The documents as a site, target/book/html/index.html; fails at a link that leads nowhere
	@rm -rf $(BOOK) && mkdir -p $(BOOK)/src && cp --parents -r $(PAGES) $(BOOK)/src && cp docs/book.toml docs/site.css $(BOOK)
	@# Its links are relative to docs/; those of the book to the root.
	@sed -E 's,\]\((\.\./)?,](docs/\1,; s,\]\(docs/\.\./,](,' docs/SUMMARY.md > $(BOOK)/src/SUMMARY.md
	@docs/links $(BOOK)/src
	@$(MDBOOK) build $(BOOK)

lint: workflows

workflows: $(ACTIONLINT)
	@# The programs that it finds on one machine and not on another are left out.
	$(ACTIONLINT) -shellcheck= -pyflakes=
	@# And the one that docs/backtest.md has for others.
	sed -n '/^name: backtest$$/,/^```$$/{/^```$$/!p}' docs/backtest.md | $(ACTIONLINT) -shellcheck= -pyflakes= -

# Without jemalloc where a build is to be done soon: its configure script takes longer than any crate.
static: libc
	$(STATIC_BUILD) $(if $(filter demo,$(PROFILE)),--no-default-features) --package plimsoll
	@if ldd $(STATIC) 2>/dev/null | grep -q "=>"; then echo "$(STATIC) is not static"; exit 1; fi

# With most C compilers it comes along, on Debian too.
libc:
	@[ -f "$$($(CC) -print-file-name=libc.a)" ] || { echo "there is no libc.a, of which a static program for Linux is made: \
	install glibc-static (Fedora, RHEL), glibc-devel-static (openSUSE) or libc6-dev (Debian)" >&2; exit 1; }

WRITE_IMAGE := $(CARGO) build --locked --quiet --workspace --bin image && $(TARGET)/debug/image

image: static ## The container image as an archive, target/image/plimsoll.tar, without Docker; PROFILE=demo is built sooner
	@mkdir -p $(TARGET)/image
	@$(WRITE_IMAGE) $(STATIC) plimsoll:$(VERSION) $(TARGET)/image/plimsoll.tar
	@cp $(STATIC) $(TARGET)/image/

# The first chart, and Plimsoll of its commit.
OLD := 0a110bb

# Built as that of now is, so that most dependencies are compiled once.
old-image: ## The image and the chart that the tests upgrade from
	@git cat-file -e $(OLD)^{commit} || { echo "the upgrade begins with commit $(OLD), which is not here: git fetch --unshallow" >&2; exit 1; }
	@mkdir -p $(TARGET)/image && rm -rf $(TARGET)/old && mkdir $(TARGET)/old
	@git archive $(OLD) | tar -x -C $(TARGET)/old
	@printf '\n[workspace]\n[profile.demo]\ninherits = "release"\nopt-level = 0\nlto = "off"\n' >> $(TARGET)/old/Cargo.toml
	@cd $(TARGET)/old && RUSTFLAGS="-C target-feature=+crt-static $(addprefix --remap-path-prefix=,$(REMAP))" CFLAGS="$(addprefix -ffile-prefix-map=,$(REMAP))" \
		CARGO_TARGET_DIR=$(TARGET) $(CARGO) build --locked --quiet --profile demo --target $(HOST)
	@export REVISION=$$(git rev-parse $(OLD)) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct $(OLD)) && \
		$(WRITE_IMAGE) $(TARGET)/$(HOST)/demo/plimsoll plimsoll:old $(TARGET)/image/plimsoll-old.tar

release: REVISION := $(or $(REVISION),$(if $(wildcard .git),$(shell git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null)))
release: static sbom ## A static binary and its SBOM, in target/dist-release
	@cp $(STATIC) target/dist-release/
	@target/dist-release/plimsoll --version && du -h target/dist-release/*

# Into this file, of a build with these flags. Cargo writes one for each member of the workspace; only the product is released.
SBOM = PATH="$(TOOLS)/bin:$$PATH" $(CARGO) cyclonedx --format json --no-build-deps --override-filename $(1).cdx $(2) && \
	rm -f */$(1).cdx.json && mkdir -p target/dist-release && mv $(1).cdx.json target/dist-release/

sbom: $(CYCLONEDX) ## Its SBOM alone
	$(call SBOM,plimsoll,--target $(HOST))

release-sboms: $(CYCLONEDX) ## Those of the archives of a release, as its workflow builds them
	$(call SBOM,plimsoll-linux-amd64,--target x86_64-unknown-linux-musl)
	$(call SBOM,plimsoll-linux-arm64,--target aarch64-unknown-linux-musl)
	$(call SBOM,plimsoll-darwin-amd64,--target x86_64-apple-darwin --no-default-features)
	$(call SBOM,plimsoll-darwin-arm64,--target aarch64-apple-darwin --no-default-features)

licenses: $(DENY) ## Licences and sources of the dependencies
	$(DENY) check licenses bans sources

advisories: $(DENY) ## Known vulnerabilities of the dependencies (fetches the RustSec database)
	$(DENY) check advisories

clean: ## Remove what was built, the real parts too
	rm -rf target .cache
