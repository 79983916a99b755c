# What a real node needs besides the main binary. Included by the Makefile, which
# calls node-helpers before it builds bin/wasmplane.
#
#   node-helpers   the shim, the CNI plugins and the engine of Wasm containers, compressed, where they are embedded
#   hello-image    bin/images/hello.tar, the sample web server's image

HELPERS_DIR := core/kubelet/containerd/embedded
HELPERS_BIN := bin/helpers
HELPERS_ARCH := $(shell go env GOARCH)
# Tools that run during the build are for this machine, also in a cross build.
ON_THIS_MACHINE = GOOS=$(shell go env GOHOSTOS) GOARCH=$(shell go env GOHOSTARCH)
HELPERS_BUILD = CGO_ENABLED=0 GOOS=linux GOARCH=$(HELPERS_ARCH) go build -trimpath -ldflags='-s -w'

.PHONY: node-helpers hello-image clean-node-helpers

# The go command knows what is up to date; pack runs only when a binary changed.
node-helpers: ## Build the small binaries that a real node needs
	@mkdir -p $(HELPERS_BIN)
	@$(HELPERS_BUILD) -tags=no_grpc -o $(HELPERS_BIN)/containerd-shim-runc-v2.new ./cmd/wasmplane-shim
	@$(HELPERS_BUILD) -o $(HELPERS_BIN)/cni.new ./cmd/wasmplane-cni
	@$(HELPERS_BUILD) -o $(HELPERS_BIN)/wasm.new ./cmd/wasmplane-wasm
	@for f in containerd-shim-runc-v2 cni wasm; do \
		if cmp -s $(HELPERS_BIN)/$$f.new $(HELPERS_BIN)/$$f && [ -f $(HELPERS_DIR)/$$f.zst ]; then \
			rm $(HELPERS_BIN)/$$f.new; \
		else \
			mv $(HELPERS_BIN)/$$f.new $(HELPERS_BIN)/$$f && \
			$(ON_THIS_MACHINE) go run ./core/kubelet/containerd/internal/pack $(HELPERS_BIN)/$$f $(HELPERS_DIR)/$$f.zst || exit 1; \
		fi; \
	done

hello-image: ## Build the sample web server's image
	@mkdir -p $(HELPERS_BIN) bin/images
	@$(HELPERS_BUILD) -o $(HELPERS_BIN)/hello ./cmd/wasmplane-hello
	@$(ON_THIS_MACHINE) go run ./core/kubelet/images/internal/mkimage -program $(HELPERS_BIN)/hello -arch $(HELPERS_ARCH) \
		-name wasmplane.local/hello:1 -ports 80/tcp -o bin/images/hello.tar

clean-node-helpers:
	@rm -rf $(HELPERS_BIN) bin/images $(HELPERS_DIR)/*.zst
