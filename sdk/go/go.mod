module github.com/wasmplane/wasmplane/sdk/go

go 1.24
