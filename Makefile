# make demo and make test work on a fresh Debian or Ubuntu with Go and make.

FUZZTIME ?= 30s

# Random walks through the admission core: the first seed, and how many requests.
SIM_FROM ?= 1
SIM_REQUESTS ?= 10000000

.PHONY: demo sim test interop interop-nixl interop-lmcache build-interop test-plan test-reports test-hosts chaos flood bench build fuzz lint setup clean

demo: build
	scripts/demo

# go test comes last: its lines are what CI shows.
test: setup lint build-interop
	@scripts/interop/run || test $$? = 77
	@scripts/interop/run nixl || test $$? = 77
	go test -race -timeout 20m ./...

# LMCache's peers, in Python, against our programs. Fails where it cannot run; make
# test then says so and goes on.
interop: build-interop
	scripts/interop/run

# Their bytes too, by NIXL and scripts/nixl-target: 90 MB of Python packages.
interop-nixl: build-interop
	scripts/interop/run nixl

# The sender of the lmcache package itself: 6 GB of Python packages, so never by make test.
interop-lmcache: build-interop
	scripts/interop/run lmcache

build-interop: build
	go build -o bin/ ./scripts/interop/wirecheck

# What pd-recv plan says, beside a paced run of real programs, and the tables of the
# README made anew from the real trace (where it is; PD_TRACE): takes a minute of
# a machine that does nothing else.
test-plan: setup
	go test -count=1 -run TestPlanAgrees -v ./internal/e2e
	go test -count=1 -run TestReadmeTables -v ./internal/plan

# Reported failures that took a minute or gigabytes, as they were reported: make test
# cuts them short.
test-reports: setup
	PD_TEST_REPORTS=1 go test -count=1 -v -run 'Test(CancelStorm|MonitorsThatStop|SaturatedAndQuiet|WaitEnds|RemainderOfTheBuffer|TopOutlivesAReceiver)$$' ./internal/e2e

# The programs on hosts of their own, which are network namespaces: needs root.
# HOSTS are flags, as in HOSTS='-only headline'.
test-hosts: build
	go build -o bin/ ./scripts/hosts
	bin/hosts $(HOSTS)

# The programs while faults befall them, two minutes by default. SEED may be a range,
# as in make chaos SEED=1-20 TIME=30m; TIME is for all seeds together.
SEED ?= 1
TIME ?= 2m
chaos: build
	go build -o bin/ ./scripts/chaos
	bin/chaos -seed $(SEED) -time $(TIME)

# Hostile peers of many kinds beside good senders. FLOOD are flags, as in
# FLOOD='-count 1000000 -rate 3000'; -list prints the kinds.
flood: build
	go build -o bin/ ./scripts/flood
	bin/flood $(FLOOD)

bench: build
	@scripts/setup --bench
	go run ./scripts/bench

build: setup
	go build -o bin/ ./cmd/... ./scripts/gentrace ./scripts/pd-check

# Every fuzz target, one after the other, FUZZTIME each.
fuzz: setup
	scripts/fuzz $(FUZZTIME)

# The admission core, simulated: every rule checked after every event. Prints the
# requests, the events and the simulated time.
sim: setup
	go test -timeout 0 -count 1 -v -run 'TestSim(Day)?$$' ./internal/reservation -sim.from $(SIM_FROM) -sim.requests $(SIM_REQUESTS) -sim.day 24h

lint: setup
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt these: $$unformatted"; exit 1; }
	go vet ./...

setup:
	@scripts/setup

clean:
	rm -rf bin
