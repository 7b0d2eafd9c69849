# The gates of this project. `make test` is what CI runs; it changes no source file.

CARGO ?= cargo
BUILT := $(or $(CARGO_TARGET_DIR),target)/release
# One end-to-end test: make e2e ARGS=kill_a_secondary
ARGS ?=

.PHONY: help deps fmt fmt-check lint unit e2e test build demo demo-down

help:
	@echo "make test       format check, lints, unit and model tests, end-to-end tests (root)"
	@echo "make unit       unit and model tests only"
	@echo "make e2e        end-to-end tests only; ARGS=name picks one"
	@echo "make fmt        format the sources"
	@echo "make lint       clippy with warnings as errors"
	@echo "make demo       a database on three replicas survives the loss of its primary (root)"
	@echo "make demo-down  end the demo's cluster"
	@echo "make deps       install what the above need"

deps:
	@scripts/deps.sh

fmt:
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all -- --check

lint:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit:
	$(CARGO) test --workspace --locked --exclude mainstay-tests
	$(CARGO) test --locked -p mainstay-tests --lib --bins --test dependency_law

# The lab's nodes run the binary that this builds, with debug assertions on.
e2e: deps
	$(CARGO) build --locked -p mainstay -p mainstay-tests --bins
	$(CARGO) test --locked -p mainstay-tests --test e2e -- $(ARGS)

# Each step is a make of its own so that they keep their order under -j.
test: deps
	@$(MAKE) --no-print-directory fmt-check
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory e2e

build: deps
	$(CARGO) build --locked --release -p mainstay -p mainstay-tests --bins

demo: build
	@$(BUILT)/demo

demo-down:
	@test -x $(BUILT)/demo || { echo "there is no built demo to end: make demo" >&2; exit 1; }
	@$(BUILT)/demo --down
