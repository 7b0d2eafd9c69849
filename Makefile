# The gates of this project. `make test` is what CI runs; it changes no source file.

CARGO ?= cargo
BUILT := $(or $(CARGO_TARGET_DIR),target)/release
DEV := $(or $(CARGO_TARGET_DIR),target)/debug
SOAK := $(or $(CARGO_TARGET_DIR),target)/soak
# One end-to-end test: make e2e ARGS=kill_a_secondary. Options of the benchmark: make bench ARGS="--only fio".
ARGS ?=

# How long the simulator runs.
MINUTES ?= 60

.PHONY: help ui ui-check ui-test ui-lab-test deps fmt fmt-check lint deny advisories unit sim instructions instructions-record e2e vm test build demo demo-down bench \
	bench-vm bench-idle bench-api bench-growth bench-resync bench-scrub bench-catchup bench-snapshots bench-services bench-big bench-floor bench-polling bench-encryption bench-deps bench-down sim-soak sim-bugs sim-crash fuzz

help:
	@echo "make test       format check, lints, unit and model tests, simulator, end-to-end tests (root)"
	@echo "make unit       unit and model tests only"
	@echo "make sim        2,000 seeds of the simulator"
	@echo "make e2e        end-to-end tests only; ARGS=name picks one"
	@echo "make vm         what needs a kernel of its own, in emulated machines; ARGS=name picks one"
	@echo "make deb        build the Debian package; make install for other systems, with PREFIX and DESTDIR"
	@echo "make package-test  install, use, upgrade, remove and purge that package under systemd (root)"
	@echo "make tutorial-test  follow docs/tutorial.md on three machines of namespaces, upgrade them under load, purge (root)"
	@echo "make lab-test   a lab of such machines, with the package in each (root)"
	@echo "make api-test   the API under oasdiff and schemathesis in a lab (root)"
	@echo "make prometheus-test  alert rules and metrics of a lab under promtool (root)"
	@echo "make tls-test   the ports of nodes under openssl, testssl and sslyze (root)"
	@echo "make book       the manual as a site, in target/book; needs mdBook"
	@echo "make ui         build the console into ui/dist, which is checked in; make ui-check says whether it differs"
	@echo "make ui-test    the console in Chromium, against a mock of an agent; ARGS=name picks a test, \"--shots DIR\" takes pictures"
	@echo "make ui-lab-test  the console against three nodes of a lab (root)"
	@echo "make units-test start, stop, kill and refuse units of systemd as processes of services, under systemd (root)"
	@echo "make plain-units-test plain units of systemd that follow a resource (root)"
	@echo "make pacemaker-test the OCF agent under ocf-tester and Debian's Pacemaker, in a lab (root)"
	@echo "make pages-test power cuts of a MariaDB without doublewrite, each followed by a look at every page, in a lab (root); ARGS=\"cuts [mysql]\""
	@echo "make test-long  the tests that are too long for make test"
	@echo "make fmt        format the sources"
	@echo "make lint       clippy with warnings as errors; licences and versions of the crates in use"
	@echo "make advisories known faults of the crates in use; fetches their list from the network"
	@echo "make demo       a database on three replicas survives the loss of its primary (root)"
	@echo "make demo-down  end the demo's cluster"
	@echo "make bench      measure against a plain device and other products (root); ARGS=--help; see bench/README.md"
	@echo "make bench-vm   measure against the kernel's DRBD in an emulated machine; ARGS are those of bench/vm/run.sh"
	@echo "make bench-idle how often an idle node wakes up, and how much memory it takes; ARGS=seconds"
	@echo "make bench-api  what requests, a stream and the history cost an agent with 1,000 resources"
	@echo "make bench-growth what many idle resources cost, and the loss of a node that serves a third of them; ARGS=\"1 10 100\""
	@echo "make bench-resync how fast a replica that was away is copied again, against one stream; ARGS=rounds"
	@echo "make bench-catchup how soon a replica that was away for 30 s is in sync again under load; ARGS=rounds"
	@echo "make bench-snapshots what a snapshot costs who writes, with clones of files and without; ARGS=rounds"
	@echo "make bench-services how long services are away when something dies or moves, and what addresses and the router cost; ARGS=\"--rounds N CASE\""
	@echo "make bench-scrub how fast three replicas are compared, against reading their files; ARGS=rounds"
	@echo "make bench-big  databases ten times as large as their buffer pool, with and without doublewrite (root); ARGS as of make bench"
	@echo "make bench-floor fio and a database on three engines, and on the system calls that they cannot do without; ARGS=\"rounds seconds sysbench-cases fio-cases\""
	@echo "make bench-polling engines that poll while processors are idle beside engines that never do; ARGS=\"rounds seconds fio-cases sysbench-cases\""
	@echo "make bench-encryption engines that encrypt beside engines that do not; ARGS=\"rounds seconds fio-cases sysbench-cases\""
	@echo "make bench-deps install those other products; make bench-down removes what an interrupted run has left"
	@echo "make instructions         count the instructions of fixed work and compare with bench/instructions.txt"
	@echo "make instructions-record  write that file anew"
	@echo "make sim-soak   simulated clusters on all cores for MINUTES=60; appends a row to bench/simulator.md"
	@echo "make sim-crash  every crash of every workload of four operations on one disk; about 20 minutes of one core"
	@echo "make sim-bugs   plant every bug and count in how many seeds it is caught, into bench/simulator.md"
	@echo "make fuzz       coverage-guided fuzzing of the decoders, SECONDS=30 for each; not a part of make test"
	@echo "make deps       install what the above need"

deps:
	@scripts/deps.sh

fmt:
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all -- --check

# The second line is for the end-to-end tests, which `cargo test` alone does not run and which are no target of `--all-targets`.
lint:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --test e2e --locked -- -D warnings
	@$(MAKE) --no-print-directory deny

# Licences, second versions and places of the crates in Cargo.lock, as deny.toml allows them. Without optimisation, because
# to build the tool takes longer than its work. `make advisories` also fetches what is known of faults in them.
CARGO_DENY := cargo-deny@0.20.2
deny:
	@command -v cargo-deny >/dev/null || $(CARGO) install -q --locked --debug --config profile.dev.debug=0 \
		--no-default-features $(CARGO_DENY)
	$(CARGO) deny --locked check licenses bans sources

advisories: deny
	$(CARGO) deny --locked check advisories

# The cores and the simulator are built with planted bugs and marks compiled in, the rest as it is shipped: two builds of
# the cores, one of everything else. Each is always built as one set of packages, because cargo unites the features of the
# packages that are named together: with another set it would build most dependencies again.
CORES := $(addprefix -p mainstay-,types codec replica store host silence control ha history sim spec)
SHIPPED := -p mainstay $(addprefix -p mainstay-,api client cli pool probe trust devices engine agent router bench lab tests)

unit: unit-cores unit-shipped

.PHONY: unit-cores unit-shipped
unit-cores:
	$(CARGO) test --locked $(CORES)

unit-shipped:
	$(CARGO) test --locked $(SHIPPED)

# A fixed budget of seeds, from the first one on.
sim:
	$(CARGO) build --locked $(CORES) --bins
	@$(DEV)/mainstay-sim --seeds 2000 --minutes 5

# Of release code, because that is what is shipped; counted, not timed, so a busy machine does not matter.
COUNTED = $(BUILT)/examples/instructions
COUNT = $(DEV)/instructions $(COUNTED) bench/instructions.txt

instructions: counted
	@$(COUNT)

instructions-record: counted
	@$(COUNT) --record

.PHONY: counted
counted: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	$(CARGO) build --locked --release -p mainstay-host --example instructions

# All tests of what is shipped, built once, and a list of their programs: those that run beside a build must not wait for
# cargo's lock.
TARGET := $(or $(CARGO_TARGET_DIR),target)
TESTS := $(TARGET)/tests.json
.PHONY: tests-built
tests-built: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	$(CARGO) test --locked $(SHIPPED) --no-run
	$(CARGO) test --locked $(SHIPPED) --test '*' --test e2e --no-run --message-format=json-render-diagnostics > $(TESTS)

# The lab's nodes run the `mainstay` that this builds, with debug assertions on. All tests are two groups in two labs, beside
# each other, because most of their time is waiting; a part of them (ARGS) runs alone.
E2E = export TESTS=$(abspath $(TESTS)) && program=$$(scripts/built-test.sh tests e2e) && cd tests && exec $$program
e2e: tests-built
	@$(MAKE) --no-print-directory e2e-run

.PHONY: e2e-run e2e-cluster e2e-troubles
e2e-run:
ifeq ($(strip $(ARGS)),)
	@$(MAKE) --no-print-directory -j2 --output-sync=target e2e-cluster e2e-troubles
else
	@$(E2E) $(ARGS)
endif

# The longest test is with the shorter group, in a lab of its own name: the groups then end at about the same time.
E2E_LONGEST := one_replica_throttled_to_a_hundredth
e2e-cluster:
	@$(E2E) --skip troubles_ --skip $(E2E_LONGEST)
e2e-troubles:
	@$(E2E) troubles_
	@export MAINSTAY_E2E_LAB=$(or $(MAINSTAY_E2E_LAB),e2e)-longest && $(E2E) $(E2E_LONGEST)

# Devices that this machine's kernel need not have, in software-emulated machines with kernels from Debian. Each machine has one
# processor, so two run at a time; a part of the tests (ARGS) runs alone.
VM_TESTS := ublk client nbd vhost dax
vm: tests-built
	@$(MAKE) --no-print-directory vm-run

.PHONY: vm-run $(addprefix vm-,$(VM_TESTS))
vm-run:
ifeq ($(strip $(ARGS)),)
	@$(MAKE) --no-print-directory -j2 --output-sync=target $(addprefix vm-,$(VM_TESTS))
else
	@TESTS=$(abspath $(TESTS)) tests/vm/run.sh $(ARGS)
endif

$(addprefix vm-,$(VM_TESTS)): vm-%:
	@TESTS=$(abspath $(TESTS)) tests/vm/run.sh $*

# A machine is reset by its watchdog, once by the kernel's own and once by an emulated device.
.PHONY: vm-watchdog
vm-watchdog: tests-built
	@TESTS=$(abspath $(TESTS)) tests/vm/run.sh watchdog

# The tests of which `make vm` runs one kernel alone, on Debian's newest.
.PHONY: vm-newest
vm-newest: tests-built
	@VM_KERNELS=newest $(MAKE) --no-print-directory -j2 --output-sync=target vm-client vm-nbd vm-vhost

# Two lanes beside each other, because most tests in a lab wait most of their time. The first one has what must not be slowed
# down; the second one builds and computes with what the first one leaves. It begins with a release build, so that the first
# one gets cargo's lock of the debug build for a moment. Each step says how long it took.
test: deps
	@$(MAKE) --no-print-directory step STEP=fmt-check
	@$(MAKE) --no-print-directory step STEP=tests-built
	@$(MAKE) --no-print-directory -j2 lane-labs lane-builds

.PHONY: step lane-labs lane-builds
step:
	@began=$$(date +%s); \
	$(MAKE) --no-print-directory -j1 $(STEP) || { echo "make $(STEP) failed after $$(($$(date +%s) - began)) s" >&2; exit 1; }; \
	echo "make $(STEP) took $$(($$(date +%s) - began)) s"

lane-labs:
	@for step in unit-shipped e2e-run vm-run; do $(MAKE) --no-print-directory step STEP=$$step || exit 1; done

lane-builds:
	@for step in instructions lint unit-cores sim; do nice -n 19 $(MAKE) --no-print-directory step STEP=$$step || exit 1; done

build: deps
	$(CARGO) build --locked --release -p mainstay -p mainstay-lab -p mainstay-tests --bins

demo: build
	@$(BUILT)/demo

demo-down:
	@test -x $(BUILT)/demo || { echo "there is no built demo to end: make demo" >&2; exit 1; }
	@$(BUILT)/demo --down

# The Debian package, of release code unless PACKAGED names another built program.
PACKAGED ?= $(BUILT)/mainstay
DEBS := $(or $(CARGO_TARGET_DIR),target)/deb
.PHONY: deb install package-test tutorial-test lab-test tls-test api-test prometheus-test units-test plain-units-test pacemaker-test mysql-test pages-test manual-test test-long
$(BUILT)/mainstay: FORCE
	$(CARGO) build --locked --release -p mainstay --bin mainstay

deb: $(PACKAGED)
	@scripts/deb.sh $(PACKAGED) $(DEBS)

# DESTDIR and PREFIX as usual.
install: $(PACKAGED)
	@DESTDIR="$(DESTDIR)" PREFIX="$(or $(PREFIX),/usr/local)" scripts/install.sh $(PACKAGED)

# Installs, starts, uses, upgrades, removes and purges the package in a machine of namespaces that systemd runs (root). The
# package is that of the debug build, which the other tests have built already.
package-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/systemd/package.sh $(DEV)/mainstay

# The manual as a site, in target/book. mdBook is no part of `make deps`: only this needs it.
.PHONY: book
book:
	@command -v mdbook >/dev/null || { echo "make book needs mdBook: cargo install --locked mdbook" >&2; exit 1; }
	mdbook build docs

# The ports of nodes under openssl, testssl and sslyze, in a lab (root).
tls-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/tls/run.sh $(DEV)/mainstay

# The API under oasdiff and schemathesis, in a lab (root). TOOLS keeps the tools for the next run.
TOOLS := $(TARGET)/tools
api-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/api/run.sh $(DEV)/mainstay $(TOOLS)

# The same with few examples of each request: 35 s of processor time.
.PHONY: api-run
api-run:
	@tests/api/run.sh $(DEV)/mainstay $(TOOLS) short

# Alert rules and the metrics of a lab under promtool (root).
prometheus-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/prometheus/run.sh $(DEV)/mainstay

# The console. Only these need Node: cargo embeds ui/dist, and a test compares it with its sources.
UI := cd ui && PATH="$$PWD/node_modules/.bin:$$PATH"
ui/node_modules: ui/package-lock.json
	@scripts/deps.sh ui
	cd ui && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@

ui: ui/node_modules
	$(UI) && node types.mjs && tsc --noEmit && node build.mjs

ui-check: ui/node_modules
	$(UI) && node types.mjs --check && tsc --noEmit && node build.mjs --check

ui-test: ui-check
	$(UI) && node tests/run.mjs $(ARGS)

# The same in a lab: a resource and a service are made, nodes die, and the service is moved back (root).
ui-lab-test: ui-check
	$(CARGO) build --locked $(SHIPPED) --bins
	@ui/tests/lab.sh $(DEV)

# Units as processes of services, in such a machine (root).
units-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/systemd/units.sh $(DEV)/mainstay

# docs/tutorial.md word for word, an upgrade under load and the removal, on three such machines.
tutorial-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/systemd/tutorial.sh $(DEV)/mainstay

# A lab of such machines, with the package in each (root).
lab-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/systemd/lab.sh $(DEV)

# Plain units of systemd that follow a resource, in such a machine.
plain-units-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/systemd/plain-units.sh $(DEV)/mainstay

# The OCF agent under ocf-tester and under Debian's Pacemaker on three nodes of a lab (root).
pacemaker-test: deps
	@scripts/deps.sh pacemaker
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/pacemaker/run.sh $(DEV)

# MySQL, which Debian 12 does not have: its probes, and a service of its template that loses its node (root).
mysql-test: tests-built
	@TESTS=$(abspath $(TESTS)) tests/mysql/run.sh

# Power cuts of a database that writes each page once (root). ARGS is the number of cuts, and words: "40 mysql" cuts the power of a
# MySQL that looks for torn pages itself, "1 untruth" and "1 mysql untruth" have to fail.
pages-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/pages/run.sh $(DEV) $(or $(ARGS),100)

# Every block of commands of the manual, in labs (root).
manual-test: deps
	$(CARGO) build --locked $(SHIPPED) --bins
	@tests/manual/run.sh $(DEV)

# What takes too long, or needs too much of a machine, for every change. CONTRIBUTING.md has the last results.
test-long: package-test tutorial-test lab-test tls-test api-test prometheus-test plain-units-test pacemaker-test units-test mysql-test pages-test manual-test vm-newest vm-watchdog

bench: build
	@$(BUILT)/bench $(ARGS)

bench-vm:
	@scripts/deps.sh bench-vm
	$(CARGO) build --locked --release -p mainstay -p mainstay-lab
	@bench/vm/run.sh $(ARGS)

bench-idle: build
	@$(BUILT)/idle $(ARGS)

# Of agents alone: their engines are pretended, so that 1,000 resources fit a small machine.
bench-api:
	$(CARGO) test --locked --release $(SHIPPED) --test cluster -- figures:: --ignored --nocapture --test-threads 1

bench-growth: build
	@$(BUILT)/growth $(or $(ARGS),1 10 100)

bench-resync: build
	@$(BUILT)/resync $(ARGS)

bench-scrub: build
	@$(BUILT)/scrub $(ARGS)

bench-snapshots: build
	@$(BUILT)/snapshots $(ARGS)

bench-catchup: build
	@$(BUILT)/catchup $(ARGS)

bench-services: build
	@$(BUILT)/services $(ARGS)

bench-deps: deps
	@scripts/deps.sh bench

# Its own choice of cases and set-ups only if ARGS makes none.
BIG := --only big --set-ups plain,plain-once,single,single-once,three,three-once --rounds 5 --seconds 10
bench-big: build
	@$(BUILT)/bench $(or $(ARGS),$(BIG))

bench-floor: build
	$(CARGO) build --release --locked -p mainstay-engine --example write_path
	@BUILT=$(BUILT) bench/floor.sh $(ARGS)

bench-polling: build
	@BUILT=$(BUILT) bench/polling.sh $(ARGS)

bench-encryption: build
	@BUILT=$(BUILT) bench/encryption.sh $(ARGS)

bench-down:
	@test -x $(BUILT)/bench || { echo "there is no built benchmark to end: make bench" >&2; exit 1; }
	@$(BUILT)/bench --down

$(SOAK)/mainstay-sim: FORCE
	$(CARGO) build --locked --profile soak -p mainstay-sim

sim-soak: $(SOAK)/mainstay-sim
	@$(SOAK)/mainstay-sim soak --minutes $(MINUTES) --record bench/simulator.md

sim-bugs: $(SOAK)/mainstay-sim
	@$(SOAK)/mainstay-sim bugs --record bench/simulator.md --record-seeds sim/tests/planted_seeds.txt

sim-crash:
	$(CARGO) test --locked --release -p mainstay-sim --test enumerate -- --ignored --nocapture

.PHONY: FORCE
FORCE:

# Coverage-guided fuzzing of one decoder after the other, SECONDS for each; what is found stays in fuzz/found. The stable
# compiler can instrument; a target triple is given so that build scripts are not instrumented as well.
SECONDS := 30
FUZZ := frame batch superblock versions service nbd vhost_user session proofs
SANCOV := --cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

# The C++ compiler is for libFuzzer only, so the rest does without it.
fuzz: deps
	@command -v c++ >/dev/null || { echo "make fuzz needs a C++ compiler for libFuzzer: apt-get install g++" >&2; exit 1; }
	RUSTFLAGS="$(SANCOV)" $(CARGO) build --locked --release --manifest-path fuzz/Cargo.toml --target $(HOST) \
		--target-dir fuzz/target
	@scripts/fuzz-seeds.sh
	@mkdir -p fuzz/found
	@for target in $(FUZZ); do \
		echo "== $$target"; \
		fuzz/target/$(HOST)/release/$$target -max_total_time=$(SECONDS) -max_len=16384 -print_final_stats=1 \
			-artifact_prefix=fuzz/found/$$target- fuzz/corpus/$$target || exit 1; \
	done
