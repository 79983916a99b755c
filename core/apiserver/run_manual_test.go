package apiserver_test

import (
	"os"
	"testing"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

func TestManual(t *testing.T) {
	if os.Getenv("MANUAL") == "" {
		return
	}
	s := apiservertest.Start(t, apiservertest.Options{})
	file := s.Kubeconfig(t, "admin", "system:masters")
	data, _ := os.ReadFile(file)
	os.WriteFile("/tmp/reg/kubeconfig", data, 0o600)
	select {}
}
