# wasmplane: `make help` lists what can be made.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export CGO_ENABLED := 0
# The version comes from below; asking git fails in a checkout of somebody else's.
# Without paths of this machine, two folders make the same binary and share what is compiled.
export GOFLAGS := $(strip $(filter-out -trimpath -buildvcs=false,$(GOFLAGS)) -trimpath -buildvcs=false)

KUBERNETES_VERSION := v1.37.1
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BINARY  ?= bin/wasmplane
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
version_package := k8s.io/component-base/version
LDFLAGS := -s -w \
  -X $(version_package).gitVersion=$(KUBERNETES_VERSION) \
  -X $(version_package).gitMajor=1 -X $(version_package).gitMinor=37 \
  -X $(version_package).gitCommit=$(COMMIT) -X $(version_package).gitTreeState=clean \
  -X $(subst component-base,client-go/pkg,$(version_package)).gitVersion=$(KUBERNETES_VERSION) \
  -X $(subst component-base,client-go/pkg,$(version_package)).gitMajor=1 \
  -X $(subst component-base,client-go/pkg,$(version_package)).gitMinor=37 \
  -X github.com/wasmplane/wasmplane/cmd/wasmplane/command.Version=$(VERSION)

# Runs a command as root, and gives the user what root made in the user's folders.
AS_ROOT := test/as-root.sh
GO_TEST_TIMEOUT ?= 40m
# Modules of their own: what they need is no dependency of ours.
NESTED := test/conformance test/story/testdata/objectstore plugins/foreign/testdata/rego
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

-include core/kubelet/containerd/build.mk
-include wasm-examples/build.mk
-include release.mk

##@ Main

.PHONY: help
help: ## Print this help.
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z0-9_-]*:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo

# What the first command shows is of Go and of WAT, which this repository assembles
# itself: it needs no other compiler.
DEMO_PLUGINS := add-label no-privileged least-pods service-for-deployment

.PHONY: run
run: deps-run build hello-image $(DEMO_PLUGINS:%=$(WASM_DIR)/%.wasm) ## Start a cluster on this machine, deploy a web server to it, show what happened. ONCE=1: then clean up and exit. KEEP=1: leave it for a look.
	@ONCE='$(ONCE)' KEEP='$(KEEP)' NODES='$(NODES)' LISTEN='$(LISTEN)' $(if $(NODES),,$(AS_ROOT)) configs/demo/run.sh

.PHONY: test
test: deps-test build hello-image examples ## Install what the tests need, build, and run every test. PACKAGES="./core/...": those alone. AGAIN=0: no second try.
	$(AS_ROOT) test/run.sh $(GO_TEST_TIMEOUT)

.PHONY: build
build: node-helpers ## Build bin/wasmplane.
	$(if $(V),,@printf '  building $(BINARY)\n'; )go build -ldflags '$(LDFLAGS)' -o $(BINARY) ./cmd/wasmplane

# What root left in the folders of builds (sudo make ...) stands in the way of its owner.
.PHONY: own
own:
	@[ "$$(id -u)" = 0 ] || [ -z "$$(find bin build $(HELPERS_DIR) ! -user "$$(id -u)" 2>/dev/null | head -1)" ] || { \
	  echo "some built files belong to another user: taking them over by sudo"; \
	  sudo chown -R -h "$$(id -u):$$(id -g)" $$(ls -d bin build 2>/dev/null) $(HELPERS_DIR); }
build node-helpers hello-image: | own

##@ Development

.PHONY: check
check: fmt-check spdx-check vet lint gen-check test ## Everything that has to be green: formatting, licenses, vet, lint, generated files, tests.

.PHONY: quick
quick: node-helpers ## Vet and test what has changed since main, without root, in three minutes at most. BASE=COMMIT.
	@test/quick.sh $(BASE)

.PHONY: fmt-check
fmt-check: ## Fail where gofmt would change a file.
	@out="$$(gofmt -l $$(git ls-files '*.go'))"; [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }

.PHONY: vet
vet: node-helpers ## Run go vet.
	go vet -tags software ./...
	for m in $(NESTED); do (cd $$m && go vet ./...); done

.PHONY: lint
lint: node-helpers ## Run golangci-lint, which is built the first time.
	go run $(GOLANGCI) run ./...
	for m in $(NESTED); do (cd $$m && go run $(GOLANGCI) run ./...); done

# What is recorded from the code, so that a change of it is seen in review.
RECORDED := core/api/testdata core/api/definitions core/trace/testdata sdk plugins/abi plugins/hostfn docs/schemas

.PHONY: gen
gen: ## Rewrite what is made from other files: the ABI's tables, the definitions of OpenAPI, the JSON schemas of entries and cases; the table of resources, timelines, the ABI's vectors.
	go run ./sdk/spec/abigen
	go run ./core/api/definitions/internal/record core/api/definitions/definitions.json.zst
	go run ./plugins/author/schema/schemagen
	go test -count=1 -run '^TestTableIsAsRecorded$$' ./core/api -update
	UPDATE=1 go test -count=1 ./core/trace
	go test -count=1 -run '^TestProjectionVectors$$' ./plugins/abi -update

.PHONY: gen-check
gen-check: gen ## Fail where what is recorded is not what the code makes.
	@git diff --exit-code --stat -- $(RECORDED) || { echo "what is recorded differs: look at each line, then commit what 'make gen' made"; exit 1; }

.PHONY: test-templates
test-templates: deps-test ## Build and test what plugin init makes, for every point in every language.
	WASMPLANE_ALL_TEMPLATES=1 go test -count=1 -timeout 30m -run '^TestEveryTemplate$$' ./plugins/author/scaffold

.PHONY: worlds-examples
worlds-examples: deps-examples ## Build and test the plugin of wasm-examples/worlds by every generator, also those that take long to install (Rust's wit-bindgen, componentize-js: 390 MB).
	WASMPLANE_ALL_WORLDS=1 go test -count=1 -timeout 30m -v -run '^TestWorlds$$' ./wasm-examples

.PHONY: fresh
fresh: ## Run the first command in a new root of Debian, where nothing was ever used. RELEASES="trixie": in these. FRESH_AS=walker: as a user with sudo. COMMAND="make build": another command. ALL=1: both commands, all releases, as root and as a user with sudo (hours).
	@ALL='$(ALL)' RELEASES='$(RELEASES)' test/fresh/run.sh

.PHONY: component-tests
component-tests: ## Run the component model's own tests, in COMPONENT_TESTS=FOLDER (plugins/component/README.md says how it is made).
	go run ./plugins/component/reference '$(COMPONENT_TESTS)'

.PHONY: test-clock
test-clock: node-helpers hello-image ## Run tests with the clock DAYS ahead (366), the server's too, as root. PACKAGES="./core/...".
	go run ./test/clock build/clock $(or $(DAYS),366)
	go build -overlay build/clock/overlay.json -ldflags '$(LDFLAGS)' -o build/clock/wasmplane ./cmd/wasmplane
	WASMPLANE_BIN='$(CURDIR)/build/clock/wasmplane' go test -count=1 -vet=off -p 2 -timeout $(GO_TEST_TIMEOUT) -overlay build/clock/overlay.json $(or $(PACKAGES),./...)

.PHONY: bench
bench: deps-run build hello-image examples ## Measure: pods beside raw CRI calls, start to ready, memory, simulated nodes.
	$(AS_ROOT) go test -run '^$$' -bench . -benchtime 1x -timeout 60m -v ./test/bench/...

.PHONY: bench-hostile
bench-hostile: ## Compile modules that ask too much, shape by shape: what each one's compiler used, and what others noticed of it (10 minutes).
	go test -count=1 -run '^TestHostileModulesAreBounded$$' -timeout 20m -v ./plugins/host/compiler | grep 'hostile_test.go'
	go test -run '^$$' -bench '^BenchmarkBesideHostileModules$$' -benchtime 1x -timeout 60m ./plugins/host/compiler

.PHONY: bench-requests
bench-requests: build ## Send requests that ask for more than they look: what each costs the server (20 minutes). HOSTILE=TEXT: those named so.
	HOSTILE='$(HOSTILE)' go test -run '^$$' -bench '^BenchmarkHostileRequests$$' -benchtime 1x -timeout 120m -v ./test/bench

.PHONY: bench-plugins
bench-plugins: build ## Measure plugins (5 minutes): one policy in every form, nodes, guests that burn, restarts, reloads, from an empty folder to live.
	go test -run '^$$' -bench '^Benchmark(Decisions|Nodes|Burning)$$' -benchtime 1x -timeout 20m ./test/bench/decisions
	go test -run '^$$' -bench Restart -benchtime 5x -timeout 20m ./plugins/loader
	go test -run '^$$' -bench AThousandReloads -benchtime 1x -timeout 20m -v ./plugins/loader
	go test -count=1 -run '^TestEmptyFolderToLive$$' -timeout 20m -v ./test/story | grep -v '^=== '

.PHONY: policies
policies: build ## Run the tests of a library of Gatekeeper's or Kyverno's policies (files of kind Suite or Test): LIBRARY=FOLDER.
	@test -n '$(LIBRARY)' || { echo 'name the folder: make policies LIBRARY=../gatekeeper-library/library' >&2; exit 2; }
	bin/wasmplane plugin test --engine compiled '$(LIBRARY)'

.PHONY: conformance
conformance: deps-conformance build ## Run the upstream conformance suite on a real node, what has not passed yet. SUITE=kind|all: more of its tests; SUITE=node: e2e-node; SUITE=network-policy-api: those of ClusterNetworkPolicy. FOCUS=REGEXP, EXCEPT=REGEXP, PARALLEL=N, LIMIT=1h, AGAIN=1, DUAL=1 (IPv4 and IPv6), PROFILE=hardened.
	cd test/conformance && go build -o ../../build/conformance .
	$(AS_ROOT) env -C test/conformance ../../build/conformance --wasmplane ../../bin/wasmplane $(if $(DUAL),--dual-stack) $(if $(PROFILE),--profile '$(PROFILE)') --focus '$(FOCUS)' --except '$(EXCEPT)' \
	  $(if $(SUITE),--suite '$(SUITE)') $(if $(PARALLEL),--parallel $(PARALLEL)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(AGAIN),--again)

.PHONY: e2e-node
e2e-node: ## Run upstream's end-to-end tests of nodes (test/e2e_node) against our kubelet, what has not passed yet. FOCUS, EXCEPT, PARALLEL, LIMIT, AGAIN as conformance.
	$(MAKE) conformance SUITE=node

.PHONY: bench-scheduler
bench-scheduler: build ## Measure the scheduler beside upstream's, creation to binding (ROWS=plain NODES=1000: 3 minutes; all: hours; SCALE=0.1: smaller).
	ROWS='$(ROWS)' NODES='$(NODES)' SCALE='$(SCALE)' SIDES='$(SIDES)' test/bench/schedulers/run.sh '$(KUBERNETES_VERSION)'

.PHONY: bench-scheduler-wasm
bench-scheduler-wasm: build ## Measure the scheduler with native plugins alone, and with a Wasm plugin in C, Rust and Go beside them, by turns (15 minutes; ROUNDS=5, SCALE=0.1: smaller).
	WASMPLANE_BIN="$$PWD/bin/wasmplane" ROWS='$(ROWS)' ROUNDS='$(ROUNDS)' SCALE='$(SCALE)' go test -run '^$$' -bench '^BenchmarkWasmScheduling$$' -benchtime 1x -timeout 120m ./test/bench/schedulers/

.PHONY: bench-api
bench-api: build ## Measure the API beside upstream's kube-apiserver, which is built (20 minutes, the first time) outside of this folder. BENCH_SCALE=0.1: smaller.
	test/bench/upstream/run.sh '$(KUBERNETES_VERSION)'

.PHONY: differential
differential: build ## Ask upstream's kube-apiserver and ours the same 20,000 questions, and compare the answers. STORIES=patches: a part. RECORD=1: compare and keep those that CI asks again.
	cache=$$(test/internal/sides/build.sh '$(KUBERNETES_VERSION)') && \
	  WASMPLANE_BIN='$(CURDIR)/bin/wasmplane' KUBE_APISERVER_BIN=$$cache/kube-apiserver ETCD_BIN=$$cache/etcd STORIES='$(STORIES)' RECORD='$(RECORD)' \
	  go test -count=1 -timeout 60m ./test/differential/

.PHONY: clients
clients: deps-test build ## Run other people's software against the binary: kubectl of three minor versions, Helm, operators, storage sidecars, PostgreSQL, Python, JavaScript, and what docs/SOFTWARE.md lists (what is built takes minutes the first time). RUN=REGEXP: the tests of these names.
	test/as-root.sh env CLIENTS=all go test -tags software -count=1 -timeout 120m -v $(if $(RUN),-run '$(RUN)') ./test/clients/

.PHONY: test-cmd
test-cmd: deps-kubectl build ## Run upstream's own tests of kubectl (test/cmd) against the binary, what has not passed yet with it; without root. GROUPS=REGEXP, PARALLEL=N, AGAIN=1.
	go run ./test/kubectlcmd --wasmplane '$(BINARY)' --groups '$(GROUPS)' $(if $(PARALLEL),--parallel $(PARALLEL)) $(if $(AGAIN),--again)

.PHONY: integration
integration: build ## Run upstream's own integration tests (test/integration) against the binary, what has not passed yet with it (hours; each package takes a minute to link). PACKAGES=REGEXP, FOCUS=REGEXP, AGAIN=1, JOBS=2.
	go run ./test/integration --wasmplane '$(BINARY)' --packages '$(PACKAGES)' --focus '$(FOCUS)' $(if $(AGAIN),--again) $(if $(JOBS),--jobs $(JOBS))

.PHONY: random-walk
random-walk: build ## Let a tenant try whatever chance says, and look what it has changed or gained. WALK_TIME=10m WALK_SEED=n.
	WALK_TIME=$${WALK_TIME:-10m} WALK_SEED=$${WALK_SEED:-$$(date +%s)} go test -count=1 -timeout 120m -v ./test/walk/

.PHONY: chaos
chaos: build hello-image ## Kill the server over and over under load, then break a cluster in each way that has a name, and print what clients noticed. CHAOS_KILLS=40 CHAOS_CLASSES=REGEXP.
	CHAOS_KILLS=$${CHAOS_KILLS:-40} go test -count=1 -timeout 60m -v ./test/chaos/
	$(MAKE) --no-print-directory faults

.PHONY: faults
faults: build hello-image clock-binary ## The second half of make chaos: real processes, networks, disks and clocks broken, as root. What has passed with this binary is not run again. CHAOS_CLASSES=^one/
	$(AS_ROOT) env CHAOS_CLASSES="$${CHAOS_CLASSES:-.}" CHAOS_RESULTS='$(CURDIR)/build/chaos/faults.jsonl' CHAOS_CLOCK_BIN='$(CURDIR)/build/chaos/wasmplane' \
	  go test -count=1 -timeout $${CHAOS_TIME:-180m} -v -run '^TestFaults$$' ./test/chaos/faults/

.PHONY: clock-binary
clock-binary: # The binary with a clock that can be stepped while it runs (test/internal/stepping), so not stripped.
	@go run ./test/clock build/chaos 0
	@go build -overlay build/chaos/overlay.json -ldflags '$(filter-out -s -w,$(LDFLAGS))' -o build/chaos/wasmplane ./cmd/wasmplane

.PHONY: worlds
worlds: ## Run whole control planes on virtual time, with faults by a seed each. WORLD_SEEDS=200 WORLD_SEED=n WORLD_STEPS=2000.
	WORLD_SEEDS=$${WORLD_SEEDS:-200} WORLD_SEED=$${WORLD_SEED:-$$(date +%s)} KUBE_CACHE_MUTATION_DETECTOR=true \
	go test -count=1 -timeout 120m -v -run TestWorlds ./test/worlds/

.PHONY: world-bugs
world-bugs: ## Put known bugs back, one at a time, and say which of them the worlds find. WORLD_SEEDS=30.
	WORLD_SEEDS=$${WORLD_SEEDS:-30} go run ./test/worlds/bugs

.PHONY: history
history: ## Hold concurrent writes against a model for longer than CI does. HISTORY_WRITES=3000 HISTORY_SEED=0.
	HISTORY_WRITES=$${HISTORY_WRITES:-3000} go test -count=1 -timeout 60m -v -run ConcurrentWritesAreAHistory ./core/registry/

.PHONY: clean
clean: ## Remove everything that was built.
	rm -rf bin build core/kubelet/containerd/embedded/*.gz core/kubelet/containerd/embedded/*.zst core/kubelet/containerd/embedded/*.xz

##@ Dependencies

.PHONY: deps-run
deps-run: ## Install what a real node needs: runc, nftables, iproute2.
	@test/deps.sh run

.PHONY: deps-examples
deps-examples: ## Install the compilers of the example plugins, but for Go.
	@test/deps.sh examples

.PHONY: deps-test
deps-test: ## Install what the tests need.
	@test/deps.sh run examples test

.PHONY: deps-kubectl
deps-kubectl: ## Install what upstream's tests of kubectl run: curl, jq, openssl.
	@test/deps.sh kubectl

.PHONY: deps-conformance
deps-conformance: ## Install what the images of the conformance suite are made of.
	@test/deps.sh run conformance

# A module is built again when its sources changed, not because compilers are there.
$(WASM_DIR)/rust/libwasmplane.rlib $(patsubst %,$(WASM_DIR)/%.wasm,$(WASM_RUST) $(WASM_TOOL)): | deps-examples
