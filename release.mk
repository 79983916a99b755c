# Packages and releases, and what is done now and then. Included by the Makefile.

# The SDK's tests run with all others; as a module of its own it is vetted by itself.
NESTED += sdk/go

##@ Releases

.PHONY: sdk-packages
sdk-packages: ## Pack the SDKs into what their registries take: build/sdk.
	sdk/package.sh build/sdk

# The oldest Go that the SDK's README promises; the go command fetches it.
.PHONY: sdk-go-oldest
sdk-go-oldest: ## Test the Go SDK with the oldest Go that builds plugins.
	cd sdk/go && GOTOOLCHAIN=go$$(sed -n 's/^go //p' go.mod).0 go test ./...
	cd sdk/go && GOTOOLCHAIN=go$$(sed -n 's/^go //p' go.mod).0 GOOS=wasip1 GOARCH=wasm go build ./...

.PHONY: release
release: ## Make the files of a release from the last commit: build/release/files. KEY=FILE signs them.
	test/release/build.sh '$(VERSION)' build/release/files '$(KEY)'

.PHONY: release-check
release-check: ## Make the release twice, in two folders, and fail where a byte differs.
	export COMMIT=$$(git rev-parse HEAD); \
	WORK=build/release/one test/release/build.sh '$(VERSION)' build/release/a && \
	WORK=build/release/the-other/folder test/release/build.sh '$(VERSION)' build/release/b
	diff -r build/release/a build/release/b
	@echo "both are the same: $$(sha256sum < build/release/a/SHA256SUMS | cut -c1-16)"

.PHONY: release-install
release-install: ## Install the package of build/release/files in a new root of Debian, start the cluster by its unit, remove it. As root.
	test/release/install.sh build/release/files/wasmplane_*_$(shell go env GOARCH).deb

# Whose clusters this tree takes over: the commits of the last releases. There is none yet, so of one day and some 300 commits before.
FORMER ?= 2a195017f81d 7195d82753dc

.PHONY: upgrades
upgrades: build hello-image ## Build former releases (minutes each, once), and run their clusters with this tree's binary, back with theirs, and with both. FORMER="COMMITS". As root.
	for commit in $(FORMER); do \
	  file=$$(test/upgrades/build.sh $$commit v0.3.0 build/former) || exit 1; \
	  WASMPLANE_FORMER=$$file WASMPLANE_BIN='$(CURDIR)/$(BINARY)' go test -count=1 -timeout $(GO_TEST_TIMEOUT) -run '^TestFormer$$' ./test/story || exit 1; \
	done

##@ Now and then

.PHONY: fmt
fmt: ## Format Go files, and sort their imports, as .golangci.yml says.
	go run $(GOLANGCI) fmt ./...
	for m in $(NESTED); do (cd $$m && go run $(GOLANGCI) fmt ./...); done

.PHONY: spdx
spdx: ## Write the license's line into source files that lack it.
	test/spdx.sh fix

.PHONY: spdx-check
spdx-check: ## Fail where a source file does not name its license.
	@test/spdx.sh check

.PHONY: bench-compare
bench-compare: ## Measure the hot paths, and compare by benchstat with what bench-record measured.
	test/bench/compare.sh compare

.PHONY: bench-record
bench-record: ## Measure the hot paths anew, on a quiet machine, for bench-compare.
	test/bench/compare.sh record

.PHONY: fuzz
fuzz: ## Run every fuzz target in turn, each for FUZZTIME (10s). FUZZ=REGEXP: some of them; what is found lies below testdata/fuzz.
	@FUZZTIME='$(FUZZTIME)' FUZZ='$(FUZZ)' test/fuzz.sh

.PHONY: nightly
nightly: ## Run what takes hours: fuzzing, history, chaos, differential, upstream's tests of kubectl, a part of the conformance suite; build/nightly/report.md. PARTS="fuzz chaos" FUZZTIME=2m.
	test/nightly.sh
